"""A distribution that is known by its quantiles at any levels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from data_pipeline.common.errors import InputError
from models.distribution.base import leading, missing_as, root
from models.distribution.ensemble import Ensemble, Valued


@dataclass(frozen=True, eq=False)
class Quantiles(Valued):
    """Distribution with K quantiles `values`, (K, *S), at the increasing `levels`, (K,), between 0 and 1.

    Values that decrease somewhere are sorted (Chernozhukov et al. 2010, doi:10.3982/ECTA7880). Mean, standard deviation
    and CRPS are those of the K values with probabilities that end half-way between neighbouring levels, and at 0 and 1.
    At the levels (k - ½)/K all values have the same probability, and mean, standard deviation and CRPS equal those of
    an ensemble. The distribution function is interpolated between the levels, with jumps at both ends. The values are
    not random draws, so that `fair` has no effect.

    >>> Quantiles(torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([0.1, 0.5, 0.9])).mean
    tensor([2.3000])
    """

    values: Tensor
    levels: Tensor
    exported: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", self.values.sort(0).values)

    @property
    def probabilities(self) -> Tensor:
        """The probability of each value, (K,), in double precision; their sum is 1."""
        levels = self.levels.double()
        ends = torch.cat([levels.new_zeros(1), (levels[1:] + levels[:-1]) / 2, levels.new_ones(1)])
        return ends.diff()

    @property
    def mean(self) -> Tensor:
        """Mean of the values."""
        if self._alike:
            return Ensemble(self.values).mean
        # Differences from one of the values: sums of large nearly equal values lose digits in float32.
        middle = self.values[len(self.values) // 2]
        return middle + (self._weights * (self.values - middle)).sum(0)

    @property
    def std(self) -> Tensor:
        """Standard deviation of the values; divided by 1 - Σ p², which is the divisor K - 1 for equal probabilities."""
        if self._alike:
            return Ensemble(self.values).std
        divisor = 1 - self.probabilities.square().sum()
        variance = (self._weights * (self.values - self.mean).square()).sum(0) / divisor.to(self.values)
        return root(variance)

    def quantile(self, level: Tensor) -> Tensor:
        """Interpolate linearly between the quantiles; beyond them, return the first or the last one."""
        known, wanted = self.levels.to(self.values), leading(level, self.values[0])
        wanted = wanted.expand(len(wanted), *self.values.shape[1:])
        above = torch.searchsorted(known, wanted.contiguous()).clamp(1, len(known) - 1)
        low, high = self.values.gather(0, above - 1), self.values.gather(0, above)
        part = ((wanted - known[above - 1]) / (known[above] - known[above - 1])).clamp(0, 1)
        return torch.lerp(low, high, part)

    def cdf(self, value: Tensor) -> Tensor:
        """Interpolate the level linearly; 0 below the first and 1 from the last quantile on."""
        known, count = self.levels.to(self.values), (self.values <= value).sum(0)
        above = count.clamp(1, len(known) - 1)
        low, high = (self.values.gather(0, k[None])[0] for k in (above - 1, above))
        part = torch.where(high > low, (value - low) / torch.where(high > low, high - low, 1), 0)
        level = torch.lerp(known[above - 1], known[above], part)
        return missing_as(value, torch.where(count == 0, 0, torch.where(count == len(known), 1, level)).to(self.values))

    def crps(self, truth: Tensor, fair: float = False) -> Tensor:
        """Σ p_i |x_i - y| - ½ ΣΣ p_i p_j |x_i - x_j|."""
        if self._alike:
            return Ensemble(self.values).crps(truth)
        p = self.probabilities
        below = p.cumsum(0) - p
        difference = self.values - truth
        spread = (leading(p * (2 * below + p - 1), truth) * difference).sum(0)
        return (self._weights * difference.abs()).sum(0) - spread

    def average(self, others: Sequence[Quantiles], weights: Tensor | None = None) -> Quantiles:
        """Return the distribution with the means of the quantiles, which are at the same levels."""
        if any(not torch.equal(other.levels, self.levels) for other in others):
            raise InputError("quantiles at different levels cannot be averaged; combine those at the same levels")
        return super().average(others, weights)

    @property
    def resolved_levels(self) -> tuple[float, float]:
        """The first and the last level."""
        return float(self.levels[0]), float(self.levels[-1])

    def of_values(self, function: Callable[[Tensor], Tensor]) -> Quantiles:
        """Return the distribution with the function's values at the same levels."""
        return Quantiles(function(self.values), self.levels)

    @property
    def _alike(self) -> bool:
        """Whether all values have the same probability, so that moments and CRPS are exactly those of an ensemble."""
        return bool((self.probabilities * len(self.levels) - 1).abs().max() < 1e-6)

    @property
    def _weights(self) -> Tensor:
        return leading(self.probabilities, self.values[0])
