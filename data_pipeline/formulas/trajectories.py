"""Backward trajectories of air on the globe, and values of fields at their departure points."""

from __future__ import annotations

import math

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.formulas.sphere_derivatives import EARTH_RADIUS
from data_pipeline.grid import Grid

SUBSTEP_SECONDS = 6 * 3600
"""Longest step of a trajectory; in this time, air at 50 m s⁻¹ moves 10°."""
BEYOND = 2
"""Rows by which a field is continued across each pole, as many as cubic interpolation reads."""


class Trajectories:
    """Finds where the air at the points of a global `grid` was some time earlier, in spherical geometry.

    Between two wind fields, the wind changes linearly in time. A step follows the midpoint rule, a second-order
    Runge-Kutta method: the wind at a place gives the place half a step earlier, and the wind at that midpoint gives the
    place a full step earlier. Places are unit vectors, and winds are interpolated as three-dimensional vectors, so the
    poles need no special treatment.
    """

    def __init__(self, grid: Grid) -> None:
        over = (None, None) if type(grid) is not Grid else (grid.across_pole(0), grid.across_pole(-1))
        if over[0] is None or over[1] is None:
            raise InputError(f"trajectories need a latitude-longitude grid of the globe, got {grid}")
        H, W = grid.shape
        phi, lam = np.radians(grid.latitudes), np.radians(grid.longitudes)
        self._north = [over[0] + k for k in reversed(range(BEYOND))]
        self._south = [H - 1 - over[1] - k for k in range(BEYOND)]
        # The negative latitude increases with the row number, also in the rows beyond the poles.
        self._down = -np.concatenate([np.pi - phi[self._north], phi, -np.pi - phi[self._south]])
        self._first, self._step = lam[0], 2 * np.pi / W
        east = np.stack([-np.sin(lam), np.cos(lam), np.zeros(W)])[:, None]
        cos, sin = np.cos(phi)[:, None], np.sin(phi)[:, None]
        north = np.stack([-sin * np.cos(lam), -sin * np.sin(lam), cos + np.zeros((H, W))])
        self._east, self._up = np.broadcast_to(east, (3, H, W)), north
        self._points = np.stack([cos * np.cos(lam), cos * np.sin(lam), sin + np.zeros((H, W))])

    def departures(
        self, now: tuple[np.ndarray, np.ndarray], before: tuple[np.ndarray, np.ndarray], seconds: float
    ) -> np.ndarray:
        """Return the places (3, H, W), unit vectors, where the air was `seconds` earlier.

        `now` and `before` are the components (H, W) of the wind at both times, m s⁻¹.
        """
        last, first = (u * self._east + v * self._up for u, v in (now, before))
        steps = math.ceil(seconds / SUBSTEP_SECONDS)
        place, angle = self._points, seconds / steps / EARTH_RADIUS
        for step in range(steps):
            here, middle = (last + (step + part) / steps * (first - last) for part in (0, 0.5))
            midway = _on_sphere(place - angle / 2 * self._interpolated(here, place, cubic=False))
            place = _on_sphere(place - angle * self._interpolated(middle, midway, cubic=False))
        return place

    def values(self, field: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Return a field (H, W) at `places` (3, H, W), by cubic interpolation; NaN where a value it needs is NaN."""
        return self._interpolated(field[None], places, cubic=True)[0]

    def _interpolated(self, fields: np.ndarray, places: np.ndarray, cubic: bool) -> np.ndarray:
        """Return fields (K, H, W) at `places`, linear or cubic (Lagrange) in latitude and longitude."""
        K, _, W = fields.shape
        # With an odd number of columns, the opposite meridian lies half-way between two columns.
        beyond = (np.roll(fields, W // 2, 2) + np.roll(fields, (W + 1) // 2, 2)) / 2
        padded = np.concatenate([beyond[:, self._north], fields, beyond[:, self._south]], 1).reshape(K, -1)
        down = -np.arcsin(np.clip(places[2], -1, 1))
        across = (np.arctan2(places[1], places[0]) - self._first) / self._step % W
        offsets = range(-1, 3) if cubic else range(2)
        row = np.clip(np.searchsorted(self._down, down, side="right") - 1, 1, len(self._down) - 3)
        column = np.floor(across).astype(int)
        rows = [row + k for k in offsets]
        columns = [(column + k) % W for k in offsets]
        by_row = _lagrange([self._down[r] - down for r in rows])
        by_column = _lagrange([column + k - across for k in offsets])
        out = np.zeros((K, *down.shape))
        for r, weight in zip(rows, by_row, strict=True):
            along = sum(w * padded[:, r * W + c] for w, c in zip(by_column, columns, strict=True))
            out += weight * along
        return out


def _on_sphere(places: np.ndarray) -> np.ndarray:
    return places / np.sqrt((places * places).sum(0))


def _lagrange(distances: list[np.ndarray]) -> list[np.ndarray]:
    """Return Lagrange weights of values at `distances` for the interpolated value at distance 0."""
    weights = []
    for k, own in enumerate(distances):
        weight = np.ones_like(own)
        for other in distances[:k] + distances[k + 1 :]:
            weight = weight * other / (other - own)
        weights.append(weight)
    return weights
