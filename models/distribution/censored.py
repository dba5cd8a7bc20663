"""Left-censored distributions, for example of precipitation, and the threshold-weighted CRPS that they give."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from models.distribution.ensemble import Ensemble
from models.distribution.location_scale import Bounded, LocationScale, Logistic, Normal
from models.distribution.standard import Standard, StandardLogistic, StandardNormal


@dataclass(frozen=True, eq=False)
class Censored(Bounded):
    """Distribution of max(μ + σZ, lower): all probability below `lower` moves to this value.

    It suits a quantity that has a lower bound and often lies on it, such as precipitation.
    """

    @property
    def mean(self) -> Tensor:
        """Expectation."""
        return self._origin + self._moments[0]

    @property
    def std(self) -> Tensor:
        """Standard deviation."""
        first, second = self._moments
        return (second - first * first).clamp(min=0).sqrt()

    def quantile(self, level: Tensor) -> Tensor:
        """Inverse of `cdf`, at least `lower`."""
        return torch.maximum(super().quantile(level), self.lower)

    def cdf(self, value: Tensor) -> Tensor:
        """F(z), and zero below `lower`."""
        return torch.where(value < self.lower, 0, super().cdf(value))

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density above `lower`; at `lower` the logarithm of its probability."""
        return torch.where(value <= self.lower, self.standard.log_cdf(self._z(self.lower)), super().log_prob(value))

    def crps(self, truth: Tensor, fair: float = False) -> Tensor:
        """CRPS of the uncensored distribution minus σ∫F² up to `lower`; a truth below `lower` adds its distance.

        The scores differ by this integral, because the censored distribution function is zero below `lower` (Jordan et
        al. 2019, doi:10.18637/jss.v090.i12).
        """
        slope, rest = self.standard.squared_cdf(self._z(self.lower))
        below = (self.lower - self.mu) * slope + self.sigma * rest
        return super().crps(torch.maximum(truth, self.lower)) - below + (self.lower - truth).clamp(min=0)

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Independent draws."""
        return torch.maximum(super().sample(count, generator), self.lower)

    @property
    def _origin(self) -> Tensor:
        """The larger of μ and `lower`: moments about it lose no digits, for any lower bound."""
        return torch.maximum(self.mu, self.lower)

    @property
    def _moments(self) -> tuple[Tensor, Tensor]:
        """First and second moment about the origin."""
        standard, c = self.standard, self._z(self.lower)
        origin = c.clamp(min=0)
        mass, exceeding, first = standard.cdf(c), standard.cdf(-c), standard.upper_mean(c)
        gap = c - origin
        mean = gap * mass + first - origin * exceeding
        square = gap * gap * mass + standard.upper_square(c) - 2 * origin * first + origin * origin * exceeding
        return self.sigma * mean, self.sigma * self.sigma * square


@dataclass(frozen=True, eq=False)
class CensoredNormal(Censored):
    """Gaussian distribution, left-censored at `lower`."""

    standard: ClassVar[Standard] = StandardNormal()


@dataclass(frozen=True, eq=False)
class CensoredLogistic(Censored):
    """Logistic distribution, left-censored at `lower`."""

    standard: ClassVar[Standard] = StandardLogistic()


CENSORED: dict[type[LocationScale], type[Censored]] = {Normal: CensoredNormal, Logistic: CensoredLogistic}
"""Uncensored family to censored family."""


def threshold_weighted_crps(
    distribution: LocationScale | Ensemble, truth: Tensor, threshold: Tensor, fair: float = False
) -> Tensor:
    """∫ (F(x) - 1{y <= x})² dx over x >= `threshold` only, (*S) (Gneiting & Ranjan 2011, doi:10.1198/jbes.2010.08110).

    It is the CRPS of max(X, threshold) against max(y, threshold) (Allen et al. 2023, doi:10.1137/22M1532184): the CRPS
    of an ensemble with members raised to the threshold, or of a distribution censored there. `fair` is that of `crps`.

    >>> one = torch.ones(1)
    >>> threshold_weighted_crps(Normal(0 * one, one), -one, threshold=-100 * one) == Normal(0 * one, one).crps(-one)
    tensor([True])
    """
    truth = torch.maximum(truth, threshold)
    if isinstance(distribution, Ensemble):
        return Ensemble(torch.maximum(distribution.members, threshold)).crps(truth, fair)
    if isinstance(distribution, Censored):
        kind, threshold = type(distribution), torch.maximum(distribution.lower, threshold)
        return kind(distribution.mu, distribution.sigma, threshold).crps(truth)
    if type(distribution) not in CENSORED:
        raise TypeError(f"the threshold-weighted CRPS of a {type(distribution).__name__} has no closed form here")
    return CENSORED[type(distribution)](distribution.mu, distribution.sigma, threshold).crps(truth)
