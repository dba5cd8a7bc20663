"""A cube as fields for samples: read straight into the caller's array, with no xarray in between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from data_pipeline.formats.cube.catalog import Catalog, FieldReader
from data_pipeline.formats.cube.layout import Cube, Missing
from data_pipeline.grid import Grid
from data_pipeline.protocols import ALL
from data_pipeline.task import Variable


@dataclass(frozen=True, eq=False)
class CubeFields:
    """Fields whose row for (init, lead, member, channel) is that in `cells`, -1 if there is none."""

    source: FieldReader
    variables: tuple[Variable, ...]
    init_times: np.ndarray
    lead_times: tuple[int, ...]
    numbers: tuple[int, ...]
    cells: np.ndarray

    @property
    def grid(self) -> Grid:
        """Where the values lie; north first, west to east."""
        return self.source.grid

    def read(
        self, init: int, lead: int, out: np.ndarray, rows: slice = ALL, members: Sequence[int] | None = None
    ) -> None:
        """Fill `out` (M, C, h, W) with the forecast at positions `init` and `lead`; see `Fields`."""
        cells = self.cells[init, lead]
        self.source.read(cells if members is None else cells[np.array(members, np.intp)], out, (rows, ALL))


def ensemble_fields(catalog: Catalog, lead_times: Sequence[int], missing: Missing) -> CubeFields:
    """Open forecasts at `lead_times` (hours) as fields; what is missing is an error, or NaN (mask)."""
    cube = Cube.forecasts(catalog, lead_times, missing)
    return _fields(cube, cube.axes["init_time"], cube.axes["lead_time"], cube.axes["number"])


def analysis_fields(catalog: Catalog, missing: Missing) -> CubeFields:
    """Open analyses as forecasts of lead time 0 with one member, by the time for which they are valid."""
    cube = Cube.analyses(catalog, missing)
    return _fields(cube, cube.axes["time"], np.zeros(1, np.int64), np.zeros(1, np.int64))


def _fields(cube: Cube, starts: np.ndarray, lead_times: np.ndarray, numbers: np.ndarray) -> CubeFields:
    wanted = cube.catalog.wanted
    for variable in wanted:
        cube.catalog.units(variable.name)
    cells = cube.cells.reshape(len(wanted), len(starts), len(lead_times), len(numbers))
    return CubeFields(
        cube.catalog.source,
        wanted,
        starts.astype("datetime64[s]"),
        tuple(lead_times.tolist()),
        tuple(numbers.tolist()),
        np.ascontiguousarray(np.moveaxis(cells, 0, -1)),
    )
