"""SEEPS: the stable equitable error in probability space of dry, light and heavy precipitation."""

from __future__ import annotations

import torch
from torch import Tensor

from evaluation.scores.case import Case
from evaluation.scores.extremes import no_climatology
from evaluation.scores.score import CellStatistic, Score, Settings

DRY = 2e-4
"""The largest amount in 24 hours that counts as dry, 0.2 mm, in m."""
SCORED_CLIMATES = 0.1, 0.85
"""The lowest and the highest climatological probability of a dry day that is scored."""


def _dry_probability(case: Case) -> Tensor:
    """Return the climatological probability of a dry day; NaN where SEEPS is not defined."""
    assert case.climate is not None
    dry = case.climate.cdf(torch.full_like(case.truth, DRY))
    low, high = SCORED_CLIMATES
    # Among the targets, only precipitation has a finite value that counts as zero (`_not_rain`).
    rain = torch.as_tensor(case.eps).isfinite()
    return dry.masked_fill(~((dry >= low) & (dry <= high) & rain), torch.nan)


def seeps(forecast: Tensor, truth: Tensor, dry: Tensor, heavy: Tensor) -> Tensor:
    """Return SEEPS (*S) of single amounts, from the probability of a dry day and the limit of heavy precipitation."""

    def wrong(limit: Tensor | float, over: Tensor, under: Tensor) -> Tensor:
        return torch.where(forecast > limit, (truth <= limit) * over, (truth > limit) * under)

    return (wrong(DRY, 1 / dry, 1 / (1 - dry)) + wrong(heavy, 3 / (2 + dry), 3 / (1 - dry))) / 2


def _seeps(case: Case) -> Tensor:
    assert case.climate is not None
    dry = case.once(_dry_probability)
    level = dry.nan_to_num(0.5)
    heavy = case.climate.quantile((level + (1 - level) * 2 / 3)[None])[0]
    median = case.forecast.quantile(torch.tensor([0.5], dtype=case.truth.dtype, device=case.truth.device))[0]
    return seeps(median, case.truth, dry, heavy).nan_to_num(0)


def _not_rain(settings: Settings) -> str:
    amounts = [target for target in settings.task.targets if target.trace > 0]
    if not amounts or any((target.name, target.period) != ("tp", 24) for target in amounts):
        return "SEEPS is defined for precipitation of 24 hours; give the task the target tp:24h, without other amounts"
    return no_climatology(settings)


SEEPS = Score(
    name="seeps",
    title="SEEPS",
    text="Error of the forecast's median in the categories dry (up to 0.2 mm in 24 h), light and heavy (the upper "
    "third of the climatology's wet days). Errors weigh more in rare categories: a constant forecast has 1. Only where "
    "the climatology is dry with a probability of 0.1 to 0.85.",
    reference="Rodwell et al. 2010, doi:10.1002/qj.656",
    statistics={
        "seeps": CellStatistic(_seeps),
        "seeps_known": CellStatistic(lambda case: case.once(_dry_probability).isfinite().to(case.truth)),
    },
    best="low",
    units="",
    missing=_not_rain,
)
SCORES = (SEEPS,)
