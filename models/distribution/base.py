"""The protocol of predictive distributions, and a distribution that joins two others cell by cell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Distribution(Protocol):
    """A univariate distribution for every element of a tensor shape `(*S)`.

    A new distribution must have all of these properties and methods. `tests/models/distribution` checks them against
    each other, against random samples and against a published library.
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
        """Return the quantiles (K, *S) at the levels (K,), or at levels (K, *S) of their own for each element."""
        ...

    def cdf(self, value: Tensor) -> Tensor:
        """Return the probability of values up to `value`, (*S)."""
        ...

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the density, or at a point mass of its probability, (*S)."""
        ...

    def crps(self, truth: Tensor, fair: float = False) -> Tensor:
        """Return the continuous ranked probability score against `truth`, (*S); NaN where the truth is NaN.

        For an ensemble, `fair` estimates the score with infinitely many members (Ferro 2014, doi:10.1002/qj.2270). A
        number between 0 and 1 gives that share of the fair score and the rest of the plain score. Other distributions
        ignore `fair`.
        """
        ...

    def affine(self, location: Tensor, scale: Tensor) -> Distribution:
        """Return the distribution of `location + scale * X`, for scale > 0."""
        ...

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Independent draws, (count, *S)."""
        ...


@dataclass(frozen=True, eq=False)
class Patched:
    """The distribution `inner` where the mask `where`, which broadcasts to (*S), is True, and `outer` elsewhere."""

    where: Tensor
    inner: Distribution
    outer: Distribution

    @property
    def mean(self) -> Tensor:
        """Expectation."""
        return torch.where(self.where, self.inner.mean, self.outer.mean)

    @property
    def std(self) -> Tensor:
        """Standard deviation."""
        return torch.where(self.where, self.inner.std, self.outer.std)

    def quantile(self, level: Tensor) -> Tensor:
        """Quantiles, level (K,) gives (K, *S)."""
        return torch.where(self.where, self.inner.quantile(level), self.outer.quantile(level))

    def cdf(self, value: Tensor) -> Tensor:
        """Probability of not exceeding `value`."""
        return torch.where(self.where, self.inner.cdf(value), self.outer.cdf(value))

    def log_prob(self, value: Tensor) -> Tensor:
        """Logarithm of the density."""
        return torch.where(self.where, self.inner.log_prob(value), self.outer.log_prob(value))

    def crps(self, truth: Tensor, fair: float = False) -> Tensor:
        """Continuous ranked probability score."""
        return torch.where(self.where, self.inner.crps(truth, fair), self.outer.crps(truth, fair))

    def affine(self, location: Tensor, scale: Tensor) -> Patched:
        """Shift and scale both distributions."""
        return Patched(self.where, self.inner.affine(location, scale), self.outer.affine(location, scale))

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Return independent draws, (count, *S)."""
        return torch.where(self.where, self.inner.sample(count, generator), self.outer.sample(count, generator))


def leading(values: Tensor, like: Tensor) -> Tensor:
    """Return `values` (K,) as (K, 1, ..., 1), which broadcasts with `like` (*S), and values (K, *S) as they are."""
    if values.ndim > 1:
        return values.to(like)
    return values.to(like).view(-1, *[1] * like.ndim)
