"""An ensemble of exchangeable members as a distribution, and the energy score."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from models.distribution.base import Distribution, leading, missing_as
from models.distribution.location_scale import Normal


class Valued(Distribution):
    """Base of distributions that have only a few values."""

    def of_values(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Return the distribution of the function's values."""
        raise NotImplementedError

    def affine(self, location: Tensor, scale: Tensor) -> Self:
        """Shift and scale every value."""
        return self.of_values(lambda values: location + scale * values)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density of the Gaussian with the mean and the standard deviation of the values."""
        return Normal(self.mean, self.std).log_prob(value)


@dataclass(frozen=True, eq=False)
class Ensemble(Valued):
    """The empirical distribution of exchangeable `members`, (M, *S)."""

    members: Tensor
    exported: ClassVar[bool] = True

    @property
    def mean(self) -> Tensor:
        """Mean of the members."""
        return self.members.mean(0)

    @property
    def std(self) -> Tensor:
        """Unbiased standard deviation (divisor M - 1); zero for a single member."""
        if self.members.shape[0] == 1:  # not `len`, which would fix the number of members of an exported model
            return torch.zeros_like(self.members[0])
        return self.members.std(0)

    def quantile(self, level: Tensor) -> Tensor:
        """Interpolate linearly between the sorted members; the k-th member has level (k - 1)/(M - 1)."""
        # Not torch.quantile: it refuses tensors of more than 2^24 elements, a batch of two global fields.
        ordered = self.members.sort(0).values
        position = (level if level.ndim > 1 else level.reshape(-1)).to(self.members) * (len(ordered) - 1)
        below = position.floor().long()
        above = position.ceil().long()
        low, high = (ordered[rank] if rank.ndim == 1 else ordered.gather(0, rank) for rank in (below, above))
        return torch.lerp(low, high, leading(position - below, ordered[0]))

    def cdf(self, value: Tensor) -> Tensor:
        """Return the fraction of members up to `value`."""
        return missing_as(value, (self.members <= value).to(self.members).mean(0))

    def crps(self, truth: Tensor, fair: float = False) -> Tensor:
        """1/M Σ|x_i - y| - 1/(2M²) ΣΣ|x_i - x_j|; `fair` divides the second term by 2M(M - 1).

        A single member has no second term: its score, plain and fair, is |x - y|.

        With a number between 0 and 1 for `fair`, this is the almost fair score: this share of the fair score and the
        rest of the plain score. The fair score alone does not change with the last member if all others equal the truth
        (Lang et al. 2024, arXiv:2412.15832). The double sum is 2 Σ (2i - M - 1) x_(i) over the sorted members (Hersbach
        2000; Ferro 2014).
        """
        M = len(self.members)
        rank = torch.arange(1, M + 1, dtype=self.members.dtype, device=self.members.device)
        # Differences from the truth first: sums of large nearly equal values lose digits in float32.
        difference = self.members - truth
        spread = (leading(2 * rank - M - 1, self.members[0]) * difference.sort(0).values).sum(0)
        return difference.abs().mean(0) - spread / pair_divisor(M, fair)

    @property
    def as_members(self) -> Tensor:
        """The members."""
        return self.members

    def of_values(self, function: Callable[[Tensor], Tensor]) -> Ensemble:
        """Return the ensemble of the function's values."""
        return Ensemble(function(self.members))


def energy_score(members: Tensor, truth: Tensor, dim: int, fair: float = False) -> Tensor:
    """Return the energy score of `members` (M, *S) against `truth` (*S), for joint forecasts along dimension `dim`.

    1/M Σ|x_i - y| - 1/(2M²) ΣΣ|x_i - x_j| with Euclidean norms (Gneiting & Raftery 2007,
    doi:10.1198/016214506000001437). The result has the shape (*S) without `dim`, and is NaN where any of the joint
    values is NaN. For a single value it is the CRPS, with the same `fair`. All values should have similar magnitudes.
    """
    M, dim = len(members), dim % truth.ndim + 1
    # The loop takes pairs with one offset at a time, because all pairs at once need M times the memory.
    total = torch.zeros_like(truth.select(dim - 1, 0))
    for step in range(1, M):
        total = total + torch.linalg.vector_norm(members[step:] - members[:-step], dim=dim).sum(0)
    return torch.linalg.vector_norm(members - truth, dim=dim).mean(0) - total / pair_divisor(M, fair)


def variogram_score(members: Tensor, truth: Tensor, weights: Tensor, fair: bool = False) -> Tensor:
    """Return the variogram score of order 1/2 of `members` (M, *S, d) against `truth` (*S, d), as (*S).

    With v = √|xₖ − xₗ|, it is the sum over pairs (k, l) of `weights` (*S, d, d) times (v of the truth − mean of v over
    the members)² (Scheuerer & Hamill 2015, doi:10.1175/MWR-D-14-00269.1). The fair score is the score less the variance
    of that mean. Differences below 1e-6 count as 1e-6, where v has a gradient.
    """

    def roots(x: Tensor) -> Tensor:
        return (x[..., :, None] - x[..., None, :]).abs().clamp(min=1e-6).sqrt()

    v = roots(members)
    error = (roots(truth) - v.mean(0)).square() - (v.var(0) / len(v) if fair else 0)
    return (weights * error).sum((-2, -1))


def pair_divisor(M: int, fair: float) -> float:
    """Return the divisor of the sum of differences over pairs i < j: M², or M(M - 1) if `fair`; see `Ensemble.crps`."""
    return M * M * (M - 1) / (M - 1 + fair) if fair and M > 1 else M * M
