"""Datasets of anemoi: Zarr stores with one array (time, variable, ensemble, cell), or with steps before the cells.

The attributes of the store name the variables and say what they mean: as in MARS, with the period of statistics and, of
later versions, units. `dates` are valid times; `base_dates` of trajectories are starts, and `steps` lead times.
See https://anemoi.readthedocs.io/projects/datasets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.formats.cf.block import FieldBlock, RefusedVariable
from data_pipeline.formats.cf.cf_header import Coordinate, DataVariable, Header
from data_pipeline.formats.cf.cf_variables import NameMap
from data_pipeline.formats.cf.coordinates import SURFACE, Horizontal
from data_pipeline.formats.cf.times import TimeCoordinates
from data_pipeline.formats.levels import on_model_level
from data_pipeline.formats.zarr.array import ZarrArray
from data_pipeline.formats.zarr.zarr_header import ZarrFile
from data_pipeline.grid import COORDINATE_TOLERANCE
from data_pipeline.grids.points import Points
from data_pipeline.grids.reduced_grid import ReducedGrid
from data_pipeline.task import Variable
from data_pipeline.variables.meaning import LEVEL_ATTRIBUTE
from data_pipeline.variables.parameters import PARAMETERS

_PROCESSES = {"accumulation": "accumulation", "average": "mean", "maximum": "maximum", "minimum": "minimum"}
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_EPOCH = {"units": "seconds since 1970-01-01"}
_ON_PRESSURE = re.compile(r"(.+)_(\d+)")


@dataclass(frozen=True, eq=False)
class AnemoiFile(ZarrFile):
    """A dataset: its fields are in one array, `data`."""

    @property
    def data(self) -> ZarrArray:
        """The array of all fields."""
        return self.arrays["data"]

    @cached_property
    def names(self) -> list[str]:
        """The names of the variables, in the order of the array."""
        return [*self.attributes["variables"]]

    @cached_property
    def horizontal(self) -> Horizontal:
        """The grid: regular if `field_shape` and the positions are, reduced Gaussian by its positions, else points."""
        north, east = (self.arrays[name].coordinate().astype(float) for name in ("latitudes", "longitudes"))
        shape = tuple(self.attributes.get("field_shape") or ())
        if len(shape) == 2 and min(shape) > 1 and shape[0] * shape[1] == len(north):
            rows, columns = north.reshape(shape), east.reshape(shape)
            if (
                np.ptp(rows, axis=1).max() < COORDINATE_TOLERANCE
                and np.ptp(columns, axis=0).max() < COORDINATE_TOLERANCE
            ):
                return Horizontal.of(rows[:, 0], columns[0])
        if grid := _reduced_gaussian(north, east):
            return Horizontal(grid, False, np.arange(len(north)), 1)
        return Horizontal(Points(tuple(north), tuple(east)), False, np.arange(1), len(north))

    def positions(self, name: str, fields: np.ndarray) -> np.ndarray:
        """Return the positions of fields of a variable among the fields of the array."""
        sizes = self.data.metadata.shape[:-1]
        first, *others = np.unravel_index(fields, (sizes[0], *sizes[2:]))
        variable = np.full(len(fields), self.names.index(name))
        return np.ravel_multi_index((first, variable, *others), sizes)

    def stored_fields(self, data: DataVariable, outer: tuple[str, ...]) -> np.ndarray | None:
        """Return a mask (n,) of the fields that exist; None if all exist."""
        mine = self._exists[:, self.names.index(data.name)].ravel()
        return None if mine.all() else mine

    @cached_property
    def _exists(self) -> np.ndarray:
        """Whether the chunk of each field exists, at a date that the dataset does not call missing."""
        array, sizes = self.data, self.data.metadata.shape[:-1]
        exists = np.ones(sizes, bool)
        if (chunks := array.existing_chunks()) is not None:
            found = chunks.any(axis=-1)
            for axis, size in enumerate(sizes):
                found = found.repeat(array.stored[axis], axis)[(slice(None),) * axis + (slice(size),)]
            exists &= found
        missing = np.array(self.attributes.get("missing_dates") or [], "datetime64[s]")
        exists[np.isin(self.dates["base_dates" if "base_dates" in self.dates else "dates"], missing)] = False
        return exists


def is_anemoi(file: ZarrFile) -> bool:
    """Whether a store is a dataset of anemoi."""
    return "variables" in file.attributes and {"data", "latitudes", "longitudes"} <= file.arrays.keys()


def anemoi_blocks(file: ZarrFile, names: NameMap, timeless: bool) -> list[FieldBlock | RefusedVariable]:
    """Return the variables of a dataset, each as a block of fields; `timeless` ignores processing over time."""
    own = AnemoiFile(**vars(file))
    sizes = own.data.metadata.shape
    trajectories = "base_dates" in own.dates
    if len(sizes) != 4 + trajectories or not own.dates or sizes[1] != len(own.names):
        raise InputError(
            f"{own.path} is a dataset of anemoi of an unknown layout: its data have the shape {sizes}, with "
            f"{len(own.names)} variables; write it as gridded or as trajectories"
        )
    grid = own.horizontal.grid
    across = ("cell",) if isinstance(grid, Points | ReducedGrid) else ("latitude", "longitude")
    outer = ("time", "ensemble", "step") if trajectories else ("time", "ensemble")
    cells = sizes[-1:] if len(across) == 1 else grid.shape
    shape = (sizes[0], *sizes[2:-1], *cells)
    header = Header(own, (), tuple(DataVariable(name, (*outer, *across), shape, {}) for name in own.names), {})
    found: list[FieldBlock | RefusedVariable] = []
    for data in header.variables:
        try:
            found.append(_block(own, header, data, outer, across, names, timeless))
        except InputError as error:
            found.append(RefusedVariable(data.name, f"{header.place(data)}: {error}"))
    return found


def _block(
    file: AnemoiFile, header: Header, data: DataVariable, outer: tuple[str, ...], across: tuple[str, ...],
    names: NameMap, timeless: bool,
) -> FieldBlock:  # fmt: skip
    about = (file.attributes.get("variables_metadata") or {}).get(data.name) or {}
    given = names.given(data.name)
    variable = given or _variable(data.name, about, names)
    known = PARAMETERS.get(variable.name)
    units = about.get("units") or names.given_units(data.name) or (known.units if known and about.get("mars") else "")
    attributes = {"units": units} if units else {}
    mars = about.get("mars") or {}
    if mars.get("levtype") == "ml" and not given:
        attributes[LEVEL_ATTRIBUTE] = "hybrid"
    data = replace(data, attributes=attributes)
    count = int(np.prod(data.shape[: len(outer)], dtype=np.int64))
    member = Coordinate("ensemble", "number", ("ensemble",), None, {})
    size = data.shape[1]
    numbers = np.zeros(count, np.int64)
    if size > 1:
        stated = np.unique(mars.get("number") or [])
        complete = stated.dtype.kind == "i" and len(stated) == size
        numbers = data.broadcast(member, stated if complete else np.arange(1, size + 1), outer)
    processing = str(about.get("process") or "")
    process = _PROCESSES.get(processing, "")
    if processing and not process:
        raise InputError(f"its process is {processing}, which is not read")
    interval = _seconds(about["period"][1]) - _seconds(about["period"][0]) if about.get("period") and process else 0
    time = _times(file, header.place(data), 0 if timeless else interval)
    levels, hours = np.full(count, variable.level or SURFACE), given.period if given and not timeless else 0
    return FieldBlock(
        header, data, variable.name, outer, across, levels, numbers, time, file.horizontal,
        "" if timeless else process, hours=hours,
    )  # fmt: skip


def _variable(name: str, about: Mapping[str, Any], names: NameMap) -> Variable:
    """Return the variable that its description as in MARS or GRIB means, else its name, such as `t_850`."""
    mars = about.get("mars") or {}
    word = str((about.get("grib") or {}).get("shortName") or mars.get("param") or "")
    level = mars.get("levelist") if mars.get("levtype") in ("pl", "ml") else None
    if isinstance(level, list):
        raise InputError(f"it has the levels {level}, and a variable has one; write one variable for each")
    if not re.fullmatch(r"[A-Za-z0-9_]*[A-Za-z_][A-Za-z0-9_]*", word) or word == "unknown":
        match = _ON_PRESSURE.fullmatch(name)
        known = match and PARAMETERS.get(match[1])
        if match and known and known.has_levels and name not in PARAMETERS:
            return Variable(match[1], int(match[2]))
        word = names.short_name(name, {}, None)
    if level and mars.get("levtype") == "ml":
        return Variable(on_model_level(word, "hybrid", float(level)))
    return Variable(word, int(level)) if level else Variable(word)


def _times(file: AnemoiFile, place: str, interval: int) -> TimeCoordinates:
    """Return the times of fields that hold a statistic over the last `interval` seconds; 0 for instants."""

    def coordinate(
        name: str, role: Any, dimension: str, seconds: np.ndarray, attributes: Any, bounded: bool
    ) -> Coordinate:
        limits = np.stack([seconds - interval, seconds], -1)
        bounds = Coordinate(f"{name}_bounds", role, (dimension, "bounds"), limits, attributes)
        return Coordinate(name, role, (dimension,), seconds, attributes, bounds if interval and bounded else None)

    if "base_dates" not in file.dates:
        dates = file.dates["dates"].astype("datetime64[s]").astype(np.int64)
        return TimeCoordinates(place, None, coordinate("dates", "valid", "time", dates, _EPOCH, True), None)
    starts = file.dates["base_dates"].astype("datetime64[s]").astype(np.int64)
    steps = file.dates["steps"]
    steps = steps.astype("timedelta64[s]").astype(np.int64) if steps.dtype.kind == "m" else steps * 3600
    lead = coordinate("steps", "lead", "step", steps, {"units": "seconds"}, True)
    return TimeCoordinates(place, coordinate("base_dates", "start", "time", starts, _EPOCH, False), None, lead)


def _seconds(step: object) -> int:
    """Return the seconds of a step: a number of hours, or a text such as `6h`.

    >>> _seconds(6), _seconds("30m"), _seconds("1d")
    (21600, 1800, 86400)
    """
    if isinstance(step, int | float):
        return round(step * 3600)
    if match := re.fullmatch(r"(-?\d+)([smhd]?)", str(step)):
        return int(match[1]) * _SECONDS[match[2] or "h"]
    raise InputError(f"its period has the limit {step!r}, which is no number of hours; correct variables_metadata")


def _reduced_gaussian(north: np.ndarray, east: np.ndarray) -> ReducedGrid | None:
    """Return the reduced Gaussian grid of points from north to south, each row eastward around the globe from 0."""
    starts = np.flatnonzero(np.diff(north, prepend=np.inf) != 0)
    counts = np.diff([*starts, len(north)])
    rows = north[starts]
    if len(rows) < 4 or counts.min() < 4 or len({*counts.tolist()}) < 2 or (np.diff(rows) >= 0).any():
        return None
    if abs(rows + rows[::-1]).max() > COORDINATE_TOLERANCE or (counts != counts[::-1]).any():
        return None
    expected = np.concatenate([np.arange(count) * 360 / count for count in counts])
    return ReducedGrid.gaussian(rows.tolist(), counts.tolist()) if abs(east % 360 - expected).max() < 1e-3 else None
