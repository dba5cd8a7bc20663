"""Predictive distributions that score themselves.

Every kind is a small frozen class over tensors of one shape. `crps` holds the formula once, for training, for
evaluation and for tests alike; the raw ensemble is a distribution like any other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, Self

import torch
from torch import Tensor

from models.standard import Standard, StandardLogistic, StandardNormal


class Distribution(Protocol):
    """A univariate distribution for every element of a tensor shape `(*S)`.

    A new kind owes all of these; `tests/models/test_distribution.py` checks them against each other, against
    sampling and against a published library.
    """

    @property
    def mean(self) -> Tensor:
        """Expectation, (*S)."""
        ...

    @property
    def std(self) -> Tensor:
        """Standard deviation, (*S)."""
        ...

    def quantile(self, level: Tensor) -> Tensor:
        """Values that are not exceeded with probability `level`: level (K,) gives (K, *S)."""
        ...

    def cdf(self, value: Tensor) -> Tensor:
        """Probability of not exceeding `value`, (*S)."""
        ...

    def log_prob(self, value: Tensor) -> Tensor:
        """Logarithm of the density (of the probability, at a point mass), (*S)."""
        ...

    def crps(self, truth: Tensor, fair: bool = False) -> Tensor:
        """Continuous ranked probability score against `truth`, (*S); NaN where the truth is NaN.

        `fair` asks what an ensemble of this kind would score had it infinitely many members (Ferro 2014,
        doi:10.1002/qj.2270); a closed form has no members and gives the same number either way.
        """
        ...

    def affine(self, location: Tensor, scale: Tensor) -> Distribution:
        """Distribution of `location + scale * X`, scale > 0."""
        ...

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Independent draws, (count, *S)."""
        ...


@dataclass(frozen=True, eq=False)
class LocationScale:
    """Distribution of μ + σZ, where Z follows a symmetric `standard` distribution.

    σ may shrink to zero: it then counts as a value whose square can still be inverted (7e-16 in float32),
    so that scores and gradients of a forecast without any doubt may be large, but are numbers.
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
        return self.mu + self.sigma * self.standard.quantile(_leading(level, self.mu))

    def cdf(self, value: Tensor) -> Tensor:
        """F(z) with z = (value - μ)/σ."""
        return self.standard.cdf(self._z(value))

    def log_prob(self, value: Tensor) -> Tensor:
        """log f(z) - log σ with z = (value - μ)/σ."""
        return self.standard.log_density(self._z(value)) - torch.log(self.sigma)

    def crps(self, truth: Tensor, fair: bool = False) -> Tensor:
        """E|X - y| - E|X - X'|/2 = (y - μ)(2F(z) - 1) + 2σ ∫ t f(t) dt from z on - σ E|Z - Z'|/2.

        With z = (y - μ)/σ. For the normal distribution this is σ[z(2Φ(z) - 1) + 2φ(z) - 1/√π] (Gneiting et
        al. 2005, doi:10.1175/MWR2904.1), for the logistic one σ[z - 2 log F(z) - 1] (Jordan et al. 2019,
        doi:10.18637/jss.v090.i12).
        """
        z, standard = self._z(truth), self.standard
        # y - μ instead of σz: this way the gradient by σ is not a difference of large numbers.
        return (truth - self.mu) * (2 * standard.cdf(z) - 1) + self.sigma * (
            2 * standard.upper_mean(z) - standard.half_difference
        )

    def affine(self, location: Tensor, scale: Tensor) -> Self:
        """Shift and stretch."""
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
class Censored(LocationScale):
    """Distribution of max(μ + σZ, lower): all probability below `lower` sits on this one value.

    The law of a quantity that cannot fall below a bound but often lies on it, such as precipitation.
    """

    lower: Tensor

    def __post_init__(self) -> None:
        super().__post_init__()
        lower = torch.as_tensor(self.lower, dtype=self.mu.dtype, device=self.mu.device)
        object.__setattr__(self, "lower", lower.expand_as(self.mu))

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

    def crps(self, truth: Tensor, fair: bool = False) -> Tensor:
        """Score of the uncensored distribution less σ∫F² up to `lower`; a truth below adds its distance.

        Only there the two differ: the censored distribution function is zero (Jordan et al. 2019,
        doi:10.18637/jss.v090.i12).
        """
        slope, rest = self.standard.squared_cdf(self._z(self.lower))
        below = (self.lower - self.mu) * slope + self.sigma * rest
        return super().crps(torch.maximum(truth, self.lower)) - below + (self.lower - truth).clamp(min=0)

    def affine(self, location: Tensor, scale: Tensor) -> Self:
        """Shift and stretch, the censoring point too."""
        moved = super().affine(location, scale)
        return replace(moved, lower=location + scale * self.lower)

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Independent draws."""
        return torch.maximum(super().sample(count, generator), self.lower)

    @property
    def _origin(self) -> Tensor:
        """The larger of μ and `lower`: moments about it lose no digits, wherever the censoring point lies."""
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


@dataclass(frozen=True, eq=False)
class Ensemble:
    """The empirical distribution of exchangeable `members`, (M, *S)."""

    members: Tensor

    @property
    def mean(self) -> Tensor:
        """Mean of the members."""
        return self.members.mean(0)

    @property
    def std(self) -> Tensor:
        """Unbiased standard deviation (divisor M - 1); zero for a single member."""
        if len(self.members) == 1:
            return torch.zeros_like(self.members[0])
        return self.members.std(0)

    def quantile(self, level: Tensor) -> Tensor:
        """Linear between the sorted members, of which the k-th has level (k - 1)/(M - 1)."""
        # Not torch.quantile: it refuses tensors of more than 2^24 elements, a batch of two global fields.
        ordered = self.members.sort(0).values
        position = level.to(self.members) * (len(ordered) - 1)
        below = position.floor().long()
        above = position.ceil().long()
        return torch.lerp(ordered[below], ordered[above], _leading(position - below, ordered[0]))

    def cdf(self, value: Tensor) -> Tensor:
        """Share of members that do not exceed `value`."""
        return (self.members <= value).to(self.members).mean(0)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density of the Gaussian with the members' mean and unbiased standard deviation."""
        return Normal(self.mean, self.std).log_prob(value)

    def crps(self, truth: Tensor, fair: bool = False) -> Tensor:
        """1/M Σ|x_i - y| - 1/(2M²) ΣΣ|x_i - x_j|; `fair` divides the second term by 2M(M - 1), NaN for M = 1.

        The double sum is 2 Σ (2i - M - 1) x_(i) over the sorted members (Hersbach 2000; Ferro 2014).
        """
        M = len(self.members)
        rank = torch.arange(1, M + 1, dtype=self.members.dtype, device=self.members.device)
        # Differences from the truth first: sums of large nearly equal values lose digits in float32.
        difference = self.members - truth
        spread = (_leading(2 * rank - M - 1, self.members[0]) * difference.sort(0).values).sum(0)
        return difference.abs().mean(0) - spread / (M * (M - 1) if fair else M * M)

    def affine(self, location: Tensor, scale: Tensor) -> Ensemble:
        """Shift and stretch every member."""
        return Ensemble(location + scale * self.members)

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw members with replacement, one index for all of (*S): a draw is a member, space and all."""
        index = torch.randint(len(self.members), (count,), generator=generator, device=self.members.device)
        return self.members[index]


FAMILIES: dict[str, type[LocationScale]] = {
    "normal": Normal,
    "logistic": Logistic,
    "censored_normal": CensoredNormal,
    "censored_logistic": CensoredLogistic,
}
"""Parametric families by the name that configurations use; a censored one takes `lower` as third argument."""


def _leading(values: Tensor, like: Tensor) -> Tensor:
    """Return the (K,) `values` as (K, 1, ..., 1), ready to meet the (*S) tensor `like`."""
    return values.to(like).view(-1, *[1] * like.ndim)
