"""What every predictive distribution offers: moments, probabilities, draws, and its own score."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Distribution(Protocol):
    """A univariate distribution for every element of a tensor shape `(*S)`.

    A new kind owes all of these; `tests/models/test_distribution*.py` check them against each other, against
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

    def crps(self, truth: Tensor, fair: float = False) -> Tensor:
        """Continuous ranked probability score against `truth`, (*S); NaN where the truth is NaN.

        `fair` asks what an ensemble of this kind would score had it infinitely many members (Ferro 2014,
        doi:10.1002/qj.2270), a number between 0 and 1 for so much of that score and the rest of the plain one;
        a closed form has no members and gives the same number either way.
        """
        ...

    def affine(self, location: Tensor, scale: Tensor) -> Distribution:
        """Distribution of `location + scale * X`, scale > 0."""
        ...

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Independent draws, (count, *S)."""
        ...


@dataclass(frozen=True, eq=False)
class Patched:
    """`inner` where `where` (*S), or what broadcasts to it, is True, and `outer` elsewhere."""

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
        """Shift and stretch both."""
        return Patched(self.where, self.inner.affine(location, scale), self.outer.affine(location, scale))

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Independent draws from both."""
        return torch.where(self.where, self.inner.sample(count, generator), self.outer.sample(count, generator))


def leading(values: Tensor, like: Tensor) -> Tensor:
    """Return the (K,) `values` as (K, 1, ..., 1), ready to meet the (*S) tensor `like`."""
    return values.to(like).view(-1, *[1] * like.ndim)
