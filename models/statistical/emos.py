"""EMOS: ensemble model output statistics, the classical correction and the baseline of every network.

Members are exchangeable: one coefficient for the mean of all members, none for a single member, so that number and
order of the members do not matter. The same holds within groups of members, if the task has groups. The regression
itself is in `emos_regression`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from data_pipeline.common.checks import check_boolean, check_integer
from data_pipeline.common.errors import InputError
from data_pipeline.common.progress import watched
from data_pipeline.grid import Grid
from data_pipeline.protocols import ALL
from data_pipeline.sample import Sample, select_channels, verifiable
from data_pipeline.task import Task
from models.distribution import Distribution, Ensemble, by_target
from models.parallel.domain import Domain
from models.parallel.exchange import assemble
from models.statistical.cases import Passes, covers_year, lead_index, of_one_season, shared_fit_cells, shared_fit_note
from models.statistical.cell_model import CellModel, LeadCases, LowerOption, regressions
from models.statistical.crossfit import fold_index
from models.statistical.emos_regression import EMOSCases, SharedPrior, coefficient_names, predict_emos, raw_coefficients
from models.statistical.emos_sharing import Sharing, estimate_sharing, fit_shared, sharing_note, thin
from models.statistical.predictors import YEAR, annual_harmonics, day_of_year
from models.statistical.regression import Fit, Regression

SHARED_AUTO = "auto"


class EMOS(CellModel):
    """Corrects mean and spread of the ensemble, with coefficients per cell, target and lead time.

    Before a fit, and at cells without truth, the forecast has the ensemble's own mean and standard deviation. With
    `seasonal`, the bias has an annual cycle. With `window_days`, all coefficients do. By default,
    cells and lead times with few cases share their coefficients, as far as held-out cases show that this is better
    (`emos_sharing`). `shared=true` fits one set of coefficients for the whole globe at each lead time, and
    `shared=false` fits each cell to its own cases only. `family`, `scale` and `score` are options of `Regression`;
    `lower` is the lower bound of a bounded family, in the target's units. `family`, `scale` and `lower` have one value
    for all targets, or a list.

    A window holds the cases of all training years whose day of the year differs from its centre by `window_days` at
    most. There are two windows in every `window_days`; between their centres coefficients are interpolated. A window of
    30 days thus needs 24 times as many coefficients as the whole year. A window with few cases
    is drawn to the coefficients of the whole year; with `shared` true or false, it gets them if it has fewer than two
    cases per coefficient.

    If the task has means of groups of members (`Task.groups`), each of them has a coefficient of its own, for its
    departure from the mean of all members. The spread is that of all members. A forecast that lacks groups gets
    coefficients that were fitted to the other groups alone (`_PresentGroups`).
    """

    name = ""
    present: tuple[int, ...] = ()
    """Positions of the groups that every training case has."""
    targets_only = reads_groups = moments_only = any_groups = any_grid = tiles = cellwise = True

    def __init__(
        self,
        task: Task,
        grid: Grid | Domain,
        family: str | Sequence[str] = "normal",
        seasonal: bool = True,
        scale: str | Sequence[str] = "quadratic",
        score: str = "crps",
        shared: bool | str = SHARED_AUTO,
        lower: LowerOption = None,
        window_days: int | None = None,
    ) -> None:
        if window_days is not None:
            check_integer("model.window_days", window_days, 1, 182)
            if seasonal:
                raise InputError(
                    f"model.window_days={window_days} and model.seasonal=true both make the bias seasonal; set "
                    "model.seasonal=false"
                )
        check_boolean("model.seasonal", seasonal)
        if type(shared) is not bool and shared != SHARED_AUTO:
            raise InputError(f"model.shared must be true, false or {SHARED_AUTO}, got {shared!r}")
        self.regressions = regressions(task, family, scale, score, lower)
        self._group_channels = _group_channels(task)
        groups = self._groups = len(self._group_channels[0])
        windows = 1 if window_days is None else min(365, round(2 * YEAR / window_days))
        raw = pad_sequence([raw_coefficients(regression, seasonal, groups) for regression in self.regressions])
        L, T, cells = len(task.lead_times), len(task.targets), (1, 1) if shared is True else grid.shape
        super().__init__(task, grid, raw[..., None, None].expand(L * windows, -1, T, *cells).contiguous(), lower)
        self.seasonal, self.shared = seasonal, shared
        self.window_days, self.windows = window_days, windows
        options = family, seasonal, scale, score, shared, lower, window_days
        self._means = [means for means, _ in task.system_channels if means]
        self.present = tuple(range(len(self._means)))
        self.subsets = nn.ModuleList(_PresentGroups(task, grid, some, *options) for some in self._subsets())

    def _subsets(self) -> list[tuple[int, ...]]:
        """Return the positions of all groups that a forecast without some groups may have."""
        groups = range(len(self._means))
        return [some for size in groups[1:] for some in combinations(groups, size)]

    def forward(self, sample: Sample) -> Distribution:
        """Return the corrected distribution over (B, T, H, W)."""
        table = self.coefficients if self.shared is True else self._domain.cut(self.coefficients)
        return self.predict(sample, table, lead_index(sample.lead_time, self._task))

    @property
    def _parts(self) -> list[EMOS]:
        """The `subsets`, the largest of them last."""
        return [part for part in self.subsets if isinstance(part, EMOS)]

    def _is_there(self, sample: Sample, groups: Sequence[int]) -> Tensor:
        """Return where (B, T, h, w) a forecast has the means of all these groups."""
        return torch.stack([select_channels(sample.mask, self._means[group], 1) for group in groups]).all(0)

    def predict(self, sample: Sample, table: Tensor, place: Tensor) -> Distribution:
        """Return the distribution for a table of coefficients (n·windows, P, T, H, W).

        `place` (B,) is the position 0 ... n - 1 of each sample in the table. The table holds this rank's tile, or one
        cell if all cells share their coefficients.
        """
        coefficients, predictors = self._coefficients(sample, table, place), self._predictors(sample)
        for part in self._parts:
            own = part.coefficients if self.shared is True else self._domain.cut(part.coefficients)
            used = self._is_there(sample, part.present) & ~self._is_there(sample, self.present)
            coefficients = torch.where(used, self._coefficients(sample, own, place), coefficients)
            pairs = zip(part._predictors(sample), predictors, strict=True)
            predictors = [torch.where(used, *pair) for pair in pairs]
        mean, std, *departures = predictors
        terms = [*departures, *(term.to(mean) for term in self._harmonics(sample))]
        lower = None if self.lower is None else self._domain.cut(self.lower)
        return by_target(
            self.regressions, lambda form: predict_emos(form, coefficients[: self.size(form)], mean, std, terms, lower)
        )

    def _coefficients(self, sample: Sample, table: Tensor, place: Tensor) -> Tensor:
        """Return the coefficients (P, B, T, h, w) of each forecast."""
        table, first = table.to(sample.ensemble), place * self.windows
        if self.window_days is None:
            return table[first].movedim(1, 0)
        position = self._days(sample) * (self.windows / YEAR)
        before, part = position.long(), position.frac().to(table).view(-1, 1, 1, 1, 1)
        return table[first + before].lerp(table[first + (before + 1) % self.windows], part).movedim(1, 0)

    def size(self, regression: Regression) -> int:
        """Return the number of coefficients; the table has as many as the longest regression needs."""
        return len(coefficient_names(regression, self.seasonal, self._groups))

    @torch.no_grad()
    def fit(self, batches: Iterable[Sample], ends: Tensor | None = None) -> Tensor | None:
        """Fit all cells to the training samples, in blocks of rows whose cases fit into memory.

        Coefficients that all cells share are fitted to the cells of `shared_fit_cells`. Where the cases of a lead time
        do not cover the year, a seasonal bias becomes a constant. `report` holds notes about both, and the number of
        regressions without a fit. Raises `TooFewCasesError` if no cell can be fitted.

        With the `ends` of folds (see `year_folds`), returns (F, L·windows, P, T, h, w): for each fold the coefficients
        fitted to the cases of all other folds, on this rank's tile or shared by all cells. `subsets` are not fitted.
        """
        passes, leads = Passes.of(batches), self._task.lead_times
        for part in self._parts if ends is None else ():
            part.fit(passes)
            part.report.notes = [f"{part.name}: {note}" for note in part.report.notes]
        passes.check_lead_times(self._task)
        cells = shared_fit_cells(len(passes.init_time), self._domain.grid.shape)
        tables = _Tables(self, 1 if ends is None else len(ends) + 2)
        notes: list[str | None] = []
        if self.shared is True:
            read = self.read_cases(passes, ALL, cells)
            for one in watched(self._regressions(read, ALL, ends, cells), "fit of EMOS: regression"):
                tables.store(one, ALL, one.cases.fit(self.regressions[one.target], shared=True))
            notes = [shared_fit_note(cells, self._domain.grid.shape)]
        else:
            blocks = passes.blocks(len(passes.init_time) * self._domain.own_shape[1] * len(self._targets) * 12)
            alone = len(blocks) == 1 and self._domain.own_shape == self._domain.grid.shape
            whole = list(self.read_cases(passes, ALL)) if alone else None  # read once only
            sharing: dict[int, Sharing] = {}
            priors: dict[tuple[int, int, int], SharedPrior] = {}
            if self.shared == SHARED_AUTO:
                sample = self.read_cases(passes, ALL, cells) if whole is None else [lead.at(cells) for lead in whole]
                sharing, priors = self._share(self._regressions(sample, ALL, ends, cells))
            for rows in watched(blocks, "fit of EMOS: block of rows"):
                for one in self._regressions(self.read_cases(passes, rows) if whole is None else whole, rows, ends):
                    prior = priors.get((one.table, one.lead, one.target))
                    if prior is not None and not one.whole_year:
                        size = self.size(self.regressions[one.target])
                        year = tables.of_folds[one.table][one.places[0], :size, one.target, rows].flatten(1)
                        prior = prior._replace(coefficients=year, cases=sharing[one.target].year)
                    cases = one.cases
                    # Another lead time has no season.
                    if prior is not None and prior.moments.shape[-1] < self._needed(one.target) // 2:
                        cases = replace(cases, harmonics=())
                    tables.store(one, rows, cases.fit(self.regressions[one.target], prior=prior))
        coefficients, cells_of = tables.of_folds[0], [tables.known, tables.fitted, tables.penalised]
        if self.shared is not True:
            coefficients, *cells_of = (assemble(v, self._domain) for v in (coefficients, *cells_of))
        known, fitted, penalised = cells_of[0], *(where > 0 for where in cells_of[1:])
        self.coefficients.copy_(coefficients)
        covered = [not self.seasonal or covers_year(passes.days(lead)) for lead in leads]
        if self.shared == SHARED_AUTO:
            notes = [
                sharing_note(str(self._task.targets[target]), degree, known[:, target])
                for target, degree in sharing.items()
            ]
        self.set_report(
            fitted,
            known > 0,
            penalised,
            "EMOS",
            [max(map(self._needed, range(len(self._targets))))] * len(leads),
            covered,
            notes,
        )
        return None if ends is None else torch.stack(tables.of_folds[1:])

    def training_times(self, sample: Sample) -> list[Tensor]:
        """Return days since the start of the year (B,), and the harmonics of the year (B, 1, 1, 1) if seasonal."""
        return [self._days(sample), *self._harmonics(sample)]

    def training_fields(self, sample: Sample) -> list[Tensor]:
        """Return mean, std, truth and departures (B, T, h, w).

        The truth is NaN where truth, a member or a group is missing.
        """
        mean, std, *departures = self._predictors(sample)
        truth = verifiable(sample, self._targets)
        if self.present:
            truth = truth.masked_fill(~self._is_there(sample, self.present), torch.nan)
        return [mean, std, truth, *departures]

    def _needed(self, target: int) -> int:
        """Return the number of cases that the coefficients of a target need."""
        return 2 * (4 + self._groups + 2 * self.seasonal + self.regressions[target].has_shift)

    def _share(
        self, regressions: Iterable[_Regression]
    ) -> tuple[dict[int, Sharing], dict[tuple[int, int, int], SharedPrior]]:
        """Return the degree of sharing of each target, and what cells are drawn to by table, lead time and target.

        The degree is estimated from all cases, and is the same for all folds. There is none for a target with fewer
        than `_needed` cases in all cells and lead times.
        """
        samples: dict[tuple[int, int], list[EMOSCases]] = {}
        windows: dict[tuple[int, int], list[Tensor]] = {}
        known: dict[int, Tensor] = {}
        for one in regressions:
            if one.whole_year:
                # Cases without truth are left out, so that they do not move the stretches of time that are held out.
                known[one.target] = one.cases.truth.isfinite().any(1)
                samples.setdefault((one.target, one.table), []).append(one.cases.select(known[one.target]))
            elif one.table == 0:
                windows.setdefault((one.target, one.lead), []).append(one.chosen[known[one.target]])
        sharing: dict[int, Sharing] = {}
        priors: dict[tuple[int, int, int], SharedPrior] = {}
        for (target, table), cases in samples.items():
            if sum(int(one.truth.isfinite().sum()) for one in cases) < self._needed(target):
                continue
            leads = thin(cases)
            if table == 0:
                sharing[target] = estimate_sharing(
                    self.regressions[target], leads, [windows.get((target, lead), []) for lead in range(len(leads))]
                )
            if target in sharing:
                for lead, prior in enumerate(fit_shared(self.regressions[target], leads, sharing[target])):
                    priors[table, lead, target] = prior
        return sharing, priors

    def _regressions(
        self, leads: Iterable[LeadCases], rows: slice, ends: Tensor | None, cells: Tensor | None = None
    ) -> Iterator[_Regression]:
        """Yield all regressions on the cases of some rows or `cells`, always in the same order.

        Loops, the outermost first: lead times; all cases, then the cases outside each fold; the whole year, then each
        window.
        """
        for lead, read in enumerate(leads):
            days, *terms = read.times
            first = lead * self.windows
            for table in range(1 if ends is None else len(ends) + 2):
                kept = torch.ones_like(read.valid, dtype=torch.bool)
                if ends is not None and table:
                    kept = fold_index(read.valid, ends) != table - 1
                # Harmonics would be nearly constant, and get huge coefficients.
                seasonal = self.seasonal and bool(kept.any()) and covers_year(days[kept] + 1)
                subsets: list[tuple[Tensor, range]] = [(kept, range(first, first + self.windows))]
                if self.window_days is not None:
                    for k in range(self.windows):
                        distance = (days - k * YEAR / self.windows).abs()
                        near = kept & (torch.minimum(distance, YEAR - distance) <= self.window_days)
                        if near.any():
                            subsets.append((near, range(first + k, first + k + 1)))
                for chosen, places in subsets:
                    fields = [values[chosen] for values in read.fields]
                    harmonics = [term[chosen].flatten(1) for term in terms] if seasonal else []
                    one_season = of_one_season(read.valid[kept])
                    whole_year = chosen is kept
                    for t in range(len(self._targets)):
                        mean, std, truth, *departures = (values[:, t].flatten(1) for values in fields)
                        lower, weight = self.lower_bound(t, rows, cells), self.cell_area(rows, cells).float()
                        cases = EMOSCases(mean, std, truth, harmonics, lower, weight, departures, one_season)
                        yield _Regression(table, lead, t, places, whole_year, chosen, cases)

    def _predictors(self, sample: Sample) -> list[Tensor]:
        """Return ensemble mean, standard deviation and the departures of groups from the mean, (B, T, H, W) each."""
        ensemble = Ensemble(select_channels(sample.ensemble, self._targets, 2).movedim(1, 0))
        return [ensemble.mean, ensemble.std, *self._departures(sample, ensemble.mean)]

    def _departures(self, sample: Sample, mean: Tensor) -> list[Tensor]:
        groups = zip(*self._group_channels, strict=True)
        return [select_channels(sample.ensemble[:, 0], channels, 1) - mean for channels in groups]

    def _harmonics(self, sample: Sample) -> list[Tensor]:
        """Return cosine and sine of the year's phase, (B, 1, 1, 1) each, if seasonal."""
        if not self.seasonal:
            return []
        terms = annual_harmonics(sample.init_time, sample.lead_time).to(sample.ensemble)
        return [term[:, None, None, None] for term in terms.T]

    def _days(self, sample: Sample) -> Tensor:
        """Return the days (B,) from the start of the year to the valid time of each forecast."""
        return day_of_year(sample.init_time, sample.lead_time).double() - 1


class _PresentGroups(EMOS):
    """The part of EMOS for forecasts that have the groups `present` only, fitted to all forecasts that have them.

    Each group counts the same, whatever the number of its members: m is the mean of the means m_g, and the variance s²
    is the mean of s_g² + (m_g - m)², which a fit scales. For one group, this is the EMOS of its members.
    """

    def __init__(self, task: Task, grid: Grid | Domain, present: tuple[int, ...], *options: Any) -> None:
        super().__init__(task, grid, *options)
        names = [name for name, _ in task.systems]
        self.present, self.name = present, f"only {' and '.join(names[group] for group in present)}"
        self._spreads = [spreads for _, spreads in task.system_channels]

    def _subsets(self) -> list[tuple[int, ...]]:
        return []

    def _predictors(self, sample: Sample) -> list[Tensor]:
        """Return mean, standard deviation and departures, (B, T, H, W) each; those of other groups are 0."""
        first = sample.ensemble[:, 0]
        means = torch.stack([select_channels(first, self._means[group], 1) for group in self.present])
        mean = means.mean(0)
        variance = (means - mean).square().mean(0)
        for spreads in (self._spreads[group] for group in self.present):
            if spreads:
                variance = variance + select_channels(first, spreads, 1).square() / len(self.present)
        departures = self._departures(sample, mean)
        for group in range(len(self._means) - 1):
            if group not in self.present[:-1]:
                departures[group] = torch.zeros_like(mean)
        return [mean, variance.sqrt(), *departures]


class _Regression(NamedTuple):
    """One regression of a fit of EMOS."""

    table: int
    """0: fitted to all cases; k + 1: to the cases outside fold k."""
    lead: int
    target: int
    places: Sequence[int]
    """Positions (lead time and window) in the table of coefficients."""
    whole_year: bool
    """False: of a window."""
    chosen: Tensor
    """(N,) which cases of the lead time it is fitted to."""
    cases: EMOSCases


class _Tables:
    """Coefficients on this rank's tile, or shared by all cells, while they are being fitted."""

    def __init__(self, model: EMOS, count: int) -> None:
        self._per_cell = model.shared is not True
        self._groups = model._groups
        raw = pad_sequence([raw_coefficients(form, model.seasonal, self._groups) for form in model.regressions])
        raw = raw.to(model.coefficients)[..., None, None]
        self._sizes = [model.size(form) for form in model.regressions]
        places, P, T, *_ = model.coefficients.shape
        cells = model._domain.own_shape if self._per_cell else (1, 1)
        self.of_folds = [raw.expand(places, P, T, *cells).clone() for _ in range(count)]
        """(L·windows, P, T, h, w) each: fitted to all cases, then to the cases outside each fold."""
        self.known, self.fitted, self.penalised = torch.zeros(3, places // model.windows, T, *cells)
        """(L, T, h, w) each, from all cases of a lead time: their number, 1 where there is a fit, a penalised fit."""

    def store(self, one: _Regression, rows: slice, fit: Fit) -> None:
        """Store the coefficients (P, K) of some rows; NaN leaves the table as it is."""
        table, size = self.of_folds[one.table], self._sizes[one.target]
        found = _with_season(fit.coefficients, size, 2 + self._groups).view(size, *table[0, 0, 0, rows].shape)
        fitted = ~found[0].isnan()
        for place in one.places:
            old = table[place, :size, one.target, rows]
            old.copy_(torch.where(fitted, found.to(old), old))
        if one.whole_year and one.table == 0:
            known = one.cases.truth.isfinite().sum(0)
            known = known.view_as(fitted) if self._per_cell else known.sum().view(1, 1)
            self.known[one.lead, one.target, rows] = known.float()
            self.fitted[one.lead, one.target, rows] = fitted.float()
            self.penalised[one.lead, one.target, rows] = fit.penalised.view_as(fitted).float()


def _with_season(coefficients: Tensor, count: int, before: int) -> Tensor:
    """Return `count` coefficients (P, K); harmonics that the fit lacked get 0, or NaN where the others are NaN.

    They stand behind the first coefficients, of which there are `before`.
    """
    if len(coefficients) == count:
        return coefficients
    zero = coefficients[:1] * 0
    return torch.cat([coefficients[:before], zero, zero, coefficients[before:]])


def _group_channels(task: Task) -> tuple[tuple[int, ...], ...]:
    """Return the channels of `Task.group_means`; raise `InputError` if the targets have different groups.

    Those of `Task.systems` are the first.
    """
    found = task.group_means
    means = [[task.formulas[k - len(task.channels)] for k in channels] for channels in found]
    members = [[(one.members, one.lag) for one in own] for own in means]
    if other := next((k for k, own in enumerate(members) if own != members[0]), None):
        raise InputError(
            f"task {task.name}: {task.targets[0]} and {task.targets[other]} have means of different groups of members, "
            "and EMOS needs the same for all targets; write task.groups, or one task for each target"
        )
    return found
