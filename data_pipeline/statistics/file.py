"""The file of a statistic: NetCDF that says what it was made from, checks itself, and guards against leaks.

Every chunk carries a checksum (Fletcher 32). The attribute `made_from` holds the archive's fingerprint, task, years and
options as JSON, `provenance` its hash.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import xarray as xr

from data_pipeline.common.errors import DiskFullError, InputError
from data_pipeline.common.files import atomic_path
from data_pipeline.grid import Grid
from data_pipeline.statistics.statistic import ROWS_OF_A_CHUNK, Piece, Statistic
from data_pipeline.statistics.training import Training

VERSION = 1
"""Goes up whenever the same options would give other numbers."""


def made_from(statistic: Statistic, training: Training) -> str:
    """Return all that the numbers depend on, as JSON."""
    return json.dumps(
        {
            "statistic": statistic.name,
            "version": VERSION,
            "data": training.source.fingerprint,
            "task": training.task.to_json(),
            "years": list(training.years),
            "options": {name: value for name, value in asdict(statistic).items() if name != "memory"},  # type: ignore[call-overload]
        }
    )


def is_written(path: str | Path, statistic: Statistic, training: Training) -> bool:
    """Whether `path` already holds this statistic of these data."""
    try:
        with _opened(Path(path)) as dataset:
            return bool(dataset.attrs["made_from"] == made_from(statistic, training))
    except InputError:
        return False


def write(path: str | Path, statistic: Statistic, training: Training, pieces: Iterable[Piece]) -> None:
    """Write `pieces` as they come; the file appears when all are there, and is the same byte for byte each time."""
    variables, coordinates = statistic.axes(training)
    description, (first, last) = made_from(statistic, training), training.years
    attributes = {
        "Conventions": "CF-1.8",
        "title": f"{statistic.name} of {training.task.name}, {first} to {last}",
        "made_from": description,
        "provenance": _hash(description),
    }
    with atomic_path(path) as partial, ExitStack() as stack:
        if shutil.disk_usage(partial.parent).free < _bytes(variables, coordinates, training.grid):
            # Found out before hours of work; what the disk says later counts as well.
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        with _room(path):
            file = netCDF4.Dataset(partial, "w")
            stack.callback(_close, file, path)
            file.setncatts(attributes)
            _define(file, training.grid, variables, coordinates)
        for _, values in pieces:
            with _room(path):
                for name, (place, value) in values.items():
                    file[name][place] = value


def load(path: str | Path, name: str, **where: Any) -> xr.Dataset:
    """Read the statistic `name`, or only a part `where` coordinates have given values; every byte read is checked."""
    path = Path(path)
    with _opened(path) as dataset:
        found = json.loads(dataset.attrs["made_from"])["statistic"]
        if found != name:
            raise InputError(f"{path} holds the statistic {found}, not {name}; name the file {name}.nc")
        try:
            return _part(dataset, path, where).load()
        except (RuntimeError, OSError):
            raise InputError(f"{path} is damaged, its checksums do not fit; remove it and prepare it again") from None


def refuse_leak(dataset: xr.Dataset, years: Collection[int]) -> None:
    """Refuse statistics of which a year is among the `years` that are to be scored."""
    made = json.loads(dataset.attrs["made_from"])
    first, last = made["years"]
    if shared := sorted(set(years) & set(range(first, last + 1))):
        raise InputError(
            f"the statistic {made['statistic']} knows {shared[0]}, which is to be scored; prepare it from years "
            f"before {min(years)} with data.split.train"
        )


def _part(dataset: xr.Dataset, path: Path, where: Mapping[str, Any]) -> xr.Dataset:
    """Return the part of a dataset at some values of its coordinates."""
    for name, value in where.items():
        there = dataset[name].values.tolist()
        if value not in there:
            raise InputError(f"{path} has nothing at {name}={value}; there is {', '.join(map(str, there))}")
    return dataset.sel(where)


@contextmanager
def _room(path: str | Path) -> Iterator[None]:
    """Say what HDF5 keeps to itself: why it could not write."""
    try:
        yield
    except RuntimeError as error:
        raise DiskFullError(
            f"no space left on the device, or it failed, while writing {path} ({error}); free some space or choose "
            "another place (nothing half-written was kept)"
        ) from None


def _close(file: netCDF4.Dataset, path: str | Path) -> None:
    with _room(path):
        file.close()


def _bytes(variables: Mapping[str, tuple[str, ...]], coordinates: Mapping[str, Any], grid: Grid) -> int:
    """Return how large the values of a file are."""
    sizes = {name: len(values) for name, values in coordinates.items()}
    sizes |= zip(("latitude", "longitude"), grid.shape, strict=True)
    return sum(4 * math.prod(sizes[name] for name in dimensions) for dimensions in variables.values())


def _define(
    file: netCDF4.Dataset, grid: Grid, variables: Mapping[str, tuple[str, ...]], coordinates: Mapping[str, Any]
) -> None:
    axes = {**coordinates, "latitude": grid.latitudes, "longitude": grid.longitudes}
    units = {"latitude": "degrees_north", "longitude": "degrees_east", "lead_time": "hours"}
    for name, values in axes.items():
        file.createDimension(name, len(values))
        array = np.asarray(values)
        variable = file.createVariable(name, str if array.dtype == object else array.dtype, (name,))
        variable[:] = array
        if name in units:
            variable.units = units[name]
    for name, dimensions in variables.items():
        sizes = {dimension: len(axes[dimension]) for dimension in dimensions}
        variable = file.createVariable(
            name, np.float32, dimensions, fletcher32=True, chunksizes=_chunk(sizes), fill_value=np.float32(np.nan)
        )


def _chunk(sizes: Mapping[str, int]) -> list[int]:
    """Return the shape of a chunk: a few whole rows of longitudes, all quantiles, one of all else."""
    whole = {"longitude", "quantile"}
    shape = {name: size if name in whole else 1 for name, size in sizes.items()}
    if "latitude" in sizes:
        shape["latitude"] = min(sizes["latitude"], ROWS_OF_A_CHUNK)
    return list(shape.values())


def _opened(path: Path) -> xr.Dataset:
    if not path.is_file():
        raise InputError(f"there is no {path}; make it with deepweather prepare 'statistics=[{path.stem}]'")
    try:
        dataset = xr.open_dataset(path, engine="netcdf4", cache=False)
    except (OSError, ValueError, RuntimeError):
        raise InputError(f"{path} is no whole NetCDF file; remove it and prepare it again") from None
    if dataset.attrs.get("provenance") != _hash(str(dataset.attrs.get("made_from", ""))):
        dataset.close()
        raise InputError(f"{path} does not say what it was made from; remove it and prepare it again")
    return dataset


def _hash(description: str) -> str:
    return hashlib.sha256(description.encode()).hexdigest()[:16]
