"""Cube: fields of a catalog by variable, time and member, to be read; missing and repeated fields are reported."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Literal

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.common.files import FileAddress, describe_state
from data_pipeline.common.identity import hash_of
from data_pipeline.common.messages import joined
from data_pipeline.formats.catalog import Catalog
from data_pipeline.formats.levels import level_of
from data_pipeline.formats.reader_versions import READER_VERSIONS
from data_pipeline.formats.regridded import regridded
from data_pipeline.formats.repeated_fields import refuse_contradictions, refuse_several_members
from data_pipeline.protocols import FieldReader, Fields, MissingFields
from data_pipeline.regridding.target import TargetGrid
from data_pipeline.task import Variable
from data_pipeline.variables.meaning import UNKNOWN, Meaning
from data_pipeline.variables.units import normalize_units

Missing = Literal["error", "mask"]
"""Whether a missing field raises an `InputError` or is NaN."""


@dataclass(frozen=True, eq=False)
class Cube:
    """Rows of a catalog by variable and position along `axes`, in `cells`; -1 where a field is missing.

    `levels` has the level of each variable (`formats.levels`). Fields are read on the grid of `target`; None keeps
    their grid, which must then be regular.
    """

    catalog: Catalog
    axes: Mapping[str, np.ndarray]
    cells: np.ndarray
    levels: tuple[str, ...]
    target: TargetGrid | None = None

    @classmethod
    def forecasts(
        cls, catalog: Catalog, lead_times: Sequence[int] | None, missing: Missing, target: TargetGrid | None = None
    ) -> Cube:
        """Arrange forecasts by `init_time`, `lead_time` (hours; None: all lead times) and `number`."""
        catalog = _at_lead_times(catalog, lead_times)
        rows = catalog.rows
        values = {
            "init_time": _times(rows),
            "lead_time": rows["step"].astype(np.int64) // 60,
            "number": rows["number"].astype(np.int64),
        }
        return cls.of(catalog, values, target)._checked(missing)

    @classmethod
    def analyses(cls, catalog: Catalog, missing: Missing, target: TargetGrid | None = None) -> Cube:
        """Arrange analyses by `time`: fields of lead time 0."""
        catalog = catalog.where(catalog.rows["step"] == 0)
        if not len(catalog.rows):
            raise InputError(f"{catalog} has forecasts but no analysis (step 0); name files of analyses")
        refuse_several_members(catalog, np.arange(len(catalog.rows)))
        return cls.of(catalog, {"time": _times(catalog.rows)}, target)._checked(missing)

    @classmethod
    def of(cls, catalog: Catalog, values: Mapping[str, np.ndarray], target: TargetGrid | None = None) -> Cube:
        """Arrange fields along the axes named in `values`, which holds the coordinate of each field.

        Different fields for one cell raise `InputError`, and so do several levels of a variable, and forecasts with
        more than half of the fields missing. Analyses may have many more times of one variable than of another.
        """
        levels = tuple(level_of(catalog, variable) for variable in range(len(catalog.wanted)))
        axes = {name: np.unique(value) for name, value in values.items()}
        shape = (len(catalog.wanted), *(len(axis) for axis in axes.values()))
        positions = [np.searchsorted(axis, values[name]) for name, axis in axes.items()]
        cell = np.ravel_multi_index((catalog.rows["variable"], *positions), shape)
        order = np.argsort(cell, kind="stable")
        repeated = np.flatnonzero(np.diff(cell[order]) == 0)
        if len(axes) > 1:
            _refuse_mostly_empty(catalog, target, ("variable", *axes), shape, len(cell) - len(repeated))
        _refuse_two_intervals(catalog, order[repeated], order[repeated + 1])
        refuse_contradictions(catalog, np.stack([order[repeated], order[repeated + 1]], 1))
        cells = np.full(shape, -1, np.int32)
        cells.ravel()[cell] = np.arange(len(cell))
        return cls(catalog, axes, cells, levels, target)

    @cached_property
    def reader(self) -> FieldReader:
        """The reader of the fields."""
        return regridded(self.catalog, self.target)

    @property
    def token(self) -> str:
        """A text that changes whenever the cube, one of its files or a reader changes."""
        states = [describe_state(path) for path in self.catalog.paths]
        return hash_of(self.cells.tobytes(), self.catalog.rows.tobytes(), READER_VERSIONS, states)

    def _checked(self, missing: Missing) -> Cube:
        if missing not in ("error", "mask"):
            raise InputError(f"missing must be error or mask, got {missing!r}")
        if missing == "error":
            self._refuse_holes()
        return self

    def _refuse_holes(self) -> None:
        """Raise an `InputError` that names the first missing field, if any."""
        holes = self.cells < 0
        if not holes.any():
            return
        variable, *position = np.unravel_index(int(holes.argmax()), holes.shape)
        values = (axis[k] for axis, k in zip(self.axes.values(), position, strict=True))
        where = ", ".join(f"{name} {_text(value)}" for name, value in zip(self.axes, values, strict=True))
        file, what = self.nearest_file(variable, position[0]), self.catalog.wanted[variable]
        raise InputError(
            f"{file} lacks {what} at {where}, the first of {holes.sum()} missing fields; complete the files, "
            "or name other variables, lead times or files"
        )

    def nearest_file(self, variable: np.intp | int, time: np.intp | int) -> FileAddress:
        """Return the file that should hold a missing field: it has the variable and time, or one of them."""
        times = self.cells.reshape(*self.cells.shape[:2], -1)
        for near in (times[variable, time], times[:, time], times[variable]):
            if (near >= 0).any():
                return self.catalog.paths[self.catalog.rows["file"][near[near >= 0][0]]]
        return self.catalog.paths[0]


def _times(rows: np.ndarray) -> np.ndarray:
    return rows["init"].astype("datetime64[s]").astype("datetime64[ns]")


def _at_lead_times(catalog: Catalog, lead_times: Sequence[int] | None) -> Catalog:
    """Return the fields at `lead_times`, which must exist; with None all fields, with steps in whole hours."""
    minutes = catalog.rows["step"]
    if lead_times is None:
        if odd := np.flatnonzero((minutes < 0) | (minutes % 60 > 0)).tolist():
            raise InputError(
                f"{catalog.place(odd[0])} is not valid a whole number of hours after its start; "
                "name the lead_times (in hours) to read"
            )
        return catalog
    leads = np.unique(np.array(lead_times, np.int64))
    if not leads.size:
        raise InputError(f"no lead time of {catalog} was requested; name at least one, in hours")
    there = np.unique(minutes)
    if absent := [lead for lead in leads.tolist() if lead * 60 not in there]:
        hours = ", ".join(f"{step / 60:g}" for step in there if step >= 0)
        has = f"it has {hours} h" if hours else "none of its lead times has a known length in hours"
        raise InputError(f"{catalog} has no lead time {joined(absent)} h; {has}")
    return catalog.where(np.isin(minutes, leads * 60))


def _refuse_mostly_empty(
    catalog: Catalog, target: TargetGrid | None, names: Sequence[str], shape: Sequence[int], filled: int
) -> None:
    """Raise `InputError` if more than half of a cube would be missing, before its memory is allocated."""
    fields = int(np.prod(shape, dtype=np.int64))
    if 2 * filled >= fields:
        return
    size = fields * np.prod(regridded(catalog, target).grid.shape) * 4 / 1e6
    sizes = " x ".join(f"{name} {count}" for name, count in zip(names, shape, strict=True))
    raise InputError(
        f"{catalog} has only {filled} of the {fields} fields that belong together ({sizes}, {size:.0f} MB): "
        f"{1 - filled / fields:.0%} are missing; name variables, lead times or files that go together"
    )


def _refuse_two_intervals(catalog: Catalog, first: np.ndarray, second: np.ndarray) -> None:
    """Raise `InputError` if two fields of one variable, time and member cover different time intervals."""
    intervals = catalog.rows["interval"]
    for k in np.flatnonzero(intervals[first] != intervals[second]).tolist():
        one, other = int(first[k]), int(second[k])
        lengths = sorted(int(intervals[row]) for row in (one, other))
        variable = catalog.wanted[catalog.rows["variable"][one]]
        names = " or ".join(str(replace(variable, period=length // 60)) for length in lengths if length > 0)
        hours = " and ".join(f"{length / 60:g}" if length >= 0 else "unknown" for length in lengths)
        raise InputError(
            f"{catalog.place(one)} and {catalog.place(other)} hold {variable} for the same time over intervals of "
            f"{hours} h; write {names or 'another variable'} in the task"
        )


def _text(value: np.generic) -> str:
    return str(value.astype("datetime64[m]")) if isinstance(value, np.datetime64) else str(value)


def fields_of(cube: Cube) -> Fields:
    """Return the fields of a cube; analyses are forecasts of lead time 0 with one member, that start then."""
    catalog, axes = cube.catalog, {"lead_time": np.zeros(1, np.int64), "number": np.zeros(1, np.int64), **cube.axes}
    starts = axes.get("init_time", axes.get("time"))
    leads, numbers = (tuple(axes[name].tolist()) for name in ("lead_time", "number"))
    by_variable = cube.cells.reshape(len(catalog.wanted), -1, len(leads), len(numbers))
    meanings = tuple(
        Meaning(variable, normalize_units(catalog.units(variable.name)[0]), _intervals(catalog, rows), level)
        for variable, rows, level in zip(catalog.wanted, by_variable, cube.levels, strict=True)
    )
    cells = np.ascontiguousarray(np.moveaxis(by_variable, 0, -1))
    missing = missing_fields(cells < 0, catalog.wanted, numbers, lambda channel, init: cube.nearest_file(channel, init))
    seconds = np.asarray(starts, "datetime64[s]")
    return Fields(cube.reader, catalog.wanted, seconds, leads, numbers, meanings, cells, partial(dict, missing))


def missing_fields(
    absent: np.ndarray, variables: Sequence[Variable], numbers: Sequence[int], file: Callable[[int, int], object]
) -> dict[tuple[int, int], MissingFields]:
    """Describe the fields of each forecast that are `absent` (start, lead time, member, channel).

    `file` returns the file that should hold the field of a channel at the position of a start.
    """
    found: dict[tuple[int, int], MissingFields] = {}
    for init, lead in np.argwhere(absent.any((2, 3))).tolist():
        own = absent[init, lead]
        channels = np.flatnonzero(own.any(0)).tolist()
        number, names = numbers[int(own[:, channels[0]].argmax())], tuple(str(variables[k]) for k in channels)
        empty = own.all(1)
        gone = tuple(np.array(numbers)[empty].tolist()) if (own.any(1) == empty).all() else ()
        found[init, lead] = MissingFields(names, number, str(file(channels[0], init)), int(own.sum()), own.size, gone)
    return found


def _intervals(catalog: Catalog, cells: np.ndarray) -> tuple[int, ...]:
    """Return the interval of `cells` (init, lead, member) at each lead time; `UNKNOWN` if the intervals differ."""
    intervals = catalog.rows["interval"]
    found = (np.unique(intervals[rows[rows >= 0]]) for rows in np.moveaxis(cells, 1, 0))
    return tuple(int(values[0]) if len(values) == 1 else UNKNOWN for values in found)
