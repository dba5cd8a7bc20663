"""EMOS: ensemble model output statistics, the classical correction that every network has to beat.

Mean and spread of the ensemble enter a small regression of its own at every cell and lead time (Gneiting et
al. 2005, doi:10.1175/MWR2904.1): `fit_emos` and `predict_emos` on bare arrays, `EMOS` as a model. Members are
taken as exchangeable: one coefficient for the mean of all, none for each, so that any number of them in any
order will do. `fit_partly_shared` lets cells borrow from each other, `fit_trailing` learns from the latest cases only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from data_pipeline.common.checks import check_boolean, check_integer
from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.protocols import ALL
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.distribution import FAMILIES, Ensemble, LocationScale
from models.parallel.domain import Domain
from models.parallel.exchange import allsum, assemble
from models.statistical.cases import (
    Passes,
    Report,
    covers_year,
    gather,
    lead_index,
    not_seasonal,
    sharing_cells,
    sharing_note,
)
from models.statistical.crossfit import fold_index
from models.statistical.predictors import YEAR, annual_harmonics, day_of_year
from models.statistical.regression import Regression, cell_blocks

PARTS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""How far from the coefficients of all cells to its own a cell may go."""
FOLDS = 4
"""Stretches of time that are held out to find out."""
PARTLY = "partly"


def coefficient_names(regression: Regression, seasonal: bool) -> tuple[str, ...]:
    """Return what the rows of a coefficient tensor mean.

    μ = a + b mean [+ c cos φ + d sin φ] with the phase φ of the year; σ² = γ² + δ² std², or
    log σ = γ + δ log std, where a std below `least`, the smallest of the training, counts as `least`.
    """
    season_terms, guard = ("c", "d") if seasonal else (), ("least",) if regression.scale == "log" else ()
    return ("a", "b", *season_terms, "gamma", "delta", *guard)


def raw_coefficients(regression: Regression, seasonal: bool) -> Tensor:
    """Return the coefficients (P,) that leave mean and standard deviation as they are."""
    unit = FAMILIES[regression.family].standard.std
    spread = (
        {"gamma": -math.log(unit), "delta": 1.0} if regression.scale == "log" else {"gamma": 0.0, "delta": 1 / unit}
    )
    values = {"b": 1.0} | spread
    return torch.tensor([values.get(name, 0.0) for name in coefficient_names(regression, seasonal)])


def fit_emos(
    regression: Regression,
    mean: Tensor,
    std: Tensor,
    truth: Tensor,
    season: Sequence[Tensor] = (),
    *,
    lower: Tensor | None = None,
    shared: bool = False,
    weight: Tensor | None = None,
) -> Tensor:
    """Return coefficients (P, K), float64, of K cells from N cases of ensemble mean, std and truth (N, K).

    `season` holds the cosine and the sine of the year's phase, (N, 1) each, or nothing; `lower` (K,) the
    values below which nothing of a bounded family lies. `shared` pools all cells, which count by their `weight`
    (K,), and returns (P, 1). A case with a NaN is left out; coefficients are NaN where cases are too few or
    without error.
    """
    regression.check_lower(lower)

    def arranged(values: Tensor) -> Tensor:
        values = values.to(truth.device).expand_as(truth)
        return values.reshape(-1, 1) if shared else values

    mean, std, weight = arranged(mean), arranged(std), arranged(torch.ones(()) if weight is None else weight)
    season, lower = [arranged(term) for term in season], None if lower is None else arranged(lower)
    truth = arranged(truth)
    fitted = []
    for cells in cell_blocks(*reversed(truth.shape)):
        m, s, y, w, *terms = (values[:, cells].T for values in (mean, std, truth, weight, *season))
        valid = m.isfinite() & s.isfinite() & y.isfinite()
        m, s, y, w = (torch.where(valid, values, 0) for values in (m, s, y, w))
        guard = []
        if regression.scale == "log":
            least = torch.where(s > 0, s, torch.inf).amin(1, keepdim=True)
            guard = [torch.where(least.isfinite(), least, 1)]
            s = torch.maximum(s, guard[0]).log()
        one = torch.ones_like(m[:1])
        found = regression.fit([one, m, *terms], [one, s], y, w, None if lower is None else lower[:, cells].T)
        if regression.scale == "quadratic":
            found[-2:].abs_()  # only their squares count
        known = ~found[:1].isnan()
        fitted.append(torch.cat([found, *(torch.where(known, g.T, torch.nan).to(found) for g in guard)]))
    return torch.cat(fitted, dim=1)


def predict_emos(
    regression: Regression,
    coefficients: Tensor,
    mean: Tensor,
    std: Tensor,
    season: Sequence[Tensor] = (),
    lower: Tensor | None = None,
) -> LocationScale:
    """Return the distribution (*S) for coefficients (P, *S), ensemble mean, std and the season's terms."""
    if regression.scale == "log":
        coefficients, least = coefficients[:-1], coefficients[-1]
        std = torch.maximum(std, least).log()
    return regression.predict(coefficients, [torch.ones_like(mean), mean, *season], [torch.ones_like(std), std], lower)


def fit_partly_shared(
    regression: Regression,
    mean: Tensor,
    std: Tensor,
    truth: Tensor,
    season: Sequence[Tensor] = (),
    *,
    lower: Tensor | None = None,
    weight: Tensor | None = None,
) -> Tensor:
    """Return coefficients (P, K) between those that all cells share and those of each cell, for few cases.

    θ_k = θ + w (θ_k' - θ), with the one w of `PARTS` for all cells whose forecasts of held-out stretches of time score
    best: none is fitted to more of the noise than pays. Arguments are those of `fit_emos`, the N cases in order of
    time. A cell that has too few for coefficients of its own has those of all.
    """
    common = fit_common(regression, mean, std, truth, season, lower=lower, weight=weight)
    own, scores = fit_own(regression, common, mean, std, truth, season, lower=lower, weight=weight)
    return between(common[-1], own, scores)


def fit_common(
    regression: Regression,
    mean: Tensor,
    std: Tensor,
    truth: Tensor,
    season: Sequence[Tensor] = (),
    *,
    lower: Tensor | None = None,
    weight: Tensor | None = None,
) -> Tensor:
    """Return coefficients (`FOLDS` + 1, P, 1) that all cells share: without each stretch of time, and from all cases.

    Arguments are those of `fit_partly_shared`.
    """
    return torch.stack(
        [
            fit_emos(regression, *some, lower=lower, shared=True, weight=weight)
            for some in (_some(kept, mean, std, truth, season) for kept, _ in _stretches(truth))
        ]
    )


def fit_own(
    regression: Regression,
    common: Tensor,
    mean: Tensor,
    std: Tensor,
    truth: Tensor,
    season: Sequence[Tensor] = (),
    *,
    lower: Tensor | None = None,
    weight: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the coefficients (P, K) of each cell, and the sum (`PARTS`,) of the scores of held-out stretches.

    `common` is from `fit_common`, and serves cells with too few cases of their own. Cells do not depend on each other:
    sums of some cells and of the others make the sum of all. Other arguments are those of `fit_partly_shared`.
    """
    area = torch.ones(truth.shape[1]) if weight is None else weight
    scores = truth.new_zeros(len(PARTS), dtype=torch.float64)
    own = common[-1].expand(-1, truth.shape[1])
    for shared, (kept, out) in zip(common, _stretches(truth), strict=True):
        own = fit_emos(regression, *_some(kept, mean, std, truth, season), lower=lower)
        own = torch.where(own.isnan(), shared, own)
        for cells in cell_blocks(truth.shape[1], int(out.sum())) if out.any() else ():
            m, s, y = (values.expand_as(truth)[out][:, cells] for values in (mean, std, truth))
            bound = None if lower is None else lower[cells]
            y = y if bound is None else y.maximum(bound)
            for i, part in enumerate(PARTS):
                found = shared.lerp(own[:, cells], part)[:, None]
                forecast = predict_emos(regression, found, m, s, [term[out] for term in season], bound)
                scores[i] += (regression.loss(forecast, y) * area[cells]).nansum()
    return own, scores


def between(common: Tensor, own: Tensor, scores: Tensor) -> Tensor:
    """Return coefficients as far from `common` (P, 1) to `own` (P, K) as the held-out `scores` (`PARTS`,) advise."""
    return common.lerp(own, PARTS[int(scores.argmin())])


def _stretches(truth: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield which cases (N,) are kept and which are held out, for each of `FOLDS` stretches, then for all cases."""
    fold = torch.arange(len(truth), device=truth.device) * FOLDS // max(len(truth), 1)
    for k in range(FOLDS + 1):
        yield fold != k, fold == k


def _some(
    kept: Tensor, mean: Tensor, std: Tensor, truth: Tensor, season: Sequence[Tensor]
) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    """Return some of the cases, as `fit_emos` takes them."""
    m, s, y = (values.expand_as(truth)[kept] for values in (mean, std, truth))
    return m, s, y, [term[kept] for term in season]


def fit_trailing(
    regression: Regression,
    mean: Tensor,
    std: Tensor,
    truth: Tensor,
    length: int,
    *,
    delay: int = 1,
    lower: Tensor | None = None,
) -> Tensor:
    """Return coefficients (P, N, K) for each of N successive cases, of the `length` cases that end `delay` before it.

    The training of Gneiting et al. 2005, which follows a forecast model that changes: those who correct the case at
    hand know the truth of none after. Coefficients of the first cases, which have too few before them, are NaN.
    Every window is a cell of `fit_emos`; mean, std and truth are (N, K).
    """
    check_integer("length", length, 1)
    check_integer("delay", delay, 1)
    first = length + delay - 1
    count = len(truth) - first
    names = coefficient_names(regression, seasonal=False)
    found = torch.full((len(names), *truth.shape), torch.nan, dtype=torch.float64)
    if count > 0:
        m, s, y = (v.expand_as(truth).unfold(0, length, 1)[:count].flatten(0, 1).T for v in (mean, std, truth))
        lower = None if lower is None else lower.repeat(count)
        found[:, first:] = fit_emos(regression, m, s, y, lower=lower).unflatten(1, (count, -1))
    return found


class _Regression(NamedTuple):
    """One fit of EMOS: for which of the `places` (lead time and window) in which table of coefficients, to what."""

    table: int
    lead: int
    target: int
    places: Sequence[int]
    main: bool
    """Whether it is of all cases of the lead time."""
    cases: tuple[Tensor, Tensor, Tensor, list[Tensor]]
    """Ensemble mean, std, truth (N, K) and the season's terms (N, 1), in order of time."""

    @property
    def truth(self) -> Tensor:
        """The truth (N, K)."""
        return self.cases[2]


class EMOS(nn.Module):
    """Corrects mean and spread of the ensemble, with coefficients per cell, target and lead time.

    Unfitted, and at cells without truth, it has the ensemble's own mean and standard deviation. `seasonal`
    lets the bias follow the year; so does `window`, and with it all other coefficients. `shared` takes one set of
    coefficients for the whole globe, or, if `partly`, lets each cell depart from it as far as held-out cases advise
    (`fit_partly_shared`). `family`, `scale` and `score` are those of `Regression`; `lower` is the value
    below which nothing of a bounded family lies, in the target's units.

    The window is one of the calendar: the coefficients of a day are fitted to the cases of all training years
    that are valid within `window` days of it. A window of the latest days, the other meaning of rolling, is for
    forecasts that are verified day by day (`fit_trailing`); a corrector is one file, made of reforecasts, and used long
    after. There are two windows to each `window` days, 24 times as many numbers for 30 days; between their centres
    coefficients are interpolated. A window with fewer than two cases per coefficient takes those of the whole year.
    """

    targets_only = moments_only = any_grid = tiles = True
    coefficients: Tensor
    lower: Tensor | None

    def __init__(
        self,
        task: Task,
        grid: Grid | Domain,
        family: str = "normal",
        seasonal: bool = True,
        scale: str = "quadratic",
        score: str = "crps",
        shared: bool | str = False,
        lower: float | None = None,
        window: int | None = None,
    ) -> None:
        super().__init__()
        if window is not None:
            check_integer("model.window", window, 1, 182)
            if seasonal:
                raise InputError(f"model.window={window} follows the year as model.seasonal does; set seasonal=false")
        check_boolean("model.seasonal", seasonal)
        if type(shared) is not bool and shared != PARTLY:
            raise InputError(f"model.shared must be true, false or {PARTLY}, got {shared!r}")
        self.window, self.report = window, Report()
        self.regression = Regression(family, scale, score)
        self.regression.check_lower(lower)
        self.seasonal, self.shared, self._task = seasonal, shared, task
        self._domain = Domain.of(grid)
        self._targets, self._lower = list(task.target_channels), lower
        raw = raw_coefficients(self.regression, seasonal)
        L, T, cells = len(task.lead_times), len(task.targets), (1, 1) if shared is True else grid.shape
        self.windows = 1 if window is None else min(365, round(2 * YEAR / window))
        self.register_buffer("coefficients", raw.view(-1, 1, 1, 1).expand(L * self.windows, -1, T, *cells).clone())
        self.register_buffer("lower", None if lower is None else torch.full((T, *grid.shape), float(lower)))
        weights = torch.tensor(self._domain.grid.weights, dtype=torch.float32)
        self._area = weights[:, None].expand(grid.shape)

    def forward(self, sample: Sample) -> LocationScale:
        """Return the corrected distribution over (B, T, H, W)."""
        table = self.coefficients if self.shared is True else self._domain.cut(self.coefficients)
        return self.predict(sample, table, lead_index(sample.lead_time, self._task))

    def predict(self, sample: Sample, table: Tensor, place: Tensor) -> LocationScale:
        """Return the distribution by a table of coefficients, whose rows for each sample begin `place` (B,) windows in.

        The table (n windows, P, T, H, W) holds the own tile, or one cell that all share.
        """
        mean, std, terms = self._predictors(sample)
        table, first = table.to(mean), place * self.windows
        if self.window is None:
            coefficients = table[first]
        else:
            position = self._days(sample) * (self.windows / YEAR)
            before, part = position.long(), position.frac().to(mean).view(-1, 1, 1, 1, 1)
            coefficients = table[first + before].lerp(table[first + (before + 1) % self.windows], part)
        coefficients = coefficients.movedim(1, 0)
        lower = None if self.lower is None else self._domain.cut(self.lower)
        return predict_emos(self.regression, coefficients, mean, std, terms, lower)

    def normalise(self, location: Tensor, scale: Tensor) -> None:
        """Put the censoring point into the units (x - location)/scale, in which samples will come."""
        if self.lower is not None and self._lower is not None:
            self.lower.copy_(assemble((self._lower - location) / scale, self._domain))

    @torch.no_grad()
    def fit(self, batches: Iterable[Sample], ends: Tensor | None = None) -> Tensor | None:
        """Fit all cells to the training samples, some rows at a time, so that their cases fit into memory.

        Coefficients that all cells share are fitted to the cells of `sharing_cells`. Where the cases of a lead time do
        not cover the year a seasonal bias is a constant. `report` says both, and how many cells could not be fitted;
        raises `TooFewCasesError` where none could.

        With the `ends` of folds (see `year_folds`) also returns (F, L windows, P, T, h, w): for each fold the
        coefficients of the own tile, or those that all cells share, fitted to the cases of all other folds.
        """
        passes, leads = Passes.of(batches), self._task.lead_times
        passes.check_leads(self._task)
        T, tile = len(self._targets), self._domain.own_shape
        shape = (*self.coefficients.shape[:3], *((1, 1) if self.shared is True else tile))
        raw = raw_coefficients(self.regression, self.seasonal).to(self.coefficients).view(-1, 1, 1, 1)
        tables = [raw.expand(shape).clone() for _ in range(1 if ends is None else len(ends) + 2)]
        known, fitted = torch.zeros(2, len(leads), *shape[2:])
        notes: list[str | None] = []

        def keep(one: _Regression, rows: slice, found: Tensor) -> None:
            found = self._with_season(one, found).view(raw.shape[0], *tables[0][0, 0, 0, rows].shape)
            there = ~found[0].isnan()
            for place in one.places:
                old = tables[one.table][place, :, one.target, rows]
                old.copy_(torch.where(there, found.to(old), old))
            if one.main:
                seen = one.truth.isfinite().any(0)
                seen = seen.any().view(1, 1) if self.shared is True else seen.view_as(there)
                known[one.lead, one.target, rows], fitted[one.lead, one.target, rows] = seen.float(), there.float()

        common: list[Tensor] = []
        if self.shared:
            cells = sharing_cells(len(passes.init_time), self._domain.grid.shape)
            notes.append(sharing_note(cells, self._domain.grid.shape))
            fit = fit_common if self.shared == PARTLY else partial(fit_emos, shared=True)
            for one in self._regressions(passes, partial(self._shared_case, cells), ALL, ends):
                lower = None if self.lower is None else self.lower[one.target].flatten()[cells]
                found = fit(self.regression, *one.cases, lower=lower, weight=self._area.flatten()[cells])
                common.append(found)
                if self.shared is True:
                    keep(one, ALL, found)
        if self.shared is not True:
            scores = torch.zeros(len(common), len(PARTS), dtype=torch.float64)
            # Of the regressions for a window, the last one whose coefficients are known counts.
            last: dict[tuple[int, int, int], int] = {}
            for rows in passes.blocks(len(passes.init_time) * tile[1] * T * 12):
                area = self._domain.cut(self._area)[rows].flatten()
                for k, one in enumerate(self._regressions(passes, self._case, rows, ends)):
                    lower = None if self.lower is None else self._domain.cut(self.lower)[one.target, rows].flatten()
                    if not self.shared:
                        keep(one, rows, fit_emos(self.regression, *one.cases, lower=lower))
                        continue
                    own, score = fit_own(self.regression, common[k], *one.cases, lower=lower, weight=area)
                    scores[k] += score
                    keep(one, rows, own)
                    if not common[k][-1].isnan().any():
                        last |= {(one.table, place, one.target): k for place in one.places}
            if self.shared:
                scores = allsum(scores, self._domain)
            for (table, place, target), k in last.items():
                coefficients = tables[table][place, :, target]
                without_season = common[k].shape[1] < coefficients.shape[0]
                shared = self._padded(common[k][-1]) if without_season else common[k][-1]
                coefficients.copy_(
                    between(shared.to(coefficients), coefficients.flatten(1), scores[k]).view_as(coefficients)
                )
            tables[0], known, fitted = (assemble(values, self._domain) for values in (tables[0], known, fitted))
        self.coefficients.copy_(tables[0])
        covered = [not self.seasonal or covers_year(passes.days(lead)) for lead in leads]
        self.report = Report([note for note in [*notes, not_seasonal(self._task, covered)] if note])
        needed = 2 * (4 + 2 * self.seasonal)
        for lead, hours in enumerate(leads):
            for t in range(T):
                self.report.count(fitted[lead, t] > 0, known[lead, t] > 0, hours, "EMOS", needed)
        return None if ends is None else torch.stack(tables[1:])

    def _regressions(
        self,
        passes: Passes,
        case: Callable[[Sample], tuple[Tensor, ...]],
        rows: slice,
        ends: Tensor | None,
    ) -> Iterator[_Regression]:
        """Read the cases of some rows; yield what is fitted to them, always in the same order.

        For each lead time, for all cases and for those outside each fold: the whole year, then each window of days.
        """
        for lead, (valid, *cases) in enumerate(gather(passes, self._task, case, rows)):
            order = valid.argsort(stable=True)
            valid, days, *cases = (values[order] for values in (valid, *cases))
            first = lead * self.windows
            for table in range(1 if ends is None else len(ends) + 2):
                others = torch.ones_like(valid, dtype=torch.bool)
                if ends is not None and table:
                    others = fold_index(valid, ends) != table - 1
                # Harmonics that are nearly constants would get huge coefficients.
                cyclic = self.seasonal and bool(others.any()) and covers_year(days[others] + 1)
                yield from self._of_targets(table, lead, range(first, first + self.windows), others, cyclic, cases)
                if self.window is None:
                    continue
                for k in range(self.windows):
                    away = (days - k * YEAR / self.windows).abs()
                    near = others & (torch.minimum(away, YEAR - away) <= self.window)
                    if near.any():
                        yield from self._of_targets(table, lead, [first + k], near, False, cases)

    def _of_targets(
        self, table: int, lead: int, places: Sequence[int], chosen: Tensor, cyclic: bool, cases: list[Tensor]
    ) -> Iterator[_Regression]:
        mean, std, truth, *terms = (values[chosen] for values in cases)
        for t in range(len(self._targets)):
            m, s, y = (values[:, t].flatten(1) for values in (mean, std, truth))
            season = [term.flatten(1) for term in terms] if cyclic else []
            main = table == 0 and len(places) == self.windows
            yield _Regression(table, lead, t, places, main, (m, s, y, season))

    def _with_season(self, one: _Regression, found: Tensor) -> Tensor:
        """Return coefficients (P, K); those of an annual cycle are zero where there is none."""
        return self._padded(found) if self.seasonal and not one.cases[3] else found

    def _padded(self, found: Tensor) -> Tensor:
        return torch.cat([found[:2], found[:1] * 0, found[:1] * 0, found[2:]])

    def _predictors(self, sample: Sample) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Return ensemble mean and standard deviation (B, T, H, W) and the season's terms (B, 1, 1, 1)."""
        ensemble = Ensemble(sample.ensemble[:, :, self._targets].movedim(1, 0))
        mean, std = ensemble.mean, ensemble.std
        if not self.seasonal:
            return mean, std, []
        terms = annual_harmonics(sample.init_time, sample.lead_time).to(mean)
        return mean, std, [term[:, None, None, None] for term in terms.T]

    def _days(self, sample: Sample) -> Tensor:
        """Return the days (B,) from the start of the year to the time that each forecast is valid."""
        return day_of_year(sample.init_time, sample.lead_time).double() - 1

    def _shared_case(self, cells: Tensor, sample: Sample) -> tuple[Tensor, ...]:
        """Return what `_case` does of some cells of the whole grid, (B, T, S); all ranks must ask together."""
        (
            valid,
            days,
            *fields,
        ) = self._case(sample)
        maps, terms = fields[:3], fields[3:]
        chosen = [assemble(values, self._domain).flatten(-2)[..., cells] for values in maps]
        return valid, days, *chosen, *terms

    def _case(self, sample: Sample) -> tuple[Tensor, ...]:
        """Return what a fit needs of a batch; the truth is NaN where it or a member is missing."""
        mean, std, terms = self._predictors(sample)
        truth = sample.target.masked_fill(~sample.mask[:, self._targets], torch.nan)
        return sample.init_time + 3600 * sample.lead_time, self._days(sample), mean, std, truth, *terms
