"""The standard normal and the standard logistic distribution, as functions of torch tensors.

The other modules shift, scale, censor and truncate them. Each has the few functions from which all scores and moments
follow. Values and gradients stay finite for any z, however far from zero.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

SQRT_2, SQRT_PI, SQRT_2PI = math.sqrt(2), math.sqrt(math.pi), math.sqrt(2 * math.pi)


class Standard(Protocol):
    """A symmetric continuous distribution with density f and distribution function F around zero."""

    std: float
    """Standard deviation."""
    half_difference: float
    """E|X - X'| / 2 for two independent draws, which is the integral of F(1 - F)."""

    def cdf(self, z: Tensor) -> Tensor:
        """F(z)."""
        ...

    def quantile(self, level: Tensor) -> Tensor:
        """Inverse of F."""
        ...

    def log_density(self, z: Tensor) -> Tensor:
        """log f(z)."""
        ...

    def log_cdf(self, z: Tensor) -> Tensor:
        """log F(z)."""
        ...

    def upper_mean(self, z: Tensor) -> Tensor:
        """∫ t f(t) dt from z to infinity."""
        ...

    def upper_square(self, z: Tensor) -> Tensor:
        """∫ t² f(t) dt from z to infinity."""
        ...

    def squared_cdf(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """∫ F² dt from minus infinity to z, as (A, B) of A z + B, where A' z + B' is zero.

        In two parts, because the rounding errors of a huge A z would be larger than B.
        """
        ...


class StandardNormal:
    """Standard normal distribution, f = φ and F = Φ."""

    std = 1.0
    half_difference = 1 / SQRT_PI

    def cdf(self, z: Tensor) -> Tensor:
        """Φ(z)."""
        # Not torch.special.ndtr: its 1 + erf loses all digits of a small probability.
        return torch.erfc(z / -SQRT_2) / 2

    def quantile(self, level: Tensor) -> Tensor:
        """Φ⁻¹(level)."""
        return torch.special.ndtri(level)

    def log_density(self, z: Tensor) -> Tensor:
        """-z²/2 - log √2π."""
        return -z * z / 2 - math.log(SQRT_2PI)

    def log_cdf(self, z: Tensor) -> Tensor:
        """log Φ(z), also where Φ(z) underflows."""
        return torch.special.log_ndtr(z)

    def upper_mean(self, z: Tensor) -> Tensor:
        """φ(z)."""
        return torch.exp(-z * z / 2) / SQRT_2PI

    def upper_square(self, z: Tensor) -> Tensor:
        """z φ(z) + Φ(-z)."""
        return z * self.upper_mean(z) + self.cdf(-z)

    def squared_cdf(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """z Φ² + 2φΦ - Φ(√2 z)/√π."""
        cdf = self.cdf(z)
        return cdf * cdf, 2 * self.upper_mean(z) * cdf - self.cdf(SQRT_2 * z) / SQRT_PI


class StandardLogistic:
    """Standard logistic distribution, F(z) = 1/(1 + exp(-z)) and f = F(1 - F)."""

    std = math.pi / math.sqrt(3)
    half_difference = 1.0

    def cdf(self, z: Tensor) -> Tensor:
        """1/(1 + exp(-z))."""
        return torch.sigmoid(z)

    def quantile(self, level: Tensor) -> Tensor:
        """log(level/(1 - level))."""
        return torch.logit(level)

    def log_density(self, z: Tensor) -> Tensor:
        """log F(z) + log F(-z)."""
        return logsigmoid(z) + logsigmoid(-z)

    def log_cdf(self, z: Tensor) -> Tensor:
        """log F(z), also where F(z) underflows."""
        return logsigmoid(z)

    def upper_mean(self, z: Tensor) -> Tensor:
        """-F log F - (1 - F) log(1 - F): the entropy of a coin toss with probability F(z)."""
        return -torch.sigmoid(z) * logsigmoid(z) - torch.sigmoid(-z) * logsigmoid(-z)

    def upper_square(self, z: Tensor) -> Tensor:
        """a²F(-a) + 2a log(1 + exp(-a)) - 2 Li₂(-exp(-a)) for a = |z|, and π²/3 minus this where z < 0."""
        a = z.abs()
        tail = a * a * torch.sigmoid(-a) - 2 * a * logsigmoid(a) - 2 * _dilogarithm(-torch.exp(-a))
        return torch.where(z < 0, math.pi**2 / 3 - tail, tail)

    def squared_cdf(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Log(1 + exp(z)) - F."""
        cdf = torch.sigmoid(z)
        return cdf * cdf, self.upper_mean(z) - cdf + z * cdf * torch.sigmoid(-z)


def _dilogarithm(x: Tensor) -> Tensor:
    """Li₂(x) = -∫ log(1 - xt)/t dt over [0, 1] for -1 <= x <= 0 (https://dlmf.nist.gov/25.12.E2).

    The integrand is analytic except for t <= -1, so the error of Gauss-Legendre with 12 nodes is less than 1e-16.
    """
    total = torch.zeros_like(x)
    for node, factor in _DILOGARITHM:
        total = total - factor * torch.log1p(-x * node)
    return total


_DILOGARITHM = [
    ((node + 1) / 2, weight / (node + 1))
    for node, weight in zip(*(part.tolist() for part in np.polynomial.legendre.leggauss(12)), strict=True)
]
"""Nodes, and weights divided by nodes, of Gauss-Legendre between 0 and 1."""
