"""Location-scale families: normal and logistic, plain and left-censored, and the base of bounded families."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from models.distribution.base import CRPSSlopes, Distribution, leading, root
from models.distribution.standard import Standard, StandardLogistic, StandardNormal


@dataclass(frozen=True, eq=False)
class LocationScale(Distribution):
    """Distribution of μ + σZ, where Z follows a symmetric `standard` distribution.

    σ is at least 7e-16 in float32, whose square can still be inverted, so that scores and gradients of a forecast
    with σ = 0 are large, but finite.

    >>> Normal(torch.zeros(1), torch.ones(1)).crps(torch.zeros(1))
    tensor([0.2337])
    """

    mu: Tensor
    sigma: Tensor
    standard: ClassVar[Standard]
    exported: ClassVar[bool] = True

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

    def crps_slopes(self, truth: Tensor) -> CRPSSlopes | None:
        """Formulas of F and f."""
        z = self._z(truth)
        density = 2 * self.standard.log_density(z).exp()
        by_sigma = self.sigma * (2 * self.standard.upper_mean(z) - self.standard.half_difference)
        return CRPSSlopes(
            1 - 2 * self.standard.cdf(z),
            by_sigma,
            density / self.sigma,
            density * z,
            by_sigma + self.sigma * density * z * z,
        )

    def affine(self, location: Tensor, scale: Tensor) -> Self:
        """Shift and scale."""
        return replace(self, mu=location + scale * self.mu, sigma=scale * self.sigma)

    def _z(self, value: Tensor) -> Tensor:
        return (value - self.mu) / self.sigma


@dataclass(frozen=True, eq=False)
class Normal(LocationScale):
    """Gaussian distribution with mean `mu` and standard deviation `sigma`."""

    standard: ClassVar[Standard] = StandardNormal()

    def raised(self, threshold: Tensor) -> CensoredNormal:
        """Return the distribution censored at the threshold."""
        return CensoredNormal(self.mu, self.sigma, threshold)


@dataclass(frozen=True, eq=False)
class Logistic(LocationScale):
    """Logistic distribution with mean `mu` and scale `sigma`; the standard deviation is σπ/√3."""

    standard: ClassVar[Standard] = StandardLogistic()

    def raised(self, threshold: Tensor) -> CensoredLogistic:
        """Return the distribution censored at the threshold."""
        return CensoredLogistic(self.mu, self.sigma, threshold)


@dataclass(frozen=True, eq=False)
class Bounded(LocationScale):
    """Base of the censored and truncated families, whose values are at least `lower`."""

    lower: Tensor

    def __post_init__(self) -> None:
        super().__post_init__()
        lower = torch.as_tensor(self.lower, dtype=self.mu.dtype).to(self.mu.device, non_blocking=True)
        object.__setattr__(self, "lower", lower.expand_as(self.mu))

    def crps_slopes(self, truth: Tensor) -> CRPSSlopes | None:
        """None: a bound changes the formulas."""
        return None

    def affine(self, location: Tensor, scale: Tensor) -> Self:
        """Shift and scale the distribution and its bound."""
        moved = super().affine(location, scale)
        return replace(moved, lower=location + scale * self.lower)


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
        return root(second - first * first)

    def quantile(self, level: Tensor) -> Tensor:
        """Inverse of `cdf`, at least `lower`."""
        return torch.maximum(super().quantile(level), self.lower)

    def cdf(self, value: Tensor) -> Tensor:
        """F(z), and zero below `lower`."""
        return torch.where(value < self.lower, 0, super().cdf(value))

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density above `lower`; at `lower` the logarithm of its probability."""
        censored = value <= self.lower
        # The unused formula gets μ: far from it, its gradient would be infinite.
        mass = self.standard.log_cdf(self._z(torch.where(censored, self.lower, self.mu)))
        return torch.where(censored, mass, super().log_prob(torch.where(censored, self.mu, value)))

    def crps(self, truth: Tensor, fair: float = False) -> Tensor:
        """CRPS of the uncensored distribution minus σ∫F² up to `lower`; a truth below `lower` adds its distance.

        The scores differ by this integral, because the censored distribution function is zero below `lower` (Jordan et
        al. 2019, doi:10.18637/jss.v090.i12).
        """
        slope, rest = self.standard.squared_cdf(self._z(self.lower))
        below = (self.lower - self.mu) * slope + self.sigma * rest
        return super().crps(torch.maximum(truth, self.lower)) - below + (self.lower - truth).clamp(min=0)

    def crps_slopes(self, truth: Tensor) -> CRPSSlopes | None:
        """Return those of the uncensored distribution minus those of σ∫F² up to `lower`."""
        plain = LocationScale.crps_slopes(self, torch.maximum(truth, self.lower))
        assert plain is not None
        z = self._z(self.lower)
        squared, rest = self.standard.squared_cdf(z)
        density = 2 * self.standard.cdf(z) * self.standard.log_density(z).exp()
        by_sigma = self.sigma * rest
        below = (-squared, by_sigma, density / self.sigma, density * z, by_sigma + self.sigma * density * z * z)
        return CRPSSlopes(*(whole - part for whole, part in zip(plain, below, strict=True)))

    def raised(self, threshold: Tensor) -> Self:
        """Return the distribution censored at the threshold, where this is the higher bound."""
        return replace(self, lower=torch.maximum(self.lower, threshold))

    @property
    def _origin(self) -> Tensor:
        """The larger of μ and `lower`: moments about it lose no digits, for any lower bound."""
        return torch.maximum(self.mu, self.lower)

    @property
    def _moments(self) -> tuple[Tensor, Tensor]:
        """First and second moment about the origin."""
        # Further out, all probability lies on one side, and squares would overflow in float32.
        standard, c = self.standard, self._z(self.lower).clamp(-1e9, 1e9)
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
