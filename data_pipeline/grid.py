"""Grid: latitudes and longitudes of a field, cell areas, and the comparison of two grids."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from data_pipeline.common.errors import InputError

COORDINATE_TOLERANCE = 2e-3
"""Greatest difference (degrees) between coordinates of the same grid in two files: GRIB1 rounds to 1e-3."""


@dataclass(frozen=True)
class Grid:
    """A regular latitude-longitude grid, north first, west to east.

    `latitudes` strictly decrease within [-90, 90]; `longitudes` strictly increase and span less than 360 degrees.
    """

    latitudes: tuple[float, ...]
    longitudes: tuple[float, ...]

    def __post_init__(self) -> None:
        for name in ("latitudes", "longitudes"):
            object.__setattr__(self, name, tuple(float(value) for value in getattr(self, name)))
            if not getattr(self, name):
                raise InputError(f"a grid needs at least one value in {name}, got none")
        lat, lon = np.array(self.latitudes), np.array(self.longitudes)
        if not np.isfinite(lat).all() or abs(lat).max() > 90 + COORDINATE_TOLERANCE:
            raise InputError(f"latitudes must lie within [-90, 90], got {lat.min()} to {lat.max()}")
        if (np.diff(lat) >= 0).any():
            raise InputError(f"latitudes must decrease strictly (north first), got {lat[:3].tolist()}...")
        if not np.isfinite(lon).all() or (np.diff(lon) <= 0).any():
            raise InputError(f"longitudes must increase strictly, got {lon[:3].tolist()}...")
        if lon[-1] - lon[0] >= 360 - COORDINATE_TOLERANCE:
            raise InputError(f"longitudes must span less than 360 degrees, got {lon[0]} to {lon[-1]}")

    @classmethod
    def regular(cls, rows: int, columns: int) -> Grid:
        """Return the global grid with `rows` latitudes from pole to pole (both included) and `columns` longitudes."""
        if rows < 3 or columns < 4:
            raise InputError(f"a global grid needs at least 3 x 4 points, got {rows} x {columns}")
        return cls(tuple(np.linspace(90, -90, rows)), tuple(np.arange(columns) * (360 / columns)))

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns, (H, W)."""
        return len(self.latitudes), len(self.longitudes)

    @property
    def cell_latitudes(self) -> np.ndarray:
        """The latitude of each cell, (H, 1)."""
        return np.array(self.latitudes)[:, None]

    @property
    def cell_longitudes(self) -> np.ndarray:
        """The longitude of each cell, (1, W), because each column of a grid has one longitude."""
        return np.array(self.longitudes)[None, :]

    @property
    def periodic(self) -> bool:
        """Whether the grid goes round the globe: its first column follows its last."""
        if len(self.longitudes) < 2:
            return False
        step = self.longitudes[1] - self.longitudes[0]
        gap = self.longitudes[0] + 360 - self.longitudes[-1]
        return abs(gap - step) < max(COORDINATE_TOLERANCE, 0.01 * step)

    @cached_property
    def weights(self) -> np.ndarray:
        """Area of a cell in each row, (H,), relative to the mean over rows.

        A cell extends half-way to its neighbours, at most to the pole, so a row at the pole has a small, positive area.
        """
        lat = np.array(self.latitudes)
        if len(lat) == 1:
            return np.ones(1)
        middle = (lat[:-1] + lat[1:]) / 2
        north, south = lat[0] + (lat[0] - lat[1]) / 2, lat[-1] - (lat[-2] - lat[-1]) / 2
        edges = np.sin(np.radians(np.clip(np.concatenate([[north], middle, [south]]), -90, 90)))
        area = edges[:-1] - edges[1:]
        return area / area.mean()

    def across_pole(self, end: int) -> int | None:
        """Return how rows continue across the pole beyond the northern (`end=0`) or southern (`end=-1`) edge.

        0: the next row is the edge row, rotated by 180°, because the pole is half a row beyond it. 1: the next row is
        the neighbour of the edge row, because the edge row is the pole. None: the grid does not reach the pole or is
        not periodic.
        """
        if not self.periodic or len(self.latitudes) < 2:
            return None
        inner = 1 if end == 0 else -2
        step = abs(self.latitudes[end] - self.latitudes[inner])
        beyond = 90 - abs(self.latitudes[end])
        if beyond < COORDINATE_TOLERANCE:
            return 1
        return 0 if beyond < 0.75 * step else None

    def coarsen(self) -> Grid:
        """Return the grid of every second row and column, starting with the first."""
        return Grid(self.latitudes[::2], self.longitudes[::2])

    def matches(self, other: Grid) -> bool:
        """Return whether two grids are equal up to `COORDINATE_TOLERANCE` and multiples of 360° (200°E is 160°W)."""
        if type(other) is not type(self) or self.shape != other.shape:
            return False
        north = np.subtract(self.latitudes, other.latitudes)
        east = (np.subtract(self.longitudes, other.longitudes) + 180) % 360 - 180
        return bool(max(abs(north).max(), abs(east).max()) <= COORDINATE_TOLERANCE)

    def __str__(self) -> str:
        (h, w), lat, lon = self.shape, self.latitudes, self.longitudes
        return f"{h} x {w} points, latitudes {lat[0]:g} to {lat[-1]:g}, longitudes {lon[0]:g} to {lon[-1]:g}"


def how_to_regrid(*grids: Grid) -> str:
    """Return the end of an error message about different grids, which says what the user can do."""
    if all(type(grid) is Grid for grid in grids):
        return "set data.archive.grid=ensemble to read all on the ensemble's grid (docs/data/grids.md)"
    return "bring all to the same points first; data.archive.grid is for regular and reduced grids"


def half_way(points: np.ndarray) -> np.ndarray:
    """Return the midpoints between points, and a point half a step beyond each end; a single point has step 1."""
    if len(points) == 1:
        return np.array([points[0] - 0.5, points[0] + 0.5])
    middle = (points[:-1] + points[1:]) / 2
    return np.concatenate([[2 * points[0] - middle[0]], middle, [2 * points[-1] - middle[-1]]])


def unit_vectors(latitudes: ArrayLike, longitudes: ArrayLike) -> np.ndarray:
    """Return positions on the unit sphere, (..., 3): sin φ, cos φ cos λ, cos φ sin λ."""
    lat, lon = np.radians(latitudes), np.radians(longitudes)
    return np.stack(np.broadcast_arrays(np.sin(lat), np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon)), axis=-1)
