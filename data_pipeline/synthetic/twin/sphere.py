"""Spherical harmonics on a Gaussian grid: where the twin atmosphere takes its derivatives.

Arrays carry whatever they describe in their last dimensions, the batch last of all: a field is (W, H, ...,
B) with longitude first, a spectrum is (2N, N, ..., B) where row 2m holds the real and row 2m + 1 the
imaginary part of order m, and the second dimension is the degree n; N = truncation + 1. In this layout each
half of a transform is one matrix product over all fields and members at once. At T21 that is faster than an
FFT, and nothing is transposed.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from data_pipeline.legendre import legendre


class Sphere:
    """Triangular truncation and the Gaussian grid on which products of two fields are free of aliasing.

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
        """Eigenvalue -n(n + 1) of every degree, (1, N, 1, 1)."""
        self.mask = (degree >= degree.view(-1, 1)).repeat_interleave(2, 0).to(dtype).view(2 * N, N, 1, 1)
        """1 where a coefficient exists, (2N, N, 1, 1): n ≥ m, and order 0 is real."""
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
        """Return the spectrum of a field, or of `field / (1 - μ²)`, which costs no more."""
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
    """Cut a spectrum to a lower truncation, or fill it up with zeros to a higher one."""
    N = truncation + 1
    shared = min(N, spectrum.shape[1])
    resized = spectrum.new_zeros(2 * N, N, *spectrum.shape[2:])
    resized[: 2 * shared, :shared] = spectrum[: 2 * shared, :shared]
    return resized


def _legendre(truncation: int, mu: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return P_mn(μ) and (1 - μ²) dP_mn/dμ as two tables (order m, latitude, degree n).

    With ε_mn = √((n² - m²) / (4n² - 1)): (1 - μ²) dP_mn/dμ = (n + 1) ε_mn P_m,n-1 - n ε_m,n+1 P_m,n+1 (Belousov 1962).
    """
    N = truncation + 1
    m, n = np.arange(N)[:, None], np.arange(N + 1)[None]
    epsilon = np.sqrt(np.maximum(n**2 - m**2, 0) / (4 * n**2 - 1.0))
    # One degree more than kept: the slope of the last one needs it.
    values = legendre(N, mu, 1 - mu**2)[:N]
    slopes = np.zeros((N, len(mu), N))
    degrees = np.arange(N)
    slopes -= (degrees * epsilon[:, 1:])[:, None] * values[:, :, 1:]
    slopes[:, :, 1:] += ((degrees[1:] + 1) * epsilon[:, 1:N])[:, None] * values[:, :, : N - 1]
    return values[:, :, :N], slopes


def _interleave(real: np.ndarray, imaginary: np.ndarray) -> np.ndarray:
    """Columns re, im, re, im, ... from two matrices of one column per order."""
    return np.stack([real, imaginary], -1).reshape(len(real), -1)
