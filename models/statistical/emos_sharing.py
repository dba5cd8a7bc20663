"""How much the cells and lead times of EMOS share, estimated from held-out cases.

Coefficients are drawn to those of a larger group: a cell's to those of all cells, a lead time's to those of all lead
times, and these to the raw ensemble, which has no season. At each level, the group counts as much as a number of cases
(`SharedPrior`). The number with the best score of held-out stretches of time is taken, so that cells with many cases
keep coefficients of their own, and cells with few cases share theirs (an empirical Bayes estimate by cross-validation).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from models.statistical.emos_regression import GREATEST_SPREAD, EMOSCases, SharedPrior, raw_coefficients
from models.statistical.regression import Regression

CASES = (512.0, 128.0, 32.0, 8.0, 2.0, 0.5)
"""Candidates for the weight of a group, as a number of cases; the first candidate is infinite."""
HELD_OUT_FOLDS = 4
"""Number of successive stretches of time, each held out once."""
SAMPLE_CASES, HELD_OUT_CASES = 2**16, 2**13
"""Cases of a lead time that shared coefficients are fitted to, and those that choose the weights of the groups."""
SAMPLE_CELLS = 16, 512
"""Fewest and most cells of a sample."""
HELD_OUT_LEADS = 4
"""Most lead times that choose the weights of the groups, spread evenly."""


class Sharing(NamedTuple):
    """Weights of the groups, as numbers of cases."""

    raw: float = math.inf
    """Of the raw ensemble, for the coefficients of all lead times."""
    leads: float = math.inf
    """Of all lead times, for the coefficients of one."""
    cells: float = math.inf
    """Of all cells, for the coefficients of one."""
    year: float = math.inf
    """Of the whole year, for the coefficients of a window."""


def thin(leads: Sequence[EMOSCases], most: int = SAMPLE_CASES) -> list[EMOSCases]:
    """Return the cases of all lead times, about `most` each, at cells with a truth, spread evenly.

    No lead time has a season if another one has none.
    """
    known = torch.stack([cases.truth.isfinite().any(0) for cases in leads]).any(0).nonzero()[:, 0]
    fewest, at_most = SAMPLE_CELLS
    cells = max(fewest, min(at_most, most // max(len(cases.truth) for cases in leads)))
    chosen = known[:: max(1, math.ceil(len(known) / cells))]
    found = [cases.at(chosen) for cases in leads]
    seasonal = all(cases.harmonics for cases in leads)
    return found if seasonal else [replace(cases, harmonics=()) for cases in found]


def estimate_sharing(
    regression: Regression, leads: Sequence[EMOSCases], windows: Sequence[Sequence[Tensor]] = ()
) -> Sharing:
    """Return the weights of the groups with the best scores of held-out cases, for all lead times of a target.

    The cases of each lead time must be in order of time. `windows` say which cases (N,) belong to each window of the
    year, for each lead time. A single start cannot be held out: the raw ensemble counts as one case then, and all cells
    and lead times share their coefficients.
    """
    some = [round(k) for k in torch.linspace(0, len(leads) - 1, min(len(leads), HELD_OUT_LEADS)).tolist()]
    leads, windows = thin([leads[k] for k in some], HELD_OUT_CASES), [windows[k] for k in some] if windows else []
    count = min([HELD_OUT_FOLDS, *(len(cases.truth) for cases in leads)])
    if count < 2:
        return Sharing(raw=1)
    times = [torch.arange(len(cases.truth)) * count // len(cases.truth) for cases in leads]
    folds = [_Fold.of(leads, times, k) for k in range(count)]

    def of_all(fold: _Fold, centres: list[Tensor], weight: float, start: list[Tensor]) -> list[Tensor]:
        return [_shared(regression, fold.kept, centres[0], weight, start[0])] * len(leads)

    def of_leads(fold: _Fold, centres: list[Tensor], weight: float, start: list[Tensor]) -> list[Tensor]:
        parts = zip(fold.kept, centres, start, strict=True)
        return [_shared(regression, [cases], centre, weight, begin) for cases, centre, begin in parts]

    def of_cells(fold: _Fold, centres: list[Tensor], weight: float, start: list[Tensor]) -> list[Tensor]:
        parts = zip(fold.kept, centres, start, strict=True)
        return [_of_cells(regression, cases, centre, weight, begin)[1] for cases, centre, begin in parts]

    def of_windows(fold: _Fold, centres: list[Tensor], weight: float, start: list[Tensor]) -> list[Tensor]:
        parts = zip(fold.kept, centres, start, strict=True)
        return [_drawn(regression, cases, centre, weight, begin) for cases, centre, begin in parts]

    raw, found = _choose(regression, folds, [[_raw(regression, fold.kept)] * len(leads) for fold in folds], of_all)
    own = cells = year = math.inf
    if len(leads) > 1:
        own, found = _choose(regression, folds, found, of_leads)
    if leads[0].truth.shape[1] > 1:
        cells, found = _choose(regression, folds, found, of_cells)
    if any(windows):
        parts = [(lead, chosen) for lead, own_windows in enumerate(windows) for chosen in own_windows]
        cases = [leads[lead].select(chosen) for lead, chosen in parts]
        times = [times[lead][chosen] for lead, chosen in parts]
        folds = [_Fold.of(cases, times, k) for k in range(count)]
        year, _ = _choose(regression, folds, [[table[lead] for lead, _ in parts] for table in found], of_windows)
    return Sharing(raw, own, cells, year)


def fit_shared(regression: Regression, leads: Sequence[EMOSCases], sharing: Sharing) -> list[SharedPrior]:
    """Return what the cells are drawn to at each lead time."""
    of_all = _shared(regression, leads, _raw(regression, leads), sharing.raw)
    found = []
    for cases in leads:
        own = of_all if len(leads) == 1 else _shared(regression, [cases], of_all, sharing.leads)
        if math.isfinite(sharing.cells):
            own, _ = _of_cells(regression, cases, own, sharing.cells)
        found.append(SharedPrior(own, sharing.cells, cases.moments(regression, own)))
    return found


def sharing_note(target: str, sharing: Sharing, known: Tensor) -> str | None:
    """Return a note for the user about a target whose regressions share much; `known` (L, H, W) counts their cases."""
    counts = known[known > 0]
    few, of, own = int((counts <= sharing.cells).sum()), counts.numel(), int(counts.median()) if counts.numel() else 0
    if math.isinf(sharing.raw):
        what = "keep the raw ensemble, because held-out cases show no better coefficients"
        few = of
    elif math.isinf(sharing.cells):
        what, few = "have the coefficients of all cells", few if known[0].numel() > 1 else 0
    else:
        what = f"are nearer to the coefficients of all cells, which count as {sharing.cells:g} cases"
    return f"{target}: {few} of {of} regressions of EMOS, with {own} cases each, {what}" if few else None


class _Fold(NamedTuple):
    """The cases of each lead time, or of each window, without and in a stretch of time."""

    kept: list[EMOSCases]
    out: list[EMOSCases]

    @classmethod
    def of(cls, cases: Sequence[EMOSCases], times: Sequence[Tensor], k: int) -> _Fold:
        """Return fold `k`, where `times` say the fold (N,) of each case."""
        parts = list(zip(cases, times, strict=True))
        return cls([one.select(fold != k) for one, fold in parts], [one.select(fold == k) for one, fold in parts])


_Tables = list[list[Tensor]]
"""Coefficients (P, K) or (P, 1) of each fold and lead time."""


def _choose(
    regression: Regression, folds: Sequence[_Fold], centres: _Tables,
    fit: Callable[[_Fold, list[Tensor], float, list[Tensor]], list[Tensor]],
) -> tuple[float, _Tables]:  # fmt: skip
    """Return the weight of the `centres` with the lowest score of held-out cases, and the coefficients with it.

    Smaller and smaller weights are tried until two in succession are worse than the best one.
    """

    def score(tables: _Tables) -> float:
        return sum(
            cases.score(regression, coefficients)
            for fold, table in zip(folds, tables, strict=True)
            for cases, coefficients in zip(fold.out, table, strict=True)
        )

    best, lowest, chosen, found, worse = math.inf, score(centres), centres, centres, 0
    for weight in CASES:
        parts = zip(folds, centres, found, strict=True)
        found = [fit(fold, centre, weight, start) for fold, centre, start in parts]
        if (total := score(found)) < lowest:
            best, lowest, chosen, worse = weight, total, found, 0
        elif (worse := worse + 1) == 2:
            break
    return best, chosen


def _of_cells(
    regression: Regression, cases: EMOSCases, centre: Tensor, weight: float, start: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the centre (P, 1) with the mean spread of the cells, and the coefficients (P, K) drawn to it.

    The errors of shared coefficients contain the different biases of the cells, so that their spread is too large for
    a cell with its own bias.
    """
    found = _drawn(regression, cases, centre, weight, start)
    spread = slice(2 + len(cases.harmonics), 4 + len(cases.harmonics) + regression.has_shift)
    centre = centre.clone()
    if regression.scale == "quadratic":
        centre[spread] = found[spread].square().mean(1, keepdim=True).sqrt()
    else:
        centre[spread] = found[spread].mean(1, keepdim=True)
    return centre, found if start is None else _drawn(regression, cases, centre, weight, found)


def _drawn(
    regression: Regression, cases: EMOSCases, centre: Tensor, weight: float, start: Tensor | None = None
) -> Tensor:
    """Return the coefficients (P, K) of each cell, drawn to `centre`, which a window without cases keeps."""
    if not cases.truth.isfinite().any():
        return centre.double().expand(-1, cases.truth.shape[1])
    prior = SharedPrior(centre, weight, cases.moments(regression, centre))
    return cases.fit(regression, prior=prior, start=start).coefficients


def _raw(regression: Regression, leads: Sequence[EMOSCases]) -> Tensor:
    """Return the coefficients (P, 1) of the raw ensemble, with the limits of the spread of these cases."""
    raw = raw_coefficients(regression, bool(leads[0].harmonics)).double()
    if regression.scale == "log":
        stds = torch.cat([cases.std.flatten() for cases in leads])
        stds = stds[stds > 0]
        raw[-2:] = torch.stack([stds.min(), GREATEST_SPREAD * stds.max()]) if len(stds) else torch.ones(2)
    return raw[:, None]


def _shared(
    regression: Regression, leads: Sequence[EMOSCases], centre: Tensor, weight: float, start: Tensor | None = None
) -> Tensor:
    """Return one set of coefficients (P, 1) for all cases, drawn to `centre` with the weight of so many starts."""
    if math.isinf(weight):
        return centre
    together = EMOSCases.concat(leads)
    cells = float(together.truth.isfinite().sum()) / len(together.truth)
    prior = SharedPrior(centre, weight * cells, torch.empty(0))
    return together.fit(regression, shared=True, prior=prior, start=start).coefficients
