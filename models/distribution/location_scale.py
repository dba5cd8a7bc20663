"""Location-scale families: normal and logistic, and the base of bounded families."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from models.distribution.base import leading
from models.distribution.standard import Standard, StandardLogistic, StandardNormal


@dataclass(frozen=True, eq=False)
class LocationScale:
    """Distribution of μ + σZ, where Z follows a symmetric `standard` distribution.

    σ is at least 7e-16 in float32, whose square can still be inverted, so that scores and gradients of a forecast
    with σ = 0 are large, but finite.

    >>> Normal(torch.zeros(1), torch.ones(1)).crps(torch.zeros(1))
    tensor([0.2337])
    """

    mu: Tensor
    sigma: Tensor
    standard: ClassVar[Standard]

    def __post_init__(self) -> None:
        mu, sigma = torch.broadcast_tensors(self.mu, self.sigma)
        object.__setattr__(self, "mu", mu)
        object.__setattr__(self, "sigma", sigma.clamp(min=torch.finfo(sigma.dtype).tiny ** 0.4))

    @property
    def mean(self) -> Tensor:
        """μ."""
        return self.mu

    @property
    def std(self) -> Tensor:
        """σ times the standard deviation of Z."""
        return self.sigma * self.standard.std

    def quantile(self, level: Tensor) -> Tensor:
        """Inverse of `cdf`."""
        return self.mu + self.sigma * self.standard.quantile(leading(level, self.mu))

    def cdf(self, value: Tensor) -> Tensor:
        """F(z) with z = (value - μ)/σ."""
        return self.standard.cdf(self._z(value))

    def log_prob(self, value: Tensor) -> Tensor:
        """log f(z) - log σ with z = (value - μ)/σ."""
        return self.standard.log_density(self._z(value)) - torch.log(self.sigma)

    def crps(self, truth: Tensor, fair: float = False) -> Tensor:
        """E|X - y| - E|X - X'|/2 = (y - μ)(2F(z) - 1) + 2σ ∫_z^∞ t f(t) dt - σ E|Z - Z'|/2.

        With z = (y - μ)/σ. For the normal distribution this is σ[z(2Φ(z) - 1) + 2φ(z) - 1/√π] (Gneiting et
        al. 2005, doi:10.1175/MWR2904.1), for the logistic one σ[z - 2 log F(z) - 1] (Jordan et al. 2019,
        doi:10.18637/jss.v090.i12).
        """
        z, standard = self._z(truth), self.standard
        # y - μ instead of σz, because the gradient of σz by σ is a difference of large numbers.
        return (truth - self.mu) * (2 * standard.cdf(z) - 1) + self.sigma * (
            2 * standard.upper_mean(z) - standard.half_difference
        )

    def affine(self, location: Tensor, scale: Tensor) -> Self:
        """Shift and scale."""
        return replace(self, mu=location + scale * self.mu, sigma=scale * self.sigma)

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Independent draws."""
        return self.mu + self.sigma * self.standard.noise(self.mu, count, generator)

    def _z(self, value: Tensor) -> Tensor:
        return (value - self.mu) / self.sigma


@dataclass(frozen=True, eq=False)
class Normal(LocationScale):
    """Gaussian distribution with mean `mu` and standard deviation `sigma`."""

    standard: ClassVar[Standard] = StandardNormal()


@dataclass(frozen=True, eq=False)
class Logistic(LocationScale):
    """Logistic distribution with mean `mu` and scale `sigma`; the standard deviation is σπ/√3."""

    standard: ClassVar[Standard] = StandardLogistic()


@dataclass(frozen=True, eq=False)
class Bounded(LocationScale):
    """Base of the censored and truncated families, whose values are at least `lower`."""

    lower: Tensor

    def __post_init__(self) -> None:
        super().__post_init__()
        lower = torch.as_tensor(self.lower, dtype=self.mu.dtype).to(self.mu.device, non_blocking=True)
        object.__setattr__(self, "lower", lower.expand_as(self.mu))

    def affine(self, location: Tensor, scale: Tensor) -> Self:
        """Shift and scale the distribution and its bound."""
        moved = super().affine(location, scale)
        return replace(moved, lower=location + scale * self.lower)
