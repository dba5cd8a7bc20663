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
from functools import partial
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


FIT_STEPS, CHOICE_STEPS = 10, 150
"""How often the score of a case is computed in a fit, and in the choice of the weights if the case is held out."""


class Sharing(NamedTuple):
    """Weights of the groups, as numbers of cases."""

    raw: float = math.inf
    """Of the raw ensemble, for the coefficients of all lead times."""
    slope: float = math.inf
    """Of coefficients with the slope of the raw ensemble, for those with another slope (`EMOSCases.one_season`)."""
    leads: float = math.inf
    """Of all lead times, for the coefficients of one."""
    cells: float = math.inf
    """Of all cells, for the coefficients of one."""
    year: float = math.inf
    """Of the whole year, for the coefficients of a window."""


def expected_evaluations(starts: int, cells: int, leads: int) -> int:
    """Return how often a fit of a target with estimated sharing computes the score of a case, about."""
    sample = min(leads, HELD_OUT_LEADS) * starts * min(cells, _sample_cells(starts, HELD_OUT_CASES))
    return FIT_STEPS * starts * cells * leads + CHOICE_STEPS * sample


def _sample_cells(starts: int, most: int) -> int:
    """Return the number of cells with about `most` cases."""
    return max(SAMPLE_CELLS[0], min(SAMPLE_CELLS[1], most // max(starts, 1)))


def thin(leads: Sequence[EMOSCases], most: int = SAMPLE_CASES) -> list[EMOSCases]:
    """Return the cases of all lead times, about `most` each, at cells with a truth, spread evenly.

    No lead time has a season if another one has none.
    """
    known = torch.stack([cases.truth.isfinite().any(0) for cases in leads]).any(0).nonzero()[:, 0]
    cells = _sample_cells(max(len(cases.truth) for cases in leads), most)
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
    folds = [torch.arange(len(cases.truth)) * count // len(cases.truth) for cases in leads]
    data = [_HeldOut.of(cases, fold, count) for cases, fold in zip(leads, folds, strict=True)]

    def of_all(centres: Tables, weight: float, start: Tables) -> Tables:
        return [_shared(regression, [one.kept for one in data], centres[0], weight, start[0], count)] * len(data)

    def of_slope(centres: Tables, weight: float, start: Tables) -> Tables:
        kept = [replace(one.kept, one_season=False) for one in data]
        return [_shared(regression, kept, centres[0], weight, start[0], count)] * len(data)

    def of_each(fit: Callable[..., Tensor]) -> Callable[[Tables, float, Tables], Tables]:
        def of_parts(centres: Tables, weight: float, start: Tables) -> Tables:
            parts = zip(data, centres, start, strict=True)
            return [fit(one.kept, centre, weight, begin, count) for one, centre, begin in parts]

        return of_parts

    found = [_raw(regression, [one.kept for one in data], count)] * len(data)
    raw, found = _choose(regression, data, found, of_all, always=leads[0].one_season)
    slope = own = cells = year = math.inf
    if leads[0].one_season and leads[0].truth.shape[1] >= SAMPLE_CELLS[0]:
        slope, found = _choose(regression, data, found, of_slope, always=True)
    if len(leads) > 1:
        own, found = _choose(regression, data, found, of_each(lambda kept, *rest: _shared(regression, [kept], *rest)))
    if leads[0].truth.shape[1] > 1:
        cells, found = _choose(regression, data, found, of_each(lambda *kept: _of_cells(regression, *kept)[1]))
    if any(windows):
        parts = [(lead, chosen) for lead, own_windows in enumerate(windows) for chosen in own_windows]
        data = [_HeldOut.of(leads[lead].select(chosen), folds[lead][chosen], count) for lead, chosen in parts]
        year, _ = _choose(regression, data, [found[lead] for lead, _ in parts], of_each(partial(_drawn, regression)))
    return Sharing(raw, slope, own, cells, year)


def fit_shared(regression: Regression, leads: Sequence[EMOSCases], sharing: Sharing) -> list[SharedPrior]:
    """Return what the cells are drawn to at each lead time."""
    of_all = _shared(regression, leads, _raw(regression, leads), sharing.raw)
    of_all = _shared(regression, [replace(cases, one_season=False) for cases in leads], of_all, sharing.slope)
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


Tables = list[Tensor]
"""Coefficients (P, F) or (P, F·K) of the folds, for each lead time."""


class _HeldOut(NamedTuple):
    """F sets of the cells of a lead time, or of a window: without a stretch of time, and in it."""

    kept: EMOSCases
    out: EMOSCases
    folds: int

    @classmethod
    def of(cls, cases: EMOSCases, fold: Tensor, count: int) -> _HeldOut:
        """Return the sets; `fold` (N,) is the stretch of each case."""
        out = fold == torch.arange(count)[:, None]
        return cls(cases.repeated(~out), cases.repeated(out), count)

    def scores(self, regression: Regression, table: Tensor) -> Tensor:
        """Return the summed score (F,) in each stretch of time."""
        return self.out.score(regression, _spread_out(table, self.out)).unflatten(0, (self.folds, -1)).sum(1)


def _choose(
    regression: Regression,
    data: Sequence[_HeldOut],
    centres: Tables,
    fit: Callable[[Tables, float, Tables], Tables],
    always: bool = False,
) -> tuple[float, Tables]:
    """Return the weight of the `centres` with the lowest score of held-out cases, and the coefficients with it.

    Smaller and smaller weights are tried until two in succession are worse than the best one. With `always`, a weight
    must be better than the centres in each stretch of time.
    """

    def scores(tables: Tables) -> Tensor:
        found = [one.scores(regression, table) for one, table in zip(data, tables, strict=True)]
        return torch.stack(found).sum(0)

    theirs = scores(centres)
    best, lowest, chosen, found, worse = math.inf, float(theirs.sum()), centres, centres, 0
    for weight in CASES:
        found = fit(centres, weight, found)
        own = scores(found)
        if (total := float(own.sum())) < lowest and (not always or bool((own < theirs).all())):
            best, lowest, chosen, worse = weight, total, found, 0
        elif (worse := worse + 1) == 2:
            break
    return best, chosen


def _spread_out(table: Tensor, cases: EMOSCases) -> Tensor:
    """Return the coefficients (P, F·K) of all cells of each set from those (P, F) of the sets."""
    return table.repeat_interleave(cases.truth.shape[1] // table.shape[1], 1)


def _of_cells(
    regression: Regression, cases: EMOSCases, centre: Tensor, weight: float, start: Tensor | None = None, sets: int = 1
) -> tuple[Tensor, Tensor]:
    """Return the centre (P, S) with the mean spread of the cells, and the coefficients (P, S·K) drawn to it.

    The errors of shared coefficients contain the different biases of the cells, so that their spread is too large for
    a cell with its own bias.
    """
    found = _drawn(regression, cases, centre, weight, start, sets)
    spread = slice(2 + len(cases.terms), 4 + len(cases.terms) + regression.has_shift)
    centre, theirs = centre.clone(), found[spread].unflatten(1, (sets, -1))
    centre[spread] = theirs.square().mean(2).sqrt() if regression.scale == "quadratic" else theirs.mean(2)
    return centre, found if start is None else _drawn(regression, cases, centre, weight, found, sets)


def _drawn(
    regression: Regression, cases: EMOSCases, centre: Tensor, weight: float, start: Tensor | None = None, sets: int = 1
) -> Tensor:
    """Return the coefficients (P, S·K) of each cell, drawn to `centre`, which a window without cases keeps."""
    centre = _spread_out(centre.double(), cases)
    prior = SharedPrior(centre, weight, cases.moments(regression, centre, sets))
    start = None if start is None else _spread_out(start, cases)
    return cases.fit(regression, prior=prior, start=start, sets=sets).coefficients


def _raw(regression: Regression, leads: Sequence[EMOSCases], sets: int = 1) -> Tensor:
    """Return the coefficients (P, S) of the raw ensemble, with the limits of the spread of these cases."""
    raw = raw_coefficients(regression, bool(leads[0].harmonics), len(leads[0].departures))
    raw = raw.double()[:, None].repeat(1, sets)
    if regression.scale == "log":
        stds = [torch.where(cases.truth.isfinite(), cases.std, torch.nan) for cases in leads]
        std = torch.cat([values.unflatten(1, (sets, -1)).movedim(1, 0).flatten(1) for values in stds], 1)
        least = torch.where(std > 0, std, torch.inf).amin(1)
        most = torch.where(std > 0, std, -torch.inf).amax(1)
        known = least.isfinite()
        raw[-2:] = torch.where(known, torch.stack([least, GREATEST_SPREAD * most]), 1)
    return raw


def _shared(
    regression: Regression,
    leads: Sequence[EMOSCases],
    centre: Tensor,
    weight: float,
    start: Tensor | None = None,
    sets: int = 1,
) -> Tensor:
    """Return one set of coefficients (P, S) for all cases, drawn to `centre` with the weight of so many starts."""
    if math.isinf(weight):
        return centre
    together = EMOSCases.concat(leads)
    known = together.truth.isfinite().unflatten(1, (sets, -1)).sum((0, 2))
    starts = together.truth.isfinite().unflatten(1, (sets, -1)).any(2).sum(0)
    cells = known.double() / starts.clamp(min=1)
    prior = SharedPrior(centre, weight * cells, torch.empty(0))
    return together.fit(regression, shared=True, prior=prior, start=start, sets=sets).coefficients
