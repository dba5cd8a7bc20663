"""Events: the forecast probability that a threshold is passed, and whether the truth has passed it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from data_pipeline.variables.thresholds import Threshold
from models.distribution import Distribution


@dataclass(frozen=True, eq=False)
class Event:
    """Values above `limit` where `above` is True, values up to `limit` elsewhere; both broadcast to (B, T, H, W).

    All four sides of a threshold have this form, because `limit` is a floating-point number: `< v` is `<=` the largest
    number below v. The limit is NaN for targets without this threshold. `fixed` is True where the limit is a number for
    all cells, and not a percentile of climatology.
    """

    limit: Tensor
    above: Tensor
    fixed: Tensor

    def outcome(self, truth: Tensor) -> Tensor:
        """Return 1 where the event happened and 0 where it did not, NaN without truth or limit."""
        return ((truth > self.limit) == self.above).to(truth) + 0 * truth + 0 * self.limit.to(truth)

    def probability(self, forecast: Distribution) -> Tensor:
        """Return the probability of the event, NaN without limit."""
        below = forecast.cdf(self.limit.expand_as(forecast.mean))
        return torch.where(self.above, 1 - below, below) + 0 * self.limit


def make_events(
    thresholds: Sequence[Sequence[Threshold]], climate: Distribution | None, like: Tensor
) -> tuple[Event, ...]:
    """Return the k-th threshold of all targets as one event, for every k; `like` has the shape (B, T, H, W).

    `thresholds` holds the thresholds of each target. `climate` is the distribution of the climatology reference, which
    is needed for thresholds that are `climatological`.
    """
    events = []
    for k in range(max(map(len, thresholds), default=0)):
        mine = [of_target[k] if k < len(of_target) else None for of_target in thresholds]
        limit = like.new_full((len(mine), 1, 1), torch.nan)
        for t, threshold in enumerate(mine):
            if threshold is None:
                continue
            values = like.new_tensor(threshold.value)
            if threshold.climatological:
                if climate is None:
                    raise ValueError(f"the threshold {threshold.label} needs a climatology")
                # The quantiles of all targets are computed, because a distribution cannot be cut to one of them.
                values = climate_quantile(climate, threshold.value)[:, t]
                if limit.ndim == 3:
                    limit = limit.expand_as(like).clone()
            if threshold.above == threshold.closed:
                values = torch.nextafter(values, torch.full_like(values, -torch.inf))
            limit[..., t, :, :] = values
        above, fixed = (
            torch.tensor([one is not None and is_so(one) for one in mine], device=like.device)[:, None, None]
            for is_so in (lambda one: one.above, lambda one: not one.climatological)
        )
        events.append(Event(limit, above, fixed))
    return tuple(events)


def climate_quantile(climate: Distribution, level: float) -> Tensor:
    """Return the quantile of the climatology, NaN at levels that its past values do not resolve."""
    mean = climate.mean
    return resolved_quantiles(climate, torch.tensor([level], dtype=mean.dtype, device=mean.device))[0]


def resolved_quantiles(distribution: Distribution, levels: Tensor) -> Tensor:
    """Return the quantiles (K, *S) at `levels` (K,), NaN at levels that the distribution does not resolve."""

    def quantiles(part: Distribution) -> Tensor:
        lowest, highest = part.resolved_levels
        found = part.quantile(levels)
        if (lowest, highest) == (0.0, 1.0):
            return found
        outside = (levels < lowest - 1e-6) | (levels > highest + 1e-6)  # rounding errors of levels in float32
        return found.masked_fill(outside.to(found.device).view(-1, *[1] * (found.ndim - 1)), torch.nan)

    return distribution.scored(quantiles)
