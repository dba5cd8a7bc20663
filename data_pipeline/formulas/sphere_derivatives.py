"""Derivatives on the sphere by finite differences, on any rows of a latitude-longitude grid.

All arrays are rows (h, W) of one field, from north to south, in double precision. Values in a row depend only on rows
within `REACH` of it, so a tile has the same values as the whole grid, bit for bit.
"""

from __future__ import annotations

from functools import cached_property
from math import factorial
from typing import NamedTuple

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid

EARTH_RADIUS = 6371229.0
"""Radius in metres, as in ECMWF's model."""
EARTH_ROTATION = 7.292115e-5
"""Angular velocity, s⁻¹."""
REACH = 2
"""Rows and columns on each side that a difference spans."""
WIDEST_STEP = 0.1
"""Longest step (radians of longitude) between the columns of an east-west difference."""


class Band(NamedTuple):
    """Values (h, W) of consecutive rows of the grid, beginning with row `first`."""

    values: np.ndarray
    first: int

    def rows(self, rows: slice) -> np.ndarray:
        """Return the values of some rows of the grid, which the band includes."""
        return self.values[rows.start - self.first : rows.stop - self.first]


class SphereDerivatives:
    """Fourth-order differences of five rows or columns on `grid`.

    - **East-west steps** are as long as north-south steps: towards a pole they span several columns, at most
      `WIDEST_STEP`. Columns there are so close that differences of neighbours would be rounding errors of the file.
      Differences are exact for zonal wavenumbers 1 and 2, whose terms cancel at a pole.
    - **Poles.** Differences continue across the pole. In a row at the pole, the gradient comes from zonal wavenumber 1
      of the next row; Laplacian, vorticity and divergence are mean fluxes through the circle around the pole.
    - **Edges** of a limited area: differences of three rows or columns, one-sided in the outermost row or column.
    """

    def __init__(self, grid: Grid) -> None:
        if type(grid) is not Grid or min(grid.shape) < 3:
            raise InputError(f"derivatives need a latitude-longitude grid of at least 3 x 3 points, got {grid}")
        self.grid = grid
        H, W = grid.shape
        self._phi, self._lam = np.radians(grid.latitudes), np.radians(grid.longitudes)
        self._sin, self._cos = np.sin(self._phi), np.cos(self._phi)
        self._across = grid.across_pole(0), grid.across_pole(-1)
        self._at_pole = np.zeros(H, bool)
        self._at_pole[[0, -1]] = [self._across[0] == 1, self._across[1] == 1]
        self._slope, self._curvature = self._row_weights()
        self._step = np.median(np.diff(self._lam))
        steps = np.abs(np.gradient(self._phi)) / np.maximum(self._cos, 1e-9) / self._step
        widest = max(1, min(int(WIDEST_STEP / self._step), (W - 1) // 2))
        self._stride = np.clip(np.rint(steps), 1, widest).astype(int)

    def gradient(self, band: Band, rows: slice) -> tuple[np.ndarray, np.ndarray]:
        """Return the eastward and the northward derivative on `rows`, per metre.

        For this and the other methods, `band` must include all rows within `REACH` of `rows`.
        """
        east = self._east(band.rows(rows), rows, 1) / self._circle(rows)
        for end, k in self._pole_rows(rows):
            ring = band.rows(slice(1, 2) if end == 0 else slice(self.grid.shape[0] - 2, self.grid.shape[0] - 1))[0]
            scale = 2 / len(ring) / (EARTH_RADIUS * self._cos[1 if end == 0 else -2])
            x, y = (ring * np.cos(self._lam)).sum() * scale, (ring * np.sin(self._lam)).sum() * scale
            east[k] = y * np.cos(self._lam) - x * np.sin(self._lam)
        return east, self._weighted(self._around(band, rows), self._slope[rows]) / EARTH_RADIUS

    def laplacian(self, band: Band, rows: slice) -> np.ndarray:
        """Return the Laplacian on `rows`, per square metre: (∂²/∂λ² / cos²φ + ∂²/∂φ² - tan φ ∂/∂φ) / a²."""
        around = self._around(band, rows)
        with np.errstate(divide="ignore", invalid="ignore"):
            tangent = np.where(self._at_pole, 0, self._sin / self._cos)[rows, None]
        result = self._weighted(around, self._curvature[rows])
        result -= tangent * self._weighted(around, self._slope[rows])
        result += self._east(band.rows(rows), rows, 2) / np.where(self._at_pole, 1, self._cos)[rows, None] ** 2
        for end, k in self._pole_rows(rows):
            here, ring = around[k + REACH], around[k + REACH + (1 if end == 0 else -1)]
            inner = 1 if end == 0 else -2
            step = abs(self._phi[inner] - self._phi[end])
            face = (self._phi[inner] + self._phi[end]) / 2
            result[k] = np.cos(face) / step / (1 - abs(np.sin(face))) * (ring.mean() - here)
        return result / EARTH_RADIUS**2

    def vorticity(self, u: Band, v: Band, rows: slice) -> np.ndarray:
        """Return the relative vorticity on `rows`, s⁻¹: (∂v/∂λ - ∂(u cos φ)/∂φ) / (a cos φ)."""
        return self._circulation(u, v, rows)

    def divergence(self, u: Band, v: Band, rows: slice) -> np.ndarray:
        """Return the divergence on `rows`, s⁻¹: (∂u/∂λ + ∂(v cos φ)/∂φ) / (a cos φ)."""
        return self._circulation(Band(-v.values, v.first), u, rows)

    def coriolis(self, rows: slice) -> np.ndarray:
        """Return the Coriolis parameter of `rows`, (h, 1), s⁻¹."""
        return 2 * EARTH_ROTATION * self._sin[rows, None]

    def coriolis_gradient(self, rows: slice) -> np.ndarray:
        """Return the northward derivative of the Coriolis parameter on `rows`, (h, 1), m⁻¹ s⁻¹."""
        return 2 * EARTH_ROTATION / EARTH_RADIUS * self._cos[rows, None]

    def _circulation(self, along: Band, across: Band, rows: slice) -> np.ndarray:
        """Return the circulation around each cell divided by its area, from eastward and northward components."""
        # Beyond a pole, the component and the cosine of the continued latitude change sign, but their product does not.
        own = along.values * self._cos[along.first : along.first + len(along.values), None]
        around = self._around(Band(own, along.first), rows)
        result = self._east(across.rows(rows), rows, 1) - self._weighted(around, self._slope[rows])
        result /= self._circle(rows)
        for end, k in self._pole_rows(rows):
            # Circulation around the next row's circle of latitude, divided by the area inside the circle.
            ring, inner = around[k + REACH + (1 if end == 0 else -1)], 1 if end == 0 else -2
            result[k] = (1 if end == 0 else -1) * ring.mean() / (EARTH_RADIUS * (1 - abs(self._sin[inner])))
        return result

    def _row_weights(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the weights (H, 5) of five rows around each row, for the first and second derivative by latitude."""
        H = self.grid.shape[0]
        around = np.full(H + 2 * REACH, np.nan)
        around[REACH:-REACH] = self._phi
        for k in range(REACH):
            north, south = self._across
            if north is not None:
                around[REACH - 1 - k] = np.pi - self._phi[k + north]
            if south is not None:
                around[H + REACH + k] = -np.pi - self._phi[H - 1 - k - south]
        slope, curvature = np.zeros((2, H, 2 * REACH + 1))
        for row in range(H):
            places = around[row : row + 2 * REACH + 1] - self._phi[row]
            known = np.flatnonzero(np.isfinite(places))
            if len(known) < len(places):  # an edge: use the three nearest rows
                known = known[np.argsort(abs(places[known]), kind="stable")[:3]]
            slope[row, known] = _difference_weights(places[known], 1)
            curvature[row, known] = _difference_weights(places[known], 2)
        return slope, curvature

    def _pole_rows(self, rows: slice) -> list[tuple[int, int]]:
        """Return the end (0 north, -1 south) of each row at a pole, and its position in `rows`."""
        H = self.grid.shape[0]
        return [
            (end, row - rows.start)
            for end, row in ((0, 0), (-1, H - 1))
            if self._at_pole[row] and rows.start <= row < rows.stop
        ]

    def _circle(self, rows: slice) -> np.ndarray:
        """Return the radius of each row's circle of latitude, (h, 1), metres; 1 in a row at the pole."""
        return np.where(self._at_pole, 1, EARTH_RADIUS * self._cos)[rows, None]

    def _around(self, band: Band, rows: slice) -> np.ndarray:
        """Return `rows` of a field that keeps its sign across a pole, and `REACH` rows on each side, (h + 4, W)."""
        H = self.grid.shape[0]
        first, last = rows.start - REACH, rows.stop + REACH
        inner = band.rows(slice(max(first, 0), min(last, H)))
        north = [self._beyond(band, -1 - row, 0) for row in range(first, min(0, last))]
        south = [self._beyond(band, row - H, 1) for row in range(max(H, first), last)]
        return np.concatenate([*north, inner, *south])

    def _beyond(self, band: Band, distance: int, end: int) -> np.ndarray:
        """Return the row (1, W) that is `distance` + 1 rows beyond the northern (0) or southern (1) edge.

        Beyond the edge of a limited area the row is zero, and its weight is zero too.
        """
        H, W = self.grid.shape
        over = self._across[end]
        if over is None:
            return np.zeros((1, W))
        inner = distance + over if end == 0 else H - 1 - distance - over
        row = band.rows(slice(inner, inner + 1))
        opposite = np.roll(row, W // 2, 1)
        return opposite if W % 2 == 0 else (opposite + np.roll(row, W // 2 + 1, 1)) / 2

    def _weighted(self, around: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return for each row the weighted sum of five rows; `around` is (h + 4, W), `weights` (h, 5)."""
        height = len(weights)
        return sum(weights[:, k, None] * around[k : k + height] for k in range(2 * REACH + 1))

    def _east(self, values: np.ndarray, rows: slice, order: int) -> np.ndarray:
        """Return the derivative of `order` 1 or 2 with respect to longitude (radians)."""
        out = np.empty_like(values)
        own = self._stride[rows]
        for stride in np.unique(own).tolist():
            where = np.flatnonzero(own == stride)
            part = slice(where[0], where[-1] + 1) if where[-1] - where[0] == len(where) - 1 else where
            out[part] = (self._east_slope if order == 1 else self._east_curvature)(values[part], self._columns[stride])
        return out

    def _east_slope(self, values: np.ndarray, columns: _Columns) -> np.ndarray:
        result = values[:, columns.east] - values[:, columns.west]
        if not len(columns.wide):
            return result / (np.sin(columns.to_east) + np.sin(columns.to_west))
        near, far = columns.slope
        wide = near * result[:, columns.wide]
        wide += far * (values[:, columns.further_east] - values[:, columns.further_west])
        if len(columns.wide) == values.shape[1]:
            return wide
        result /= np.sin(columns.to_east) + np.sin(columns.to_west)
        result[:, columns.wide] = wide
        return result

    def _east_curvature(self, values: np.ndarray, columns: _Columns) -> np.ndarray:
        east, west = values[:, columns.east], values[:, columns.west]
        near, far = columns.curvature
        wide = columns.wide
        twice = 2 * values[:, wide]
        inner = near * ((east + west)[:, wide] - twice)
        inner += far * (values[:, columns.further_east] + values[:, columns.further_west] - twice)
        if len(wide) == values.shape[1]:
            return inner
        # At the edge of a limited area, the difference is centred on a column further inside.
        centre = columns.centre
        to_east, to_west = 2 * np.sin(columns.to_east[centre] / 2), 2 * np.sin(columns.to_west[centre] / 2)
        here = values[:, centre]
        result = (east[:, centre] - here) / to_east - (here - west[:, centre]) / to_west
        result *= 2 / (to_east + to_west)
        result[:, wide] = inner
        return result

    @cached_property
    def _columns(self) -> dict[int, _Columns]:
        return {stride: self._neighbours(stride) for stride in np.unique(self._stride).tolist()}

    def _neighbours(self, stride: int) -> _Columns:
        W, lam = self.grid.shape[1], self._lam
        own, h = np.arange(W), stride * self._step
        even = 4 * stride < W and np.allclose(np.diff(lam), self._step, rtol=1e-3)
        if self.grid.periodic:
            east, west, centre = (own + stride) % W, (own - stride) % W, own
            to_east, to_west = (lam[east] - lam) % (2 * np.pi), (lam - lam[west]) % (2 * np.pi)
            wide = own if even else own[:0]
        else:
            east, west = np.minimum(own + stride, W - 1), np.maximum(own - stride, 0)
            centre = np.clip(own, stride, W - 1 - stride)
            to_east, to_west = lam[east] - lam, lam - lam[west]
            wide = own[2 * stride : W - 2 * stride] if even else own[:0]
        slope = curvature = np.zeros(2)
        if even:
            slope = np.linalg.solve([[2 * np.sin(k * m * h) for k in (1, 2)] for m in (1, 2)], [1, 2])
            curvature = np.linalg.solve([[2 * np.cos(k * m * h) - 2 for k in (1, 2)] for m in (1, 2)], [-1, -4])
        further_east, further_west = (wide + 2 * stride) % W, (wide - 2 * stride) % W
        return _Columns(
            east, west, centre, to_east, to_west, wide, further_east, further_west, tuple(slope), tuple(curvature)
        )


class _Columns(NamedTuple):
    """For each column, the columns that its differences use.

    `east` and `west` are its neighbours, `to_east` and `to_west` the angles to them, and `centre` is the centre of a
    second difference. `wide` are the columns that also have neighbours at twice the distance, `further_east` and
    `further_west`; `slope` and `curvature` are the weights of the near and the far neighbours in their derivatives.
    """

    east: np.ndarray
    west: np.ndarray
    centre: np.ndarray
    to_east: np.ndarray
    to_west: np.ndarray
    wide: np.ndarray
    further_east: np.ndarray
    further_west: np.ndarray
    slope: tuple[float, ...]
    curvature: tuple[float, ...]


def _difference_weights(places: np.ndarray, order: int) -> np.ndarray:
    """Return weights of values at n `places` for the derivative at 0, exact for polynomials of degree below n."""
    powers = np.arange(len(places))
    scale = abs(places).max()
    right = np.where(powers == order, factorial(order), 0)
    return np.linalg.solve((places / scale)[None] ** powers[:, None], right) / scale**order
