"""The fractions skill score: whether a threshold is passed near the place where the forecast says so."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, pad

from data_pipeline.grid import Grid
from evaluation.scores.binned_probability import (
    known_events,
    no_thresholds,
    of_known,
    outcomes,
    probabilities,
    threshold_count,
    threshold_labels,
)
from evaluation.scores.case import Case
from evaluation.scores.ratios import skill
from evaluation.scores.score import CellStatistic, Score, Settings
from models.parallel.domain import Domain
from models.parallel.exchange import Exchange

SIZES = 3, 9
"""Rows and columns of the windows."""


def window_means(fields: Tensor, size: int, domain: Domain | None) -> Tensor:
    """Return the mean of fields (N, ..., H, W) in the window of `size` x `size` cells around each cell.

    Cells beyond the rows of the grid are 0, and so are those beyond its columns, unless it goes round the globe. Cells
    of other ranks are fetched from them.
    """
    reach = size // 2
    if domain is None:
        around = pad(fields, [reach] * 4)
    else:
        rows, columns = (
            [(a - reach, b + reach) for a, b in pairwise(cuts)] for cuts in (domain.row_cuts, domain.column_cuts)
        )
        around = Exchange(domain, (tuple(rows), tuple(columns)), beyond_zero=True)(fields.contiguous())
    return avg_pool2d(around.flatten(0, -4), size, stride=1).view(fields.shape)


def _fractions(case: Case) -> list[tuple[Tensor, Tensor]]:
    """Return the fractions of forecast and truth among the known cells, each (K, B, T, H, W), for each size."""
    known = (case.once(known_events) * case.valid).double()
    fields = [case.once(function).double().masked_fill(known == 0, 0) for function in (probabilities, outcomes)]
    found = []
    for size in SIZES:
        share, p, o = window_means(torch.stack([known, *fields]), size, case.domain)
        share = torch.where(share > 0, share, 1)
        found.append((p / share, o / share))
    return found


def _error(case: Case) -> Tensor:
    return _each([of_known((p - o).square(), case) for p, o in case.once(_fractions)])


def _worst(case: Case) -> Tensor:
    return _each([of_known(p.square() + o.square(), case) for p, o in case.once(_fractions)])


def _each(of_sizes: list[Tensor]) -> Tensor:
    """Return the numbers of the first threshold for all sizes, then of the second, (K * sizes, B, T, H, W)."""
    return torch.stack(of_sizes, 1).flatten(0, 1)


def _count(settings: Settings) -> int:
    return len(SIZES) * threshold_count(settings)


def _labels(settings: Settings, target: int) -> tuple[str, ...]:
    return tuple(f"{label}, {n} x {n} cells" for label in threshold_labels(settings, target) for n in SIZES)


def _no_windows(settings: Settings) -> str:
    if type(settings.grid) is not Grid:
        return "stations and points have no neighbouring cells; only fields on a regular grid have"
    return no_thresholds(settings)


FSS = Score(
    name="fss",
    title="fractions skill score",
    text="1 − Σ (p − o)² / Σ (p² + o²), with the mean probability p of the event and its frequency o in a window "
    "around each cell: 1 is perfect, 0 no overlap. Windows end at the edges of the grid.",
    reference="Roberts & Lean 2008, doi:10.1175/2007MWR2123.1",
    statistics={"fss_error": CellStatistic(_error, size=_count), "fss_worst": CellStatistic(_worst, size=_count)},
    value=lambda fss_error, fss_worst: skill(fss_error, fss_worst),
    best="one",
    units="",
    labels=_labels,
    missing=_no_windows,
)
SCORES = (FSS,)
