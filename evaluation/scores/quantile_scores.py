"""Quantiles of a forecast at a few levels: quantile score, error of the median, central intervals."""

from __future__ import annotations

import torch
from torch import Tensor

from evaluation.scores.case import Case
from evaluation.scores.score import CellStatistic, Score
from evaluation.scores.threshold import resolved_quantiles
from models.distribution import Distribution

LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9)
INTERVALS = {"50 %": (1, 3), "80 %": (0, 4)}
"""Central intervals: their nominal coverage, and the positions of their ends among `LEVELS`."""


def forecast_quantiles(distribution: Distribution, levels: Tensor, drawn: bool = True) -> Tensor:
    """Return the quantiles (K, *S) at `levels` (K,).

    The k-th of M members that are random draws has the level k/(M + 1): on average, this is the probability below it.
    For members that are quantiles (`drawn` false) the level is (k - ½)/M, at which `correct` writes them. Quantiles are
    interpolated between members. Beyond the first and the last member they are unknown, and NaN.
    """

    def quantiles(part: Distribution) -> Tensor:
        members = part.as_members
        return resolved_quantiles(part, levels) if members is None else _between_members(members, levels, drawn)

    return distribution.scored(quantiles)


def _between_members(members: Tensor, levels: Tensor, drawn: bool) -> Tensor:
    ordered = members.sort(0).values
    M = len(ordered)
    found = []
    for level in levels.tolist():
        place = level * (M + 1) - 1 if drawn else level * M - 0.5
        place = round(place, 9)  # 0.1 of 9 members is the first one, whatever the rounding error
        if not 0 <= place <= M - 1:
            found.append(torch.full_like(ordered[0], torch.nan))
            continue
        below = int(place)
        found.append(torch.lerp(ordered[below], ordered[min(below + 1, M - 1)], place - below))
    return torch.stack(found)


def quantile_scores(quantiles: Tensor, levels: Tensor, truth: Tensor) -> Tensor:
    """Return (1{y < q} - τ)(q - y), which is τ(y - q) where y >= q, for quantiles (K, *S) at levels (K,)."""
    error = quantiles - truth
    level = levels.to(truth).view(-1, *[1] * truth.ndim)
    return torch.maximum((1 - level) * error, -level * error)


def _quantiles(case: Case) -> Tensor:
    return forecast_quantiles(case.forecast, _levels(), case.drawn)


def _levels() -> Tensor:
    return torch.tensor(LEVELS, dtype=torch.float64)


def _quantile_scores(case: Case) -> Tensor:
    return quantile_scores(case.once(_quantiles), _levels(), case.truth)


def _inside(case: Case) -> Tensor:
    found, quantiles = [], case.once(_quantiles)
    for first, last in INTERVALS.values():
        low, high = quantiles[first], quantiles[last]
        found.append(((case.truth >= low) & (case.truth <= high)) + 0 * (low + high))
    return torch.stack(found)


def _width(case: Case) -> Tensor:
    quantiles = case.once(_quantiles)
    return torch.stack([quantiles[high] - quantiles[low] for low, high in INTERVALS.values()])


def _interval_score(case: Case) -> Tensor:
    # The sum of both ends' quantile scores, times 2/α where α/2 is the level of the lower end.
    scores = case.once(_quantile_scores)
    return torch.stack([(scores[low] + scores[high]) / LEVELS[low] for low, high in INTERVALS.values()])


_MEMBERS = (
    " The k-th of M members has the level k/(M + 1); beyond the first and the last member there is no quantile, and "
    "the score is null."
)
QUANTILE_SCORES = CellStatistic(lambda case: case.once(_quantile_scores), size=len(LEVELS))
QUANTILE_SCORE = Score(
    name="quantile_score",
    title="quantile score",
    text="Mean of (1{y < q} − τ)(q − y) for the quantile q at the level τ; half the absolute error for the median. "
    "The CRPS is twice its integral over all levels." + _MEMBERS,
    reference="Koenker & Bassett 1978, doi:10.2307/1913643; Gneiting & Raftery 2007, doi:10.1198/016214506000001437",
    statistics={"quantile_score": QUANTILE_SCORES},
    best="low",
    labels=tuple(f"{level:g}" for level in LEVELS),
)
MAE = Score(
    name="mae",
    title="MAE",
    text="Mean absolute error of the forecast's median: twice its quantile score.",
    reference="Gneiting 2011, doi:10.1198/jasa.2011.r10138",
    statistics={"quantile_score": QUANTILE_SCORES},
    value=lambda quantile_score: 2 * quantile_score[..., LEVELS.index(0.5)],
    best="low",
)
COVERAGE = Score(
    name="coverage",
    title="coverage",
    text="Share of the cases in which the analysis lies in the central interval; its nominal coverage if the forecast "
    "is calibrated." + _MEMBERS,
    reference="Gneiting & Raftery 2007, doi:10.1198/016214506000001437",
    statistics={"interval_coverage": CellStatistic(_inside, size=len(INTERVALS))},
    best=None,
    units="",
    labels=tuple(INTERVALS),
)
WIDTH = Score(
    name="interval_width",
    title="width of central intervals",
    text="Mean width of the central interval: the narrower the better, if the coverage is right." + _MEMBERS,
    reference="Gneiting, Balabdaoui & Raftery 2007, doi:10.1111/j.1467-9868.2007.00587.x",
    statistics={"interval_width": CellStatistic(_width, size=len(INTERVALS))},
    best=None,
    labels=tuple(INTERVALS),
)
INTERVAL_SCORE = Score(
    name="interval_score",
    title="interval score",
    text="Width of the central interval with nominal coverage 1 − α, plus 2/α times the distance of an analysis "
    "outside from it: rewards narrow intervals that contain the analysis." + _MEMBERS,
    reference="Winkler 1972, doi:10.2307/2284720; Gneiting & Raftery 2007, doi:10.1198/016214506000001437",
    statistics={"interval_score": CellStatistic(_interval_score, size=len(INTERVALS))},
    best="low",
    labels=tuple(INTERVALS),
)
SCORES = (QUANTILE_SCORE, MAE, COVERAGE, WIDTH, INTERVAL_SCORE)
