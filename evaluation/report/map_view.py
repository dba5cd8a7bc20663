"""Map projections: where a cell of the grid is on a map, and which cell each pixel of a map shows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from data_pipeline.grid import Grid, half_way
from data_pipeline.grids.points import Points

WIDEST_AREA = 120.0
"""Points with a gap in longitude wider than this (degrees) are drawn as an area, others on the globe."""
PIXELS = 640
"""Width of a map in pixels."""
WIDE = 2 * np.sqrt(2)
"""Half the width of a globe of radius one in Mollweide's projection; half its height is half of it."""


@dataclass(frozen=True)
class MapView:
    """The part of the Earth that a map shows, in degrees; `globe` has Mollweide's equal-area projection.

    Another map shows degrees of longitude as long as they are at its middle. Its longitudes may lie beyond 180.
    """

    globe: bool
    west: float = -180.0
    east: float = 180.0
    south: float = -90.0
    north: float = 90.0

    @property
    def aspect(self) -> float:
        """Length of a unit of y by the length of a unit of x."""
        return 1.0 if self.globe else 1 / max(float(np.cos(np.radians((self.south + self.north) / 2))), 0.1)

    @property
    def box(self) -> tuple[float, float, float, float]:
        """Left, right, bottom and top of the map."""
        return (-WIDE, WIDE, -WIDE / 2, WIDE / 2) if self.globe else (self.west, self.east, self.south, self.north)

    def project(self, longitudes: np.ndarray, latitudes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return x and y of places; the longitudes of a globe are within [-180, 180]."""
        if not self.globe:
            return np.asarray(longitudes, float), np.asarray(latitudes, float)
        # 2 θ + sin 2θ = π sin φ has no closed form; the table is accurate to 1e-6.
        table = np.linspace(-np.pi / 2, np.pi / 2, 4001)
        theta = np.interp(np.sin(np.radians(latitudes)), (2 * table + np.sin(2 * table)) / np.pi, table)
        return WIDE / np.pi * np.radians(longitudes) * np.cos(theta), np.sqrt(2) * np.sin(theta)

    def places(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return longitudes and latitudes of points of the map, NaN outside the globe."""
        if not self.globe:
            return x, y
        with np.errstate(invalid="ignore", divide="ignore"):
            theta = np.arcsin(y / np.sqrt(2))
            longitudes = np.degrees(np.pi * x / (WIDE * np.cos(theta)))
            latitudes = np.degrees(np.arcsin(np.clip((2 * theta + np.sin(2 * theta)) / np.pi, -1, 1)))
        outside = ~(abs(longitudes) <= 180)
        return np.where(outside, np.nan, longitudes), np.where(outside, np.nan, latitudes)


@dataclass(frozen=True)
class Raster:
    """The pixels of a map of a grid: `cells` (rows, columns) is the index of the cell of each pixel, -1 without one."""

    view: MapView
    cells: np.ndarray

    def picture(self, field: np.ndarray) -> np.ndarray:
        """Return the values of all pixels, from the bottom row, masked where there is no cell and where it is NaN."""
        values = field.ravel()[self.cells]
        return np.ma.masked_where((self.cells < 0) | ~np.isfinite(values), values)

    @cached_property
    def stripes(self) -> np.ndarray:
        """Whether each pixel is on a line of the hatching."""
        rows, columns = np.indices(self.cells.shape)
        return np.asarray((rows + columns) % 10 < 2)


def view_of(grid: Grid) -> MapView:
    """Return the view of a grid: the whole globe for a grid around it, or for points around it."""
    if grid.periodic:
        return MapView(globe=True)
    latitudes = np.array(grid.latitudes)
    if isinstance(grid, Points):
        longitudes = centred_longitudes(grid)
        if float(np.ptp(longitudes)) > 360 - WIDEST_AREA:
            return MapView(globe=True)
        return MapView(False, *_limits(longitudes), *_limits(latitudes))
    west, *_, east = half_way(np.array(grid.longitudes))
    south, *_, north = np.sort(half_way(latitudes))
    return MapView(False, west, east, max(south, -90.0), min(north, 90.0))


@lru_cache(maxsize=4)
def raster_of(grid: Grid) -> Raster:
    """Return the pixels of a map of a grid of rows and columns."""
    view = view_of(grid)
    left, right, bottom, top = view.box
    height = max(8, round(PIXELS * (top - bottom) / (right - left) * view.aspect))
    x = left + (np.arange(PIXELS) + 0.5) / PIXELS * (right - left)
    y = bottom + (np.arange(height) + 0.5) / height * (top - bottom)
    longitudes, latitudes = view.places(*np.meshgrid(x, y))
    rows = _cell_indices(np.array(grid.latitudes), latitudes)
    own = np.array(grid.longitudes)
    if grid.periodic:
        longitudes = (longitudes - own[0] + 180 / len(own)) % 360 + own[0] - 180 / len(own)
    columns = _cell_indices(own, longitudes)
    return Raster(view, np.where((rows < 0) | (columns < 0), -1, rows * len(own) + columns))


def centred_longitudes(points: Points) -> np.ndarray:
    """Return longitudes without a jump inside the area of the points: they begin after the widest gap."""
    around = np.array(points.longitudes) % 360
    ordered = np.unique(around)
    gaps = np.diff(ordered, append=ordered[0] + 360)
    west = ordered[(int(gaps.argmax()) + 1) % len(ordered)]
    if gaps.max() < WIDEST_AREA:
        west = 180.0
    east = (around - west) % 360 + west
    return east - 360 * np.floor((east.mean() + 180) / 360)


def _cell_indices(centres: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the index of the cell around each value, -1 outside all cells; `centres` increase or decrease."""
    edges = half_way(centres)
    falling = edges[0] > edges[-1]
    index = np.searchsorted(edges[::-1] if falling else edges, values, side="right") - 1
    index = np.where((index < 0) | (index >= len(centres)) | ~np.isfinite(values), -1, index)
    return np.where(index < 0, -1, len(centres) - 1 - index) if falling else index


def _limits(values: np.ndarray) -> tuple[float, float]:
    """Return the ends of an axis with a margin around values that may be equal."""
    margin = max(0.08 * float(np.ptp(values)), 0.5)
    return float(values.min()) - margin, float(values.max()) + margin
