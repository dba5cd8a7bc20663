"""Inverse of the Laplacian on the whole sphere."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.formulas.sphere_derivatives import EARTH_RADIUS, Band, SphereDerivatives
from data_pipeline.grid import Grid


class InverseLaplacian:
    """Solves ∇²p = f - mean(f) for the field p whose mean is zero, on a `grid` that covers the globe.

    A Fourier transform in longitude leaves an equation in latitude for each zonal wavenumber m,

        d/dφ(cos φ dp/dφ) / cos φ - m² p / cos² φ = f_m,

    in second-order differences of fluxes through the circles of latitude between rows. The tridiagonal equations of the
    rows are solved for all wavenumbers at once (Thomas algorithm). At a pole, waves with m > 0 are zero. The equation
    is solved again for the residual f - ∇²p, with ∇² of fourth order, and the result is added (deferred correction): on
    33 x 64 points the error of waves of degree 6 falls from 1.6 % to 0.1 %.
    """

    def __init__(self, grid: Grid) -> None:
        if type(grid) is not Grid or None in (grid.across_pole(0), grid.across_pole(-1)):
            raise InputError(f"the inverse Laplacian needs a latitude-longitude grid of the globe, got {grid}")
        H, W = grid.shape
        self._sphere, self._all = SphereDerivatives(grid), slice(0, H)
        phi = np.radians(grid.latitudes)
        faces = np.concatenate([[np.pi / 2], (phi[:-1] + phi[1:]) / 2, [-np.pi / 2]])
        self._area = np.sin(faces[:-1]) - np.sin(faces[1:])
        flux = np.zeros(H + 1)
        flux[1:-1] = np.cos(faces[1:-1]) / (phi[:-1] - phi[1:])
        self._north, self._south = flux[:-1] / self._area, flux[1:] / self._area
        m = np.arange(W // 2 + 1)
        at_pole = np.isclose(np.abs(grid.latitudes), 90)
        with np.errstate(divide="ignore"):
            self._own = (
                -(self._north + self._south)[:, None] - m**2 / np.where(at_pole, np.inf, np.cos(phi))[:, None] ** 2
            )
        self._fixed = at_pole[:, None] & (m > 0)
        # The equation of m = 0 determines p up to a constant: the last row is set to zero, then the mean is subtracted.
        self._fixed[-1, 0] = True
        self._width = W

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """Return p (H, W) for f (H, W), in double precision; NaN everywhere if a value is missing."""
        if not np.isfinite(values).all():
            return np.full_like(values, np.nan)
        first = self._second_order(values)
        return first + self._second_order(values - self._sphere.laplacian(Band(first, 0), self._all))

    def _second_order(self, values: np.ndarray) -> np.ndarray:
        right = np.fft.rfft(values - self.mean(values), axis=1)
        right[self._fixed] = 0
        lower, pivots, upper = self._factors
        # Forward elimination from north to south, then substitution from south to north.
        for row in range(len(right)):
            if row:
                right[row] -= lower[row] * right[row - 1]
            right[row] /= pivots[row]
        for row in range(len(right) - 2, -1, -1):
            right[row] -= upper[row] * right[row + 1]
        found = np.fft.irfft(right, self._width, axis=1)
        return (found - self.mean(found)) * EARTH_RADIUS**2

    @cached_property
    def _factors(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Entries below the diagonal, pivots, and normalised entries above the diagonal, each (H, wavenumbers)."""
        free = ~self._fixed
        lower = self._north[:, None] * free
        pivots = np.where(free, self._own, 1)
        upper = self._south[:, None] * free
        for row in range(len(pivots)):
            if row:
                pivots[row] -= lower[row] * upper[row - 1]
            upper[row] /= pivots[row]
        return lower, pivots, upper

    def mean(self, values: np.ndarray) -> float:
        """Return the mean over the globe of a field (H, W)."""
        return float((values.mean(1) * self._area).sum() / self._area.sum())
