"""The fields of a cube, to read samples from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from data_pipeline.formats.catalog import Catalog
from data_pipeline.formats.cube import Cube
from data_pipeline.protocols import Fields, MissingFields
from data_pipeline.task import Variable
from data_pipeline.variables.meaning import UNKNOWN, Meaning
from data_pipeline.variables.units import normalize_units


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
        found[init, lead] = MissingFields(names, number, str(file(channels[0], init)), int(own.sum()), own.size)
    return found


def _intervals(catalog: Catalog, cells: np.ndarray) -> tuple[int, ...]:
    """Return the interval of `cells` (init, lead, member) at each lead time; `UNKNOWN` if the intervals differ."""
    intervals = catalog.rows["interval"]
    found = (np.unique(intervals[rows[rows >= 0]]) for rows in np.moveaxis(cells, 1, 0))
    return tuple(int(values[0]) if len(values) == 1 else UNKNOWN for values in found)
