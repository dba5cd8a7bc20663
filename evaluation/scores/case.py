"""Case: one model's forecasts of a batch with their truth, from which every statistic of a cell is computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from evaluation.kernels.ensemble_scores import EnsembleScores, ensemble_scores
from evaluation.scores.threshold import Event
from models.distribution import Distribution
from models.layers.kernels.choice import usable
from models.parallel.domain import Domain

Found = TypeVar("Found")


@dataclass(frozen=True, eq=False)
class Case:
    """One model's forecasts of a batch and their truth; every value is computed once.

    All tensors have the shape (B, T, H, W). `truth` is NaN in cells that are not scored, and so are the values here.
    `uniform` holds random numbers in [0, 1) that break ties. `bins` is the number of bins of rank and PIT histograms.
    `drawn` is true if members are random draws, and false if they are quantiles, as `correct` writes them. `events` are
    the thresholds of the evaluation, `climate` is the forecast of the climatology reference, None without one.
    `extremeness` is the extreme forecast index of the raw ensemble: NaN where it is unknown, None without a climate of
    the model. `eps` is, for each target, the largest value that counts as zero in this index, such as 0.1 mm of rain.
    With `lead_times` (hours), each so many forecasts of the batch are those of one start, in this order. `domain` tells
    which part of the grid the cells are; without it they are a whole grid that does not go round the globe.
    """

    forecast: Distribution
    truth: Tensor
    uniform: Tensor
    bins: int
    drawn: bool = True
    events: tuple[Event, ...] = ()
    climate: Distribution | None = None
    extremeness: Tensor | None = None
    eps: Tensor | float = -torch.inf
    lead_times: tuple[int, ...] = ()
    domain: Domain | None = None
    _known: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)

    def once(self, function: Callable[[Case], Found]) -> Found:
        """Return `function(case)`, which is computed at the first call: for values that several statistics share."""
        if function not in self._known:
            self._known[function] = function(self)
        found: Found = self._known[function]
        return found

    @cached_property
    def valid(self) -> Tensor:
        """True in the cells that are scored."""
        return ~self.truth.isnan()

    @cached_property
    def of_members(self) -> EnsembleScores[Tensor] | None:
        """Scores of members from one pass over them; None for other forecasts, and where no such kernel works."""
        members = self.forecast.as_members
        if members is None or self.forecast.mask is not None:
            return None
        if members.dtype != self.truth.dtype or members.shape[1:] != self.truth.shape:
            return None
        if self.truth.device.type == "cpu":
            return EnsembleScores(*map(torch.from_numpy, ensemble_scores(members.numpy(), self.truth.numpy())))
        if members.dtype != torch.float32 or not usable(members):
            return None
        from evaluation.kernels.gpu_scores import MOST_MEMBERS, member_scores

        return member_scores(members, self.truth) if len(members) <= MOST_MEMBERS else None

    @property
    def _member_count(self) -> int:
        members = self.forecast.as_members
        return 0 if members is None else len(members)

    @cached_property
    def mean(self) -> Tensor:
        """Mean of the forecast."""
        return self.forecast.mean

    @cached_property
    def error(self) -> Tensor:
        """Mean of the forecast minus the truth."""
        if self.of_members:
            return self.of_members.error
        return self.mean - self.truth

    @cached_property
    def crps(self) -> Tensor:
        """CRPS of the forecast; for members, the CRPS of their empirical distribution."""
        if self.of_members:
            return self.of_members.crps
        return self.forecast.crps(self.truth)

    @cached_property
    def crps_fair(self) -> Tensor:
        """CRPS of infinitely many members of the same kind; equal to `crps` for a distribution in closed form."""
        if self.of_members:
            return self.of_members.crps_fair
        return self.forecast.crps(self.truth, fair=True) if self.forecast.has_members else self.crps

    @cached_property
    def expected_squared_error(self) -> Tensor:
        """See the function `expected_squared_error`."""
        if self.of_members and self._member_count > 1:
            return self.of_members.variance * _expected_factor(self._member_count, self.drawn)
        return torch.where(self.valid, expected_squared_error(self.forecast, self.drawn), self.truth)

    @cached_property
    def bin(self) -> Tensor:
        """Bin of the truth in the rank or PIT histogram; see `calibration_bin`."""
        if self.of_members:
            below, equal = self.of_members.below, self.of_members.equal
            return _bin_of_rank(below, equal, self.uniform, self._member_count, self.bins)
        return calibration_bin(self.forecast, self.truth, self.uniform, self.bins)


def expected_squared_error(distribution: Distribution, drawn: bool = True) -> Tensor:
    """Return the expected squared error of the mean if the truth is drawn from the distribution.

    This is the variance. For M members that are random draws it is (M + 1)/M times their unbiased variance, because
    their mean is uncertain too (Fortin et al. 2014, doi:10.1175/JHM-D-14-0008.1). For members that are quantiles of a
    distribution (`drawn` false) the factor is 1: their mean is the distribution's mean. A single member has the
    variance 0.
    """

    def expected(part: Distribution) -> Tensor:
        members, variance = part.as_members, part.std.square()
        return variance if members is None else variance * _expected_factor(len(members), drawn)

    return distribution.scored(expected)


def _expected_factor(M: int, drawn: bool) -> float:
    return (M + 1) / M if drawn else 1.0


def is_ensemble(distribution: Distribution) -> bool:
    """Return whether a model's forecasts are members, also where untrained cells have the raw members."""
    return distribution.core.as_members is not None


def calibration_bin(distribution: Distribution, truth: Tensor, uniform: Tensor, bins: int) -> Tensor:
    """Return the bin (0 ... bins - 1) of the truth in the rank or PIT histogram, as int64.

    For an ensemble of bins - 1 members, the bin is the rank of the truth among the members; ties are broken at random
    (Hamill 2001, doi:10.1175/1520-0493(2001)129<0550:IORHFV>2.0.CO;2). For another number M of members, it is the bin
    of (rank + v)/(M + 1) with a random v. For other distributions, it is the bin of the probability integral transform
    F(y-) + u (F(y) - F(y-)), which is uniform also where the distribution has point masses (Czado et al. 2009,
    doi:10.1111/j.1541-0420.2009.01191.x). `uniform` holds u in [0, 1) and has the shape of `truth`; cells without truth
    get an arbitrary bin.
    """

    def own_bin(part: Distribution) -> Tensor:
        if (members := part.as_members) is not None:
            below, equal = (members < truth).sum(0), (members == truth).sum(0)
            return _bin_of_rank(below, equal, uniform, len(members), bins)
        upper, lower = part.cdf(truth), part.cdf(torch.nextafter(truth, torch.full_like(truth, -torch.inf)))
        probability = (lower + uniform * (upper - lower)).nan_to_num(0.0)
        return (probability * bins).long().clamp(0, bins - 1)

    return distribution.scored(own_bin)


def _bin_of_rank(below: Tensor, equal: Tensor, uniform: Tensor, M: int, bins: int) -> Tensor:
    """Return the bin of the truth; `below` and `equal` count the M members that are less than it and equal to it."""
    rank = below + (uniform * (equal + 1)).to(equal.dtype).clamp(max=equal)
    if bins == M + 1:
        return rank.long()
    # Other forecasts may have more or fewer members than the raw ensemble: their ranks are spread over its bins.
    part = (uniform * (equal + 1) - (rank - below)).clamp(0, 1)
    return ((rank + part) / (M + 1) * bins).long().clamp(0, bins - 1)


def tie_breaker(seed: int, init_time: Tensor, lead_time: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return the `uniform` of `calibration_bin` for a batch of forecasts, (B, *shape).

    The draws are seeded per forecast, so that scores do not depend on the order or the batch size.
    """
    draws = [
        np.random.default_rng([seed, int(start) % 2**63, int(lead)]).random(shape, dtype=np.float32)
        for start, lead in zip(init_time, lead_time, strict=True)
    ]
    return torch.from_numpy(np.stack(draws))
