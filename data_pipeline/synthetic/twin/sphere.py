"""Spherical harmonics on a Gaussian grid, and interpolation from this grid to the regular grid of the files.

A field is (W, H, ..., B), with longitude first and the batch last. A spectrum is (2N, N, ..., B) with
N = truncation + 1: position 2m of the first dimension holds the real part of order m, and 2m + 1 its imaginary part;
the second dimension is the degree n. In this layout, each half of a transform is one matrix product over all fields and
members. At T21 this is faster than an FFT, and nothing is transposed.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from data_pipeline.grid import Grid
from data_pipeline.grids.legendre import legendre


class Sphere:
    """Spherical harmonics up to a triangular truncation; on the Gaussian grid, products of two fields have no aliasing.

    f(λ, μ) = Σ_n [s_0n P_0n(μ) + 2 Σ_{m>0} Re(s_mn e^{imλ}) P_mn(μ)] with μ = sin(latitude) and ∫ P² dμ = 1.
    """

    def __init__(self, truncation: int, dtype: torch.dtype = torch.float32) -> None:
        self.truncation = truncation
        self.rows = 2 * math.ceil((3 * truncation + 1) / 4)
        self.columns = 2 * self.rows
        N, W = truncation + 1, self.columns

        mu, weights = (nodes[::-1].copy() for nodes in np.polynomial.legendre.leggauss(self.rows))
        self.latitudes = np.degrees(np.arcsin(mu))
        self.longitudes = np.arange(W) * 360 / W
        self.row_weights = weights / 2

        def tensor(values: np.ndarray) -> Tensor:
            return torch.tensor(np.ascontiguousarray(values), dtype=dtype)

        values, slopes = (np.repeat(table, 2, axis=0) for table in _legendre(truncation, mu))
        quadrature = values.transpose(0, 2, 1) * weights
        self._values, self._slopes = tensor(values), tensor(slopes)
        self._quadrature, self._quadrature_over_cos2 = tensor(quadrature), tensor(quadrature / (1 - mu**2))

        order = np.arange(N)
        angle = np.radians(self.longitudes)[:, None] * order
        cosine, sine = np.cos(angle), np.sin(angle)
        twice = np.where(order == 0, 1, 2)
        self._waves = tensor(_interleave(twice * cosine, -twice * sine))
        self._wave_slopes = tensor(_interleave(-twice * order * sine, -twice * order * cosine))
        self._projection = tensor(_interleave(cosine, -sine).T / W)

        self.mu = tensor(mu).view(1, -1, 1, 1)
        """sin(latitude), (1, H, 1, 1)."""
        self.cos2 = 1 - self.mu**2
        """cos²(latitude), (1, H, 1, 1)."""
        degree = torch.arange(N, dtype=dtype)
        self.laplacian = (-degree * (degree + 1)).view(1, -1, 1, 1)
        """Eigenvalue -n(n + 1) of each degree, (1, N, 1, 1)."""
        self.mask = (degree >= degree.view(-1, 1)).repeat_interleave(2, 0).to(dtype).view(2 * N, N, 1, 1)
        """1 where a coefficient exists (n ≥ m, order 0 is real), else 0; (2N, N, 1, 1)."""
        self.mask[1] = 0

    def to_grid(self, spectrum: Tensor) -> Tensor:
        """Return the field (W, H, ..., B) of a spectrum (2N, N, ..., B)."""
        return self._synthesis(spectrum, self._values, self._waves)

    def gradient(self, spectrum: Tensor) -> tuple[Tensor, Tensor]:
        """Return the fields ∂f/∂λ and (1 - μ²) ∂f/∂μ of a spectrum."""
        return (
            self._synthesis(spectrum, self._values, self._wave_slopes),
            self._synthesis(spectrum, self._slopes, self._waves),
        )

    def to_spectrum(self, field: Tensor, over_cos2: bool = False) -> Tensor:
        """Return the spectrum of `field`; with `over_cos2`, return that of `field / (1 - μ²)`, at the same cost."""
        quadrature = self._quadrature_over_cos2 if over_cos2 else self._quadrature
        orders = (self._projection @ field.reshape(self.columns, -1)).view(len(self.mask), self.rows, -1)
        return torch.bmm(quadrature, orders).view(*self.mask.shape[:2], *field.shape[2:])

    def mean(self, field: Tensor) -> Tensor:
        """Return the mean over the sphere of a field (W, H, ...)."""
        weights = torch.as_tensor(self.row_weights, dtype=field.dtype)
        return torch.tensordot(field.mean(0), weights, dims=([0], [0]))

    def _synthesis(self, spectrum: Tensor, meridional: Tensor, zonal: Tensor) -> Tensor:
        orders = torch.bmm(meridional, spectrum.reshape(*self.mask.shape[:2], -1))
        return (zonal @ orders.view(len(self.mask), -1)).view(self.columns, self.rows, *spectrum.shape[2:])


def resize(spectrum: Tensor, truncation: int) -> Tensor:
    """Return a spectrum at another truncation; coefficients are dropped, or new coefficients are zero."""
    N = truncation + 1
    shared = min(N, spectrum.shape[1])
    resized = spectrum.new_zeros(2 * N, N, *spectrum.shape[2:])
    resized[: 2 * shared, :shared] = spectrum[: 2 * shared, :shared]
    return resized


class Interpolation:
    """Interpolation from the Gaussian grid to `grid`, periodic in longitude and continuous across the poles.

    Beyond a pole, a meridian continues 180 degrees of longitude away, where east and west, and north and south, are
    swapped. Interpolation from four `points` is cubic, from two linear.
    """

    def __init__(self, sphere: Sphere, grid: Grid, points: int = 4) -> None:
        around = periodic_lagrange(sphere.longitudes, np.array(grid.longitudes), 360.0, points)
        # Angles on the great circle through both poles, from the north pole.
        down = 90 - sphere.latitudes
        circle = np.concatenate([down, 360 - down[::-1]])
        across = periodic_lagrange(circle, 90 - np.array(grid.latitudes), 360.0, points)
        # Columns of the matrix for the far side of the circle are flipped, so that north comes first.
        across = np.concatenate([across[:, : sphere.rows], across[:, sphere.rows :][:, ::-1]], axis=1)
        self._around, self._across = (torch.tensor(matrix, dtype=sphere.mu.dtype) for matrix in (around.T, across))
        self._poles = [row for row, latitude in enumerate(grid.latitudes) if abs(latitude) == 90]

    def __call__(self, fields: Tensor, vector: bool = False) -> Tensor:
        """Return fields (B, rows, columns) of the Gaussian grid as (B, H, W).

        At a pole, a scalar has one value for all longitudes. With `vector`, fields are wind components; they refer to
        the meridian of each point and change sign across a pole.
        """
        beyond = fields.roll(fields.shape[-1] // 2, dims=-1)
        result = self._across @ torch.cat([fields, -beyond if vector else beyond], 1) @ self._around
        if not vector:
            result[:, self._poles] = result[:, self._poles].mean(-1, keepdim=True)
        return result


def periodic_lagrange(knots: np.ndarray, targets: np.ndarray, period: float, points: int) -> np.ndarray:
    """Return the matrix (targets, knots) of Lagrange interpolation from the nearest knots, half of them on each side.

    `knots` increase within one period. Interpolation from 4 `points` is cubic, from 2 linear.
    """
    count = len(knots)
    left = np.searchsorted(knots, targets, side="right") - 1
    turns, index = np.divmod(left[:, None] + np.arange(points) - (points // 2 - 1), count)
    positions = knots[index] + period * turns
    matrix = np.zeros((len(targets), count))
    for k in range(points):
        others = np.delete(positions, k, axis=1)
        weight = np.prod((targets[:, None] - others) / (positions[:, k, None] - others), axis=1)
        np.add.at(matrix, (np.arange(len(targets)), index[:, k]), weight)
    return matrix


def _legendre(truncation: int, mu: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return P_mn(μ) and (1 - μ²) dP_mn/dμ as two tables (order m, latitude, degree n).

    With ε_mn = √((n² - m²) / (4n² - 1)): (1 - μ²) dP_mn/dμ = (n + 1) ε_mn P_m,n-1 - n ε_m,n+1 P_m,n+1 (Belousov 1962).
    """
    N = truncation + 1
    m, n = np.arange(N)[:, None], np.arange(N + 1)[None]
    epsilon = np.sqrt(np.maximum(n**2 - m**2, 0) / (4 * n**2 - 1.0))
    # The slope of the highest degree needs values of one more degree.
    values = legendre(N, mu, 1 - mu**2)[:N]
    slopes = np.zeros((N, len(mu), N))
    degrees = np.arange(N)
    slopes -= (degrees * epsilon[:, 1:])[:, None] * values[:, :, 1:]
    slopes[:, :, 1:] += ((degrees[1:] + 1) * epsilon[:, 1:N])[:, None] * values[:, :, : N - 1]
    return values[:, :, :N], slopes


def _interleave(real: np.ndarray, imaginary: np.ndarray) -> np.ndarray:
    """Return a matrix with columns re, im, re, im, ... from two matrices with one column per order."""
    return np.stack([real, imaginary], -1).reshape(len(real), -1)
