"""The fields of a catalog, arranged for samples."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from data_pipeline.formats.catalog import Catalog
from data_pipeline.formats.cube import Cube, Missing
from data_pipeline.meaning import UNKNOWN, Meaning
from data_pipeline.protocols import Fields, MissingFields
from data_pipeline.regridding.target import TargetGrid
from data_pipeline.units import normalize_units


def forecast_fields(
    catalog: Catalog, lead_times: Sequence[int], missing: Missing, target: TargetGrid | None = None
) -> Fields:
    """Open the forecasts of a catalog at `lead_times` (hours), on the grid of `target`."""
    cube = Cube.forecasts(catalog, lead_times, missing, target)
    return _fields(cube, cube.axes["init_time"], cube.axes["lead_time"], cube.axes["number"])


def verifying_fields(catalog: Catalog, missing: Missing, target: TargetGrid | None = None) -> Fields:
    """Open the analyses of a catalog as forecasts of lead time 0 with one member; their start is the valid time."""
    cube = Cube.analyses(catalog, missing, target)
    return _fields(cube, cube.axes["time"], np.zeros(1, np.int64), np.zeros(1, np.int64))


def _fields(cube: Cube, starts: np.ndarray, lead_times: np.ndarray, numbers: np.ndarray) -> Fields:
    wanted = cube.catalog.wanted
    by_variable = cube.cells.reshape(len(wanted), len(starts), len(lead_times), len(numbers))
    meanings = tuple(
        Meaning(variable, normalize_units(cube.catalog.units(variable.name)[0]), _intervals(cube.catalog, rows), level)
        for variable, rows, level in zip(wanted, by_variable, cube.levels, strict=True)
    )
    cells = np.ascontiguousarray(np.moveaxis(by_variable, 0, -1))
    return Fields(
        cube.reader,
        wanted,
        starts.astype("datetime64[s]"),
        tuple(lead_times.tolist()),
        tuple(numbers.tolist()),
        meanings,
        cells,
        partial(dict, _incomplete(cube, cells, numbers)),
    )


def _intervals(catalog: Catalog, cells: np.ndarray) -> tuple[int, ...]:
    """Return the interval of `cells` (init, lead, member) at each lead time; `UNKNOWN` if the intervals differ."""
    intervals = catalog.rows["interval"]
    found = (np.unique(intervals[rows[rows >= 0]]) for rows in np.moveaxis(cells, 1, 0))
    return tuple(int(values[0]) if len(values) == 1 else UNKNOWN for values in found)


def _incomplete(cube: Cube, cells: np.ndarray, numbers: np.ndarray) -> dict[tuple[int, int], MissingFields]:
    """Describe the missing fields of each forecast of `cells` (init, lead, member, channel) that lacks one."""
    absent = cells < 0
    found: dict[tuple[int, int], MissingFields] = {}
    for init, lead in np.argwhere(absent.any((2, 3))).tolist():
        own = absent[init, lead]
        channels = np.flatnonzero(own.any(0)).tolist()
        number, file = int(numbers[own[:, channels[0]].argmax()]), str(cube.nearest_file(channels[0], init))
        names = tuple(str(cube.catalog.wanted[channel]) for channel in channels)
        found[init, lead] = MissingFields(names, number, file, int(own.sum()), own.size)
    return found
