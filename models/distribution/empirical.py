"""The empirical distribution of past values, for example as climatology of precipitation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from models.distribution.base import leading, missing_as
from models.distribution.ensemble import Ensemble, Valued


@dataclass(frozen=True, eq=False)
class Empirical(Valued):
    """Distribution with K equally probable `values`, (K, *S), from the lowest to the highest.

    Mean, standard deviation and CRPS are those of the K values. The distribution function is interpolated: it is
    (k - ½)/K at the k-th value (Hazen), but jumps by m/K at a value that is repeated m times, such as 0 mm of rain.
    Unlike an ensemble's members, the values are not random draws, so that `fair` has no effect.

    >>> Empirical(torch.tensor([[0.0], [0.0], [2.0], [6.0]])).cdf(torch.tensor([0.0]))
    tensor([0.5000])
    """

    values: Tensor

    @property
    def mean(self) -> Tensor:
        """Mean of the values."""
        return self.values.mean(0)

    @property
    def std(self) -> Tensor:
        """Standard deviation of the values, with divisor K."""
        return self.values.std(0, correction=0)

    def quantile(self, level: Tensor) -> Tensor:
        """Inverse of `cdf`; for levels beyond the outermost ones, the lowest or the highest value."""
        position = leading(level, self.values[0]) * len(self.values)
        count = (position + 0.5).floor().long()
        low, high, start, end = self._gap(count)
        part = ((position - start) / (end - start).clamp(min=0.5)).clamp(0, 1)
        # Between two values that are both repeated there is no probability.
        return torch.where(end > start, low + (high - low) * part, torch.where(position <= start, low, high))

    def cdf(self, value: Tensor) -> Tensor:
        """Interpolated level of the value, with a jump where values are repeated, and at both ends."""
        K, count = len(self.values), (self.values <= value).sum(0)
        low, high, start, end = (bound[0] for bound in self._gap(count[None]))
        part = torch.where(high > low, (value - low) / torch.where(high > low, high - low, 1), 0)
        level = (start + (end - start) * part) / K
        return missing_as(value, torch.where(count == 0, 0, torch.where(count == K, 1, level)).to(self.values))

    def crps(self, truth: Tensor, fair: float = False) -> Tensor:
        """1/K Σ|x_i - y| - 1/(2K²) ΣΣ|x_i - x_j|."""
        return Ensemble(self.values).crps(truth)

    @property
    def atoms(self) -> Tensor:
        """The values."""
        return self.values

    @property
    def resolved_levels(self) -> tuple[float, float]:
        """Levels of the lowest and of the highest value."""
        half = 0.5 / len(self.values)
        return half, 1 - half

    def of_values(self, function: Callable[[Tensor], Tensor]) -> Empirical:
        """Return the distribution of the function's values."""
        return Empirical(function(self.values))

    def with_bounds(self, function: Callable[[Tensor], Tensor]) -> Empirical:
        """Return `of_values(function)`, because any value may lie on a bound."""
        return self.of_values(function)

    def _gap(self, count: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the values of ranks `count` (N, *S) and `count` + 1, and K times the levels between which F rises."""
        low, high = self._at(count - 1), self._at(count)
        repeated = (
            (self._at(count - 2) == low) & (count > 1),
            (self._at(count + 1) == high) & (count + 1 < len(self.values)),
        )
        start, end = (torch.where(tied, count, count + half) for tied, half in zip(repeated, (-0.5, 0.5), strict=True))
        return low, high, start.to(low), end.to(low)

    def _at(self, index: Tensor) -> Tensor:
        """Return the values with some indices (N, *S) or (N, 1, ...), from 0; indices beyond the ends mean the ends."""
        index = index.clamp(0, len(self.values) - 1)
        return self.values.gather(0, index.expand(len(index), *self.values.shape[1:]))


def empirical_quantiles(cases: Tensor, count: int) -> Tensor:
    """Return the quantiles (count, *S) of cases (N, *S) at the levels (k - ½)/count; NaN counts as no case.

    Without any case they are NaN. If `count` is N, they are the sorted cases.

    >>> empirical_quantiles(torch.tensor([[4.0], [0.0], [2.0], [torch.nan], [6.0]]), 2)
    tensor([[1.],
            [5.]])
    """
    ordered, known = cases.sort(0).values, cases.isfinite().sum(0)  # NaN is sorted to the end
    found = []
    for k in range(count):
        # Computed with integers as far as possible, because a rounding error would miss the rank of a case.
        place = ((2 * k + 1) * known - count).clamp(min=0)
        below, rest = place // (2 * count), place % (2 * count)
        top = (known - 1).clamp(min=0)
        low, high = (ordered.gather(0, torch.minimum(rank, top)[None])[0] for rank in (below, below + 1))
        part = (rest.double() / (2 * count)).to(ordered)
        found.append(torch.where(rest > 0, low + (high - low) * part, low))
    return torch.stack(found)
