"""Derivatives on the sphere by finite differences, on any rows of a latitude-longitude grid.

All arrays are (h, W) in double precision: rows from north to south of one field. Values of a row depend on a few rows
around it only, so a tile has the same values as the whole grid, bit for bit.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid

EARTH_RADIUS = 6371229.0
"""Metres, as in ECMWF's model."""
EARTH_ROTATION = 7.292115e-5
"""Angular velocity, s⁻¹."""
WIDEST_STEP = 0.1
"""Longest step (radians of longitude) of an east-west difference; at most this near a pole."""


class Band(NamedTuple):
    """Values (h, W) of the rows from `first` on."""

    values: np.ndarray
    first: int

    def rows(self, rows: slice) -> np.ndarray:
        """Return the values of some rows of the grid, which the band includes."""
        return self.values[rows.start - self.first : rows.stop - self.first]


class SphereDerivatives:
    """Second-order differences on `grid`.

    - **East-west steps** are as long as north-south steps: towards a pole they span several columns, at most
      `WIDEST_STEP`. Columns there are so close that differences of neighbours would be rounding errors of the file.
      Waves with one oscillation round the globe are exact, because they are what cancels at a pole.
    - **Poles.** Differences continue across the pole. In a row at the pole, the gradient is that of the first wave of
      the next row; Laplacian, vorticity and divergence are mean fluxes through the circle around the pole.
    - **Edges** of a limited area: one-sided differences; the Laplacian is that of the next cell inside.
    """

    def __init__(self, grid: Grid) -> None:
        if type(grid) is not Grid or min(grid.shape) < 3:
            raise InputError(f"derivatives need a latitude-longitude grid of at least 3 x 3 points, got {grid}")
        self.grid = grid
        H, W = grid.shape
        phi, lam = np.radians(grid.latitudes), np.radians(grid.longitudes)
        self._across = grid.across_pole(0), grid.across_pole(-1)
        at_pole = np.zeros(H, bool)
        at_pole[[0, -1]] = [self._across[0] == 1, self._across[1] == 1]
        # The rows beyond the edges: across the pole, or the edge itself.
        beyond = [
            edge if over is None else pole - phi[inner]
            for edge, over, pole, inner in (
                (phi[0], self._across[0], np.pi, self._across[0] or 0),
                (phi[-1], self._across[1], -np.pi, -1 - (self._across[1] or 0)),
            )
        ]
        around = np.concatenate([[beyond[0]], phi, [beyond[1]]])
        self._sin, self._cos, self._at_pole = np.sin(phi), np.cos(phi), at_pole
        north, south = around[:-2] - phi, phi - around[2:]
        with np.errstate(divide="ignore", invalid="ignore"):
            # Weights of the differences to the row north and south; one of them is 0 at an edge.
            self._of_north = np.where(south > 0, np.where(north > 0, south / north, 0), 1) / (north + south)
            self._of_north[north <= 0] = 0
            self._of_south = np.where(north > 0, np.where(south > 0, north / south, 0), 1) / (north + south)
            self._of_south[south <= 0] = 0
            faces = (around[:-1] + around[1:]) / 2
            self._face_cos, self._face_sin = np.cos(faces), np.sin(faces)
            area = np.sin(faces[:-1]) - np.sin(faces[1:])
            self._area = np.where(area > 0, area, np.nan)
            self._flux_north = self._face_cos[:-1] / north / area
            self._flux_south = self._face_cos[1:] / south / area
        steps = np.abs(np.gradient(phi)) / np.maximum(self._cos, 1e-9) / np.median(np.diff(lam))
        widest = max(1, min(int(WIDEST_STEP / np.median(np.diff(lam))), (W - 1) // 2))
        self._stride = np.clip(np.rint(steps), 1, widest).astype(int)
        self._lam = lam

    def gradient(self, band: Band, rows: slice) -> tuple[np.ndarray, np.ndarray]:
        """Return the eastward and the northward derivative on `rows`, per metre.

        `band` has the rows within one row of `rows`.
        """
        east = self._east(band.rows(rows), rows) / self._circle(rows)
        for end, k in self._pole_rows(rows):
            ring = band.rows(slice(1, 2) if end == 0 else slice(self.grid.shape[0] - 2, self.grid.shape[0] - 1))[0]
            scale = 2 / len(ring) / (EARTH_RADIUS * self._cos[1 if end == 0 else -2])
            x, y = (ring * np.cos(self._lam)).sum() * scale, (ring * np.sin(self._lam)).sum() * scale
            east[k] = y * np.cos(self._lam) - x * np.sin(self._lam)
        above, here, below = self._around(band, rows)
        of_north, of_south = (weights[rows, None] for weights in (self._of_north, self._of_south))
        return east, ((above - here) * of_north + (here - below) * of_south) / EARTH_RADIUS

    def laplacian(self, band: Band, rows: slice) -> np.ndarray:
        """Return the Laplacian on `rows`, per square metre; `band` has the rows within two rows of `rows`."""
        H = self.grid.shape[0]
        first, last = 0 if self._across[0] is not None else 1, H if self._across[1] is not None else H - 1
        inner = slice(min(max(rows.start, first), last - 1), max(min(rows.stop, last), first + 1))
        above, here, below = self._around(band, inner)
        with np.errstate(invalid="ignore"):
            north, south = self._flux_north[inner, None], self._flux_south[inner, None]
            result = (above - here) * np.where(self._face_cos[inner, None] > 1e-9, north, 0)
            result -= (here - below) * np.where(self._face_cos[1:][inner, None] > 1e-9, south, 0)
        result += self._east_twice(here, inner)
        for end, k in self._pole_rows(inner):
            ring = (below if end == 0 else above)[k]
            face = self._face_cos[1] if end == 0 else self._face_cos[-2]
            step = abs(np.radians(self.grid.latitudes[1 if end == 0 else -2] - self.grid.latitudes[end]))
            result[k] = face / step / (1 - abs(self._face_sin[1 if end == 0 else -2])) * (ring.mean() - here[k])
        chosen = np.clip(np.arange(rows.start, rows.stop), inner.start, inner.stop - 1) - inner.start
        return result[chosen] / EARTH_RADIUS**2

    def vorticity(self, u: Band, v: Band, rows: slice) -> np.ndarray:
        """Return the relative vorticity on `rows`, s⁻¹; the bands have the rows within one row of `rows`."""
        return self._circulation(u, v, rows)

    def divergence(self, u: Band, v: Band, rows: slice) -> np.ndarray:
        """Return the divergence on `rows`, s⁻¹; the bands have the rows within one row of `rows`."""
        return self._circulation(Band(-v.values, v.first), u, rows)

    def coriolis(self, rows: slice) -> np.ndarray:
        """Return the Coriolis parameter of `rows`, (h, 1), s⁻¹."""
        return 2 * EARTH_ROTATION * self._sin[rows, None]

    def _circulation(self, along: Band, across: Band, rows: slice) -> np.ndarray:
        """Return the circulation around each cell divided by its area, from eastward and northward components."""
        above, here, below = self._around(along, rows)
        north, south = self._face_cos[:-1][rows, None], self._face_cos[1:][rows, None]
        flux = ((above + here) * north - (here + below) * south) / (2 * EARTH_RADIUS * self._area[rows, None])
        result = self._east(across.rows(rows), rows) / self._circle(rows) - flux
        for end, k in self._pole_rows(rows):
            ring, inner = (below if end == 0 else above)[k], 1 if end == 0 else -2
            cap = self._cos[inner] / (EARTH_RADIUS * (1 - abs(self._sin[inner])))
            result[k] = (ring.mean() if end == 0 else -ring.mean()) * cap
        return result

    def _pole_rows(self, rows: slice) -> list[tuple[int, int]]:
        """Return the end (0 north, -1 south) of each row at a pole, and its position in `rows`."""
        H = self.grid.shape[0]
        return [
            (end, row - rows.start)
            for end, row in ((0, 0), (-1, H - 1))
            if self._at_pole[row] and rows.start <= row < rows.stop
        ]

    def _circle(self, rows: slice) -> np.ndarray:
        """Return the radius of the circle of latitude of `rows`, (h, 1), metres; 1 in a row at the pole."""
        return np.where(self._at_pole, 1, EARTH_RADIUS * self._cos)[rows, None]

    def _around(self, band: Band, rows: slice) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the rows north of `rows`, `rows`, and the rows south of these."""
        H = self.grid.shape[0]
        parts = [band.rows(slice(max(rows.start - 1, 0), min(rows.stop + 1, H)))]
        if rows.start == 0:
            parts.insert(0, self._beyond(band, 0))
        if rows.stop == H:
            parts.append(self._beyond(band, H - 1))
        values = np.concatenate(parts)
        return values[:-2], values[1:-1], values[2:]

    def _beyond(self, band: Band, edge: int) -> np.ndarray:
        """Return the row beyond an edge of the grid, (1, W).

        Across a pole, components of a wind would change sign; they cross a face of length zero and do not count.
        """
        over = self._across[0 if edge == 0 else 1]
        inner = edge + (over or 0) * (1 if edge == 0 else -1)
        row = band.rows(slice(inner, inner + 1))
        if over is None:
            return row
        half = row.shape[1] // 2
        opposite = np.roll(row, half, 1)
        return opposite if row.shape[1] % 2 == 0 else (opposite + np.roll(row, half + 1, 1)) / 2

    def _east(self, values: np.ndarray, rows: slice) -> np.ndarray:
        """Return the derivative with respect to longitude (radians)."""
        out = np.empty_like(values)
        for where, columns in self._strides(rows):
            here = values[where]
            length = np.sin(columns.to_east) + np.sin(columns.to_west)
            out[where] = (here[:, columns.east] - here[:, columns.west]) / length
        return out

    def _east_twice(self, values: np.ndarray, rows: slice) -> np.ndarray:
        """Return the second derivative towards the east on the unit sphere."""
        out = np.empty_like(values)
        circle = np.where(self._at_pole, 1, self._cos)[rows, None]
        for where, columns in self._strides(rows):
            # At the edge of a limited area the centre is the next column inside.
            centre, east, west = columns.centre, columns.east[columns.centre], columns.west[columns.centre]
            to_east = 2 * np.sin(columns.to_east[centre] / 2)
            to_west = 2 * np.sin(columns.to_west[centre] / 2)
            here = values[where]
            slopes = (here[:, east] - here[:, centre]) / to_east - (here[:, centre] - here[:, west]) / to_west
            out[where] = slopes * 2 / (to_east + to_west)
        return out / circle**2

    def _strides(self, rows: slice) -> list[tuple[np.ndarray, _Columns]]:
        """Return for each stride of `rows` the positions of the rows and their columns."""
        own = self._stride[rows]
        return [(np.flatnonzero(own == stride), self._columns[stride]) for stride in np.unique(own).tolist()]

    @cached_property
    def _columns(self) -> dict[int, _Columns]:
        return {stride: self._neighbours(stride) for stride in np.unique(self._stride).tolist()}

    def _neighbours(self, stride: int) -> _Columns:
        W, lam = self.grid.shape[1], self._lam
        own = np.arange(W)
        if self.grid.periodic:
            east, west = (own + stride) % W, (own - stride) % W
            to_east, to_west = (lam[east] - lam) % (2 * np.pi), (lam - lam[west]) % (2 * np.pi)
            return _Columns(east, west, own, to_east, to_west)
        east, west = np.minimum(own + stride, W - 1), np.maximum(own - stride, 0)
        return _Columns(east, west, np.clip(own, stride, W - 1 - stride), lam[east] - lam, lam - lam[west])


class _Columns(NamedTuple):
    """For each column: the columns some steps east and west, the angles to these, the centre of a second difference."""

    east: np.ndarray
    west: np.ndarray
    centre: np.ndarray
    to_east: np.ndarray
    to_west: np.ndarray
