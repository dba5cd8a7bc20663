"""The CRPS with a weight on the values, or on the outcomes, beyond a threshold."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from evaluation.scores.binned_probability import event_score, of_known, where_known
from evaluation.scores.case import Case
from evaluation.scores.score import CellStatistic
from evaluation.scores.threshold import Event
from models.distribution import Distribution, in_double, level_nodes, threshold_weighted_crps

_NO_PROBABILITY = 1e-12
"""If the probability of an event is below this number, the conditional distribution has no accurate digits."""


def crps_beyond(forecast: Distribution, truth: Tensor, event: Event, fair: bool = False) -> Tensor:
    """Return ∫ (F(x) - 1{y <= x})² dx over the x of the event only, (*S).

    For an event above its limit, this is the CRPS of max(X, limit) (Allen et al. 2023, doi:10.1137/22M1532184). For an
    event below its limit, it is the rest of the CRPS. Without a closed form, the integral of the quantile score by
    Gauss-Legendre has a relative error of 1e-6.
    """
    limit = event.limit.expand_as(truth)
    above = threshold_weighted_crps(forecast, truth, limit, fair)
    return torch.where(event.above, above, forecast.crps(truth, fair) - above)


def crps_given(forecast: Distribution, truth: Tensor, event: Event) -> Tensor:
    """Return the CRPS of the forecast's distribution given the event, where the event happened, and 0 elsewhere, (*S).

    This is the outcome-weighted CRPS (Holzmann & Klar 2017, doi:10.1214/16-AOAS972). If a forecast gives the event the
    probability 0, the limit itself stands for the distribution given the event; a distribution with light tails comes
    near to it.
    """
    limit = event.limit.expand_as(truth)
    happened = (truth > limit) == event.above
    y = torch.where(happened, truth, limit)
    score = forecast.scored(lambda part: _crps_given(part, y, limit, event.above))
    return torch.where(happened, score, 0 * score) + 0 * truth


def _crps_given(forecast: Distribution, truth: Tensor, limit: Tensor, above: Tensor) -> Tensor:
    if (atoms := forecast.atoms) is not None:
        return _crps_of_chosen(atoms, truth, limit, above)
    exact, y, edge = in_double(forecast), truth.double(), limit.double()
    split = exact.cdf(edge)
    low, high = torch.where(above, split, 0), torch.where(above, 1, split)
    mass = high - low
    level = exact.cdf(y).clamp(low, high)
    score = torch.zeros_like(y)
    for tau, weight in level_nodes(low, level):
        score = score + 2 * weight * (tau - low) * (y - exact.quantile(tau[None])[0])
    for tau, weight in level_nodes(level, high):
        score = score + 2 * weight * (high - tau) * (exact.quantile(tau[None])[0] - y)
    score = score / mass.clamp(min=_NO_PROBABILITY).square()
    return torch.where(mass < _NO_PROBABILITY, abs(y - edge), score).to(truth)


def _crps_of_chosen(members: Tensor, truth: Tensor, limit: Tensor, above: Tensor) -> Tensor:
    """Return the CRPS of the members that belong to the event."""
    chosen = (members > limit) == above
    count = chosen.sum(0)
    n = count.clamp(min=1)
    absolute = ((members - truth).abs() * chosen).sum(0) / n
    # Members outside the event are moved to the limit: two of them have no difference, and pairs of a member inside and
    # one outside are subtracted.
    excess = torch.where(chosen, (members - limit).abs(), 0).sort(0).values
    M = len(members)
    rank = torch.arange(1, M + 1, dtype=truth.dtype, device=truth.device).view(-1, *[1] * truth.ndim)
    pairs = ((2 * rank - M - 1) * excess).sum(0) - (M - count) * excess.sum(0)
    return torch.where(count > 0, absolute - pairs / n.square(), (truth - limit).abs())


def _each(name: str, score: Callable[[Case, Event], Tensor]) -> dict[str, CellStatistic]:
    return where_known(name, lambda case: of_known(torch.stack([score(case, event) for event in case.events]), case))


_THRESHOLD_TEXT = "∫ (F(x) − 1{x ≥ y})² dx over the values x beyond the threshold only: the CRPS's part there"
_THRESHOLD_REFERENCE = "Gneiting & Ranjan 2011, doi:10.1198/jbes.2010.08110; Allen et al. 2023, doi:10.1137/22M1532184"
THRESHOLD_CRPS = event_score(
    name="threshold_crps",
    title="threshold-weighted CRPS",
    text=_THRESHOLD_TEXT + ".",
    reference=_THRESHOLD_REFERENCE,
    statistics=_each("threshold_crps", lambda case, event: crps_beyond(case.forecast, case.truth, event)),
    best="low",
    units="target",
)
THRESHOLD_CRPS_FAIR = event_score(
    name="threshold_crps_fair",
    title="fair threshold-weighted CRPS",
    text=_THRESHOLD_TEXT + ", for infinitely many members of the same kind.",
    reference=_THRESHOLD_REFERENCE + "; Ferro 2014, doi:10.1002/qj.2270",
    statistics=_each("threshold_crps_fair", lambda case, event: crps_beyond(case.forecast, case.truth, event, True)),
    best="low",
    units="target",
)
OUTCOME_CRPS = event_score(
    name="outcome_crps",
    title="outcome-weighted CRPS",
    text="The CRPS of the forecast's distribution given that the threshold is passed, in the cases in which it was, "
    "and 0 in all others. Does not see whether the event itself was likely: the Brier score does.",
    reference="Holzmann & Klar 2017, doi:10.1214/16-AOAS972",
    statistics=_each("outcome_crps", lambda case, event: crps_given(case.forecast, case.truth, event)),
    best="low",
    units="target",
)
SCORES = (THRESHOLD_CRPS, THRESHOLD_CRPS_FAIR, OUTCOME_CRPS)
