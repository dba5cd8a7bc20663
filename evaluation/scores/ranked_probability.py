"""Scores of terciles and quintiles of the climatology: the ranked probability score and its skill."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from evaluation.scores.brier import sampling_variance
from evaluation.scores.case import Case
from evaluation.scores.extremes import no_climatology
from evaluation.scores.ratios import skill
from evaluation.scores.score import CellStatistic, Score
from evaluation.scores.threshold import resolved_quantiles
from models.distribution import Distribution

CATEGORIES = {"terciles": 3, "quintiles": 5}


def _limits(case: Case) -> list[Tensor]:
    """Return the limits between the categories, (K - 1, B, T, H, W) for each number K of categories."""
    assert case.climate is not None
    levels = [torch.arange(1, K).to(case.truth) / K for K in CATEGORIES.values()]
    found = resolved_quantiles(case.climate, torch.cat(levels))
    return list(found.split([len(one) for one in levels]))


def ranked_probability_score(forecast: Distribution, truth: Tensor, limits: Tensor, fair: bool = False) -> Tensor:
    """Return Σ (F(x) - 1{y <= x})² over the limits x (K - 1, *S), (*S).

    The fair score is that of infinitely many members: F(x)(1 - F(x))/(M - 1) is subtracted from each term of the sum.
    """
    total = torch.zeros_like(truth)
    for limit in limits:
        probability = forecast.cdf(limit)
        total = total + (probability - (truth <= limit).to(truth)).square()
        if fair:
            total = total - sampling_variance(forecast, probability)
    return total


def _known(case: Case) -> Tensor:
    return torch.stack([limits.isfinite().all(0) for limits in case.once(_limits)]).to(case.truth)


def _score(case: Case, forecast: Distribution | None, fair: bool = False) -> Tensor:
    assert forecast is not None
    scores = [ranked_probability_score(forecast, case.truth, limits, fair) for limits in case.once(_limits)]
    return torch.stack(scores).masked_fill(case.once(_known) == 0, 0)


CATEGORIES_KNOWN = CellStatistic(lambda case: case.once(_known), size=len(CATEGORIES))
RPS_CELLS = CellStatistic(lambda case: _score(case, case.forecast), size=len(CATEGORIES))
RPS_FAIR_CELLS = CellStatistic(lambda case: _score(case, case.forecast, fair=True), size=len(CATEGORIES))
RPS_CLIMATE_CELLS = CellStatistic(lambda case: _score(case, case.climate), size=len(CATEGORIES))
_category_score = partial(Score, units="", labels=tuple(CATEGORIES), missing=no_climatology)
RPS_REFERENCE = "Epstein 1969, doi:10.1175/1520-0450(1969)008<0985:ASSFPF>2.0.CO;2"
FERRO = "Ferro 2014, doi:10.1002/qj.2270"
RPS = _category_score(
    name="rps",
    title="RPS",
    text="Σ (F(x) − 1{y ≤ x})² over the limits x between terciles or quintiles of the climatology of the cell and the "
    "season: the sum of the Brier scores of all limits, not divided by their number.",
    reference=RPS_REFERENCE,
    statistics={"rps": RPS_CELLS, "categories_known": CATEGORIES_KNOWN},
    best="low",
)
RPS_FAIR = _category_score(
    name="rps_fair",
    title="fair RPS",
    text="The RPS that infinitely many members of the same kind would have: each term is less F(1 − F)/(M − 1).",
    reference=FERRO,
    statistics={"rps_fair": RPS_FAIR_CELLS, "categories_known": CATEGORIES_KNOWN},
    best="low",
)
RPSS = _category_score(
    name="rpss",
    title="RPSS",
    text="1 − RPS / RPS of the climatology: 0 for a forecast that is as good as the climatology, 1 for a perfect one.",
    reference=RPS_REFERENCE,
    statistics={"rps": RPS_CELLS, "rps_climate": RPS_CLIMATE_CELLS},
    value=lambda rps, rps_climate: skill(rps, rps_climate),
    best="one",
)
RPSS_FAIR = _category_score(
    name="rpss_fair",
    title="fair RPSS",
    text="1 − fair RPS / RPS of the climatology.",
    reference=FERRO,
    statistics={"rps_fair": RPS_FAIR_CELLS, "rps_climate": RPS_CLIMATE_CELLS},
    value=lambda rps_fair, rps_climate: skill(rps_fair, rps_climate),
    best="one",
)
SCORES = (RPS, RPS_FAIR, RPSS, RPSS_FAIR)
