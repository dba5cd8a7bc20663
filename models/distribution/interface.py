"""What every predictive distribution offers: moments, probabilities, draws, and its own score."""

from __future__ import annotations

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


def leading(values: Tensor, like: Tensor) -> Tensor:
    """Return the (K,) `values` as (K, 1, ..., 1), ready to meet the (*S) tensor `like`."""
    return values.to(like).view(-1, *[1] * like.ndim)
