"""CubeFields: read the fields of a cube directly into the caller's array, for samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from data_pipeline.formats.catalog import Catalog, FieldReader
from data_pipeline.formats.cube import Cube, Missing
from data_pipeline.grid import Grid
from data_pipeline.protocols import ALL
from data_pipeline.task import Variable


@dataclass(frozen=True, eq=False)
class CubeFields:
    """Implements `protocols.Fields`; `cells` (init, lead, member, channel) holds rows of the catalog, -1 if missing."""

    reader: FieldReader
    variables: tuple[Variable, ...]
    init_times: np.ndarray
    lead_times: tuple[int, ...]
    numbers: tuple[int, ...]
    cells: np.ndarray

    @classmethod
    def forecasts(cls, catalog: Catalog, lead_times: Sequence[int], missing: Missing) -> CubeFields:
        """Open the forecasts of a catalog at `lead_times` (hours)."""
        cube = Cube.forecasts(catalog, lead_times, missing)
        return cls._of(cube, cube.axes["init_time"], cube.axes["lead_time"], cube.axes["number"])

    @classmethod
    def analyses(cls, catalog: Catalog, missing: Missing) -> CubeFields:
        """Open the analyses of a catalog as forecasts of lead time 0 with one member; their start is the valid time."""
        cube = Cube.analyses(catalog, missing)
        return cls._of(cube, cube.axes["time"], np.zeros(1, np.int64), np.zeros(1, np.int64))

    @classmethod
    def _of(cls, cube: Cube, starts: np.ndarray, lead_times: np.ndarray, numbers: np.ndarray) -> CubeFields:
        wanted = cube.catalog.wanted
        for variable in wanted:
            cube.catalog.units(variable.name)  # raises where files disagree
        cells = cube.cells.reshape(len(wanted), len(starts), len(lead_times), len(numbers))
        return cls(
            cube.catalog.reader,
            wanted,
            starts.astype("datetime64[s]"),
            tuple(lead_times.tolist()),
            tuple(numbers.tolist()),
            np.ascontiguousarray(np.moveaxis(cells, 0, -1)),
        )

    @property
    def grid(self) -> Grid:
        """Latitudes and longitudes of the values; north first, west to east."""
        return self.reader.grid

    def read(
        self, init: int, lead: int, out: np.ndarray, rows: slice = ALL, members: Sequence[int] | None = None
    ) -> None:
        """Fill `out` (M, C, h, W) with the forecast at positions `init` and `lead`; see `Fields`."""
        cells = self.cells[init, lead]
        self.reader.read(cells if members is None else cells[np.array(members, np.intp)], out, (rows, ALL))
