"""ReducedGrid: rows of equally spaced points, with fewer points in rows nearer to the poles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.grid import COORDINATE_TOLERANCE, Grid


@dataclass(frozen=True)
class ReducedGrid(Grid):
    """A global grid of latitude rows, north first; each row has its own number of points around the globe.

    `latitudes`, `longitudes` and `counts` hold the latitude, the first longitude and the number of points of each row.
    `edges` (rows + 1) are the latitudes of the rows' edges, from 90 to -90. A cell extends half-way to its neighbours
    in the row. Fields have the shape (1, points), one row after the other. They must be regridded to a regular grid
    when they are read (`data_pipeline.regridding`).
    """

    counts: tuple[int, ...] = ()
    edges: tuple[float, ...] = ()
    name: str = ""

    def __post_init__(self) -> None:
        rows = len(self.latitudes)
        if rows < 2 or len(self.counts) != rows or len(self.longitudes) != rows or len(self.edges) != rows + 1:
            raise InputError(f"the reduced grid {self.name} needs at least two rows, each with a number of points")
        if min(self.counts) < 2:
            raise InputError(f"each row of the reduced grid {self.name} needs at least two points")

    @classmethod
    def gaussian(cls, latitudes: Sequence[float], counts: Sequence[int]) -> ReducedGrid:
        """Return a reduced Gaussian grid; edges of cells are half-way between its latitudes, as in cdo."""
        rows = len(latitudes)
        octahedral = all(count == 20 + 4 * min(row, rows - 1 - row) for row, count in enumerate(counts))
        edges = (90.0, *(np.add(latitudes[:-1], latitudes[1:]) / 2).tolist(), -90.0)
        name = f"{'O' if octahedral else 'N'}{rows // 2}"
        return cls(tuple(map(float, latitudes)), (0.0,) * rows, tuple(counts), edges, name)

    @classmethod
    def healpix(cls, nside: int) -> ReducedGrid:
        """Return the HEALPix grid in ring order (Gorski et al. 2005, doi:10.1086/427976).

        All points have equal areas, so the edges of a row are chosen to give the row the area of its points.
        """
        ring = np.arange(1, 4 * nside)
        from_pole = np.minimum(ring, 4 * nside - ring)
        cap = from_pole < nside
        sine = np.where(cap, 1 - (from_pole / nside) ** 2 / 3, 0.0)
        sine = np.where(cap, np.sign(2 * nside - ring) * sine, (2 * nside - ring) * 2 / (3 * nside))
        counts = 4 * np.minimum(from_pole, nside)
        half = cap | ((ring - nside) % 2 == 0)
        area_north = np.concatenate([[0], np.cumsum(counts)]) / (12 * nside**2)
        return cls(
            tuple(np.degrees(np.arcsin(sine)).tolist()),
            tuple(np.where(half, 180 / counts, 0.0).tolist()),
            tuple(counts.tolist()),
            tuple(np.degrees(np.arcsin(np.clip(1 - 2 * area_north, -1, 1))).tolist()),
            f"H{nside}",
        )

    @property
    def shape(self) -> tuple[int, int]:
        """(1, points)."""
        return 1, sum(self.counts)

    @property
    def periodic(self) -> bool:
        """True, because all rows go round the globe."""
        return True

    @cached_property
    def starts(self) -> np.ndarray:
        """The position of each row's first point."""
        return np.concatenate([[0], np.cumsum(self.counts)[:-1]])

    def longitudes_of(self, row: int) -> np.ndarray:
        """Return the longitudes of a row's points, from its first point eastwards."""
        return self.longitudes[row] + np.arange(self.counts[row]) * (360 / self.counts[row])

    def matches(self, other: Grid) -> bool:
        """Return whether two grids are equal up to `COORDINATE_TOLERANCE`."""
        if not isinstance(other, ReducedGrid) or self.counts != other.counts:
            return False
        pairs = ((self.latitudes, other.latitudes), (self.longitudes, other.longitudes))
        return all(float(abs(np.subtract(*pair)).max()) <= COORDINATE_TOLERANCE for pair in pairs)

    def __str__(self) -> str:
        kind = {"O": "octahedral reduced Gaussian", "N": "reduced Gaussian", "H": "HEALPix"}[self.name[0]]
        return f"the {kind} grid {self.name} ({self.shape[1]} points)"
