"""Write the NetCDF file of a statistic, and read it with checksums.

Each chunk has a checksum (Fletcher 32). The attribute `made_from` holds the archive's fingerprint, the task, the dates
and the options as JSON; `provenance` is the hash of `made_from`.
"""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import netCDF4
import numpy as np

from data_pipeline.common.errors import DiskFullError, InputError
from data_pipeline.common.file_format import (
    EMPTY_FORMAT,
    HDF5_FORMAT,
    NETCDF_FORMAT,
    UNKNOWN_FORMAT,
    file_format,
    wrong_format,
)
from data_pipeline.common.files import atomic_path
from data_pipeline.common.identity import fingerprint_of, sampled_hash_of, sha256_of_bytes
from data_pipeline.common.messages import joined
from data_pipeline.dates import Dates
from data_pipeline.grid import Grid
from data_pipeline.statistics import STATISTICS
from data_pipeline.statistics.statistic import ROWS_OF_A_CHUNK, Piece, Statistic
from data_pipeline.statistics.training_forecasts import TrainingForecasts

if TYPE_CHECKING:
    import xarray as xr

_REMEDY = "name a file that deepweather prepare has made, or run prepare again"
_VERSION = 2
"""Increased whenever the same options give other values."""


def origin(statistic: Statistic, training: TrainingForecasts) -> str:
    """Return the attribute `made_from`: everything that the values depend on, as JSON."""
    options = asdict(statistic)  # type: ignore[call-overload]
    return json.dumps(
        {
            "statistic": statistic.name,
            "version": _VERSION,
            "data": training.source.fingerprint,
            "task": training.task.to_json(),
            "dates": training.dates.to_json(),
            "options": {name: value for name, value in options.items() if name != "memory_bytes"},
        }
    )


def is_written(path: str | Path, statistic: Statistic, training: TrainingForecasts) -> bool:
    """Return whether the file `path` holds this statistic of these forecasts."""
    try:
        with _open(Path(path)) as dataset:
            return bool(dataset.attrs["made_from"] == origin(statistic, training))
    except InputError:
        return False


def write_statistic(
    path: str | Path, statistic: Statistic, training: TrainingForecasts, pieces: Iterable[Piece]
) -> None:
    """Write `pieces` in the given order. The file appears when it is complete; equal inputs give equal bytes."""
    variables, coordinates = statistic.axes(training)
    made_from = origin(statistic, training)
    attributes = {
        "Conventions": "CF-1.8",
        "title": f"{statistic.name} of {training.task.name}, {training.dates}",
        "made_from": made_from,
        "provenance": _hash(made_from),
    }
    with atomic_path(path) as partial, ExitStack() as stack:
        if shutil.disk_usage(partial.parent).free < _bytes(variables, coordinates, training.grid, statistic.precision):
            # Checked before hours of work; the disk may still fill up later.
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        with _disk_errors(path):
            file = netCDF4.Dataset(partial, "w")
            stack.callback(_close, file, path)
            file.setncatts(attributes)
            _define(file, training.grid, variables, coordinates, statistic.precision)
        for _, values in pieces:
            with _disk_errors(path):
                for name, (index, value) in values.items():
                    file[name][index] = value


def load_statistic(path: str | Path, name: str, **selection: Any) -> xr.Dataset:
    """Read the statistic `name` and verify its checksums; `selection` gives values of coordinates to select."""
    path = Path(path)
    with _open(path) as dataset:
        made = json.loads(dataset.attrs["made_from"])
        if (found := made["statistic"]) != name:
            raise InputError(f"{path} holds the statistic {found}, not {name}; give the path of {name}.nc")
        if (found := made.get("version")) != _VERSION:
            raise InputError(f"{path} has format {found}, this version reads {_VERSION}; run prepare again")
        try:
            return _select(dataset, path, selection).load()
        except (RuntimeError, OSError):
            raise InputError(f"{path} is damaged: its checksums do not match; {_REMEDY}") from None


def provenance_of(path: str | Path) -> str:
    """Return a hash of the contents of the file `path` and of everything that its values depend on."""
    with _open(Path(path)) as dataset:
        return fingerprint_of(dataset.attrs["made_from"], sampled_hash_of(Path(path)))


def load_for_run(path: str | Path, name: str, dates: Dates, fingerprint: str, grid: Grid) -> xr.Dataset:
    """Read the statistic `name` for a training run; refuse a file with other dates, data or cells than the run."""
    file = load_statistic(path, name)
    made = json.loads(file.attrs["made_from"])
    if (known := Dates.from_json(made["dates"])) != dates.days:
        raise InputError(f"{path} is made of {known}, the training dates are {dates}; {remedy_for(name)}")
    if made["data"] != fingerprint:
        raise InputError(
            f"{path} is made of other forecasts than those of data, or another version of deepweather read them; "
            f"{remedy_for(name)}"
        )
    if not Grid(tuple(file.latitude.values), tuple(file.longitude.values)).matches(grid):
        raise InputError(f"{path} is made on another grid than {grid}; {remedy_for(name)}")
    return file


def remedy_for(name: str) -> str:
    """Return the end of an error message about the file of the statistic `name`: how to make it."""
    return f"make it with deepweather prepare 'statistics=[{name}]' and the same options of data and task"


def _select(dataset: xr.Dataset, path: Path, selection: Mapping[str, Any]) -> xr.Dataset:
    """Return the dataset at the given values of coordinates; raise if a value is missing."""
    for name, value in selection.items():
        values = dataset[name].values.tolist()
        if value not in values:
            raise InputError(f"{path} has no {name}={value}; choose one of {joined(values)}")
    return dataset.sel(selection)


@contextmanager
def _disk_errors(path: str | Path) -> Iterator[None]:
    """Raise `DiskFullError` for the RuntimeError of HDF5, which does not name the cause."""
    try:
        yield
    except RuntimeError as error:
        raise DiskFullError(
            f"no space left on the device, or a disk error, while writing {path} ({error}); free some space or choose "
            "another folder (the incomplete file was removed)"
        ) from None


def _close(file: netCDF4.Dataset, path: str | Path) -> None:
    with _disk_errors(path):
        file.close()


def _bytes(
    variables: Mapping[str, tuple[str, ...]], coordinates: Mapping[str, Any], grid: Grid, precision: type
) -> int:
    """Return the size of the uncompressed values of a file."""
    sizes = {name: len(values) for name, values in coordinates.items()}
    sizes |= zip(("latitude", "longitude"), grid.shape, strict=True)
    size = np.dtype(precision).itemsize
    return sum(size * math.prod(sizes[name] for name in dimensions) for dimensions in variables.values())


def _define(
    file: netCDF4.Dataset,
    grid: Grid,
    variables: Mapping[str, tuple[str, ...]],
    coordinates: Mapping[str, Any],
    precision: type,
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
            name, precision, dimensions, fletcher32=True, chunksizes=_chunk(sizes), fill_value=precision(np.nan)
        )


def _chunk(sizes: Mapping[str, int]) -> list[int]:
    """Return the shape of a chunk: full `complete` dimensions, `ROWS_OF_A_CHUNK` latitudes, size 1 along all others."""
    complete = {"longitude", "quantile", "forecast", "column"}
    shape = {name: size if name in complete else 1 for name, size in sizes.items()}
    if "latitude" in sizes:
        shape["latitude"] = min(sizes["latitude"], ROWS_OF_A_CHUNK)
    return list(shape.values())


def _open(path: Path) -> xr.Dataset:
    import xarray as xr

    if not path.is_file():
        name = path.stem if path.stem in STATISTICS else "NAME"
        raise InputError(f"the file {path} does not exist; make it with deepweather prepare 'statistics=[{name}]'")
    try:
        dataset = xr.open_dataset(path, engine="netcdf4", cache=False)
    except (OSError, ValueError, RuntimeError):
        if file_format(path) not in (NETCDF_FORMAT, HDF5_FORMAT, EMPTY_FORMAT, UNKNOWN_FORMAT):
            raise wrong_format(path, "a statistic (NetCDF-4)") from None
        raise InputError(f"{path} is not a complete NetCDF file; {_REMEDY}") from None
    if dataset.attrs.get("provenance") != _hash(str(dataset.attrs.get("made_from", ""))):
        dataset.close()
        raise InputError(f"{path} has no valid attribute made_from; {_REMEDY}")
    return dataset


def _hash(made_from: str) -> str:
    return sha256_of_bytes(made_from.encode())[:16]
