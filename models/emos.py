"""EMOS: ensemble model output statistics, the classical correction that every network has to beat.

Mean and spread of the ensemble enter a small regression of its own at every cell and lead time (Gneiting et
al. 2005, doi:10.1175/MWR2904.1): `fit_emos` and `predict_emos` on bare arrays, `EMOS` as a model. Members are
taken as exchangeable: one coefficient for the mean of all, none for each, so that any number of them in any
order will do. `fit_partly_shared` lets cells borrow from each other, `fit_trailing` learns from the latest cases only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from data_pipeline.checks import whole, yes_or_no
from data_pipeline.errors import InputError
from data_pipeline.fields import ALL
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.cases import Passes, Report, covers_year, gather, lead_index, not_seasonal
from models.crossfit import fold_index
from models.distribution import FAMILIES, Ensemble, LocationScale
from models.regression import Regression, cell_blocks
from models.season import YEAR, day_of_year, season
from models.spatial.domain import Domain
from models.spatial.exchange import assemble

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

    def both(cases: Tensor) -> tuple[Tensor, Tensor]:
        """Return the coefficients (P, 1) of all cells and those (P, K) of each, from some cases."""
        m, s, y = (values.expand_as(truth)[cases] for values in (mean, std, truth))
        terms = [term[cases] for term in season]
        common = fit_emos(regression, m, s, y, terms, lower=lower, shared=True, weight=weight)
        own = fit_emos(regression, m, s, y, terms, lower=lower)
        return common, torch.where(own.isnan(), common, own)

    area = torch.ones(truth.shape[1]) if weight is None else weight
    fold = torch.arange(len(truth), device=truth.device) * FOLDS // len(truth)
    scores = truth.new_zeros(len(PARTS), dtype=torch.float64)
    for out in (fold == k for k in range(FOLDS)):
        common, own = both(~out)
        for cells in cell_blocks(truth.shape[1], int(out.sum())):
            m, s, y = (values.expand_as(truth)[out][:, cells] for values in (mean, std, truth))
            bound = None if lower is None else lower[cells]
            y = y if bound is None else y.maximum(bound)
            for i, part in enumerate(PARTS):
                found = common.lerp(own[:, cells], part)[:, None]
                forecast = predict_emos(regression, found, m, s, [term[out] for term in season], bound)
                scores[i] += (regression.loss(forecast, y) * area[cells]).nansum()
    common, own = both(torch.ones_like(fold, dtype=torch.bool))
    return common.lerp(own, PARTS[int(scores.argmin())])


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
    whole("length", length, 1)
    whole("delay", delay, 1)
    first = length + delay - 1
    count = len(truth) - first
    names = coefficient_names(regression, seasonal=False)
    found = torch.full((len(names), *truth.shape), torch.nan, dtype=torch.float64)
    if count > 0:
        m, s, y = (v.expand_as(truth).unfold(0, length, 1)[:count].flatten(0, 1).T for v in (mean, std, truth))
        lower = None if lower is None else lower.repeat(count)
        found[:, first:] = fit_emos(regression, m, s, y, lower=lower).unflatten(1, (count, -1))
    return found


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
            whole("model.window", window, 1, 182)
            if seasonal:
                raise InputError(f"model.window={window} follows the year as model.seasonal does; set seasonal=false")
        yes_or_no("model.seasonal", seasonal)
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

        With shared coefficients all cases, 12 bytes for each cell, are in memory. Where the cases of a lead time do not
        cover the year a seasonal bias is a constant. `report` says so, and how many cells could not be fitted; raises
        `TooFewCasesError` where none could.

        With the `ends` of folds (see `year_folds`) also returns (F, L windows, P, T, h, w): for each fold the
        coefficients of the own tile, or those that all cells share, fitted to the cases of all other folds.
        """
        passes, leads = Passes.of(batches), self._task.lead_times
        passes.check_leads(self._task)
        T, tile = len(self._targets), self._domain.own_shape
        held_out: list[int | None] = [None, *range(0 if ends is None else len(ends) + 1)]
        shape = (*self.coefficients.shape[:3], *(self.coefficients.shape[3:] if self.shared else tile))
        raw = raw_coefficients(self.regression, self.seasonal).to(self.coefficients).view(-1, 1, 1, 1)
        tables = [raw.expand(shape).clone() for _ in held_out]
        known, fitted = torch.zeros(2, len(leads), *shape[2:])
        for rows in [ALL] if self.shared else passes.blocks(len(passes.init_time) * tile[1] * T * 12):
            for lead, (valid, *cases) in enumerate(gather(passes, self._task, self._case, rows)):
                if self.shared:
                    order = valid.argsort(stable=True)
                    valid, *cases = (values[order] for values in (valid, *cases))
                    # What all cells share, every rank works out by itself.
                    cases[1:4] = [assemble(values, self._domain) for values in cases[1:4]]
                seen = cases[3].isfinite().any(0)
                known[lead, :, rows] = (seen.flatten(1).any(1).view(T, 1, 1) if self.shared is True else seen).float()
                for fold, table in zip(held_out, tables, strict=True):
                    part = table[lead * self.windows : (lead + 1) * self.windows, ..., rows, :]
                    if ends is None or fold is None:
                        fitted[lead, :, rows] = self._fit_windows(part, rows, *cases).float()
                    else:
                        others = fold_index(valid, ends) != fold
                        self._fit_windows(part, rows, *(values[others] for values in cases))
        if not self.shared:
            tables[0], known, fitted = (assemble(values, self._domain) for values in (tables[0], known, fitted))
        self.coefficients.copy_(tables[0])
        covered = [not self.seasonal or covers_year(passes.days(lead)) for lead in leads]
        self.report = Report([note for note in [not_seasonal(self._task, covered)] if note])
        needed = 2 * (4 + 2 * self.seasonal)
        for lead, hours in enumerate(leads):
            for t in range(T):
                self.report.count(fitted[lead, t] > 0, known[lead, t] > 0, hours, "EMOS", needed)
        if ends is None:
            return None
        return torch.stack([self._domain.cut(t) if self.shared == PARTLY else t for t in tables[1:]])

    def _fit_windows(
        self, table: Tensor, rows: slice, days: Tensor, mean: Tensor, std: Tensor, truth: Tensor, *terms: Tensor
    ) -> Tensor:
        """Put the coefficients of all windows into `table` (windows, P, T, H, W); return where there are any."""
        # Harmonics that are nearly constants would get huge coefficients.
        cyclic = self.seasonal and len(days) > 0 and covers_year(days + 1)
        fitted = self._fit(table, rows, mean, std, truth, list(terms) if cyclic else [])
        if self.window is not None:
            for k, row in enumerate(table):
                away = (days - k * YEAR / self.windows).abs()
                near = torch.minimum(away, YEAR - away) <= self.window
                if near.any():
                    self._fit(row[None], rows, mean[near], std[near], truth[near], [])
        return fitted

    def _fit(self, table: Tensor, rows: slice, mean: Tensor, std: Tensor, truth: Tensor, terms: list[Tensor]) -> Tensor:
        """Put the coefficients of these cases into all rows of `table` (D, P, T, H, W); return where there are any."""
        fitted = torch.zeros(table.shape[2:], dtype=torch.bool)
        # One set of coefficients for the whole globe is still one for each target.
        for t in range(len(self._targets)):
            m, s, y = (values[:, t].flatten(1) for values in (mean, std, truth))
            flat, lower = [term.flatten(1) for term in terms], None if self.lower is None else self.lower[t]
            if self.shared:
                fit = fit_partly_shared if self.shared == PARTLY else partial(fit_emos, shared=True)
                lower = None if lower is None else lower.flatten()
                found = fit(self.regression, m, s, y, flat, lower=lower, weight=self._area.flatten())
            else:
                lower = None if lower is None else self._domain.cut(lower)[rows].flatten()
                found = fit_emos(self.regression, m, s, y, flat, lower=lower)
            if self.seasonal and not terms:
                found = torch.cat([found[:2], found[:1] * 0, found[:1] * 0, found[2:]])  # no annual cycle
            found = found.view(table.shape[1], *table.shape[3:])
            fitted[t] = ~found[0].isnan()
            table[:, :, t] = torch.where(fitted[t], found.to(table), table[:, :, t])
        return fitted

    def _predictors(self, sample: Sample) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Return ensemble mean and standard deviation (B, T, H, W) and the season's terms (B, 1, 1, 1)."""
        ensemble = Ensemble(sample.ensemble[:, :, self._targets].movedim(1, 0))
        mean, std = ensemble.mean, ensemble.std
        if not self.seasonal:
            return mean, std, []
        terms = season(sample.init_time, sample.lead_time).to(mean)
        return mean, std, [term[:, None, None, None] for term in terms.T]

    def _days(self, sample: Sample) -> Tensor:
        """Return the days (B,) from the start of the year to the time that each forecast is valid."""
        return day_of_year(sample.init_time, sample.lead_time).double() - 1

    def _case(self, sample: Sample) -> tuple[Tensor, ...]:
        """Return what a fit needs of a batch; the truth is NaN where it or a member is missing."""
        mean, std, terms = self._predictors(sample)
        truth = sample.target.masked_fill(~sample.mask[:, self._targets], torch.nan)
        return sample.init_time + 3600 * sample.lead_time, self._days(sample), mean, std, truth, *terms
