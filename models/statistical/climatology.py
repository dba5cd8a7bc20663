"""Climatology: a forecast that depends on the day of the year only."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from data_pipeline.common.checks import check_choice, check_integer
from data_pipeline.common.progress import watched
from data_pipeline.grid import Grid
from data_pipeline.protocols import ALL
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.distribution import Distribution, Empirical, by_target, empirical_quantiles
from models.parallel.domain import Domain
from models.parallel.exchange import assemble
from models.statistical.cases import Passes, covers_year, gather, lead_index, shared_fit_cells
from models.statistical.cell_model import CellModel
from models.statistical.few_cases import ENOUGH_CASES, FewCases
from models.statistical.predictors import YEAR, annual_harmonics, day_of_year
from models.statistical.regression import Fit, Regression, cell_blocks

DISTRIBUTIONS = ("auto", "normal", "quantiles")
FEWEST_CASES = 2
"""Number of cases of a cell whose spread is drawn to that of all cells."""


class Climatology(CellModel):
    """The distribution of past truth for the day of the year, cell by cell.

    `normal`: a normal distribution whose mean and log standard deviation follow `harmonics` of the year. Two harmonics
    resolve about as much as a window of 45 days, with fewer coefficients. The coefficients have the smallest CRPS of
    the training cases. `quantiles`: the empirical distribution of past cases, given by as many quantiles as the option
    `quantiles` says. These cases lie within `window_days` of the centre of a window; centres are about `window_days`
    apart, and the nearest one counts. Without `window_days` it is the distribution of the whole year. `auto` takes
    quantiles for targets whose values come near a physical bound, such as precipitation, and the normal distribution
    for others. The forecast is NaN before a fit, and at cells without truth.

    A cell with few cases, two at least, borrows from all cells (`FewCases`). Its mean is its own, with as many
    harmonics as there are two cases for each coefficient, and its variance is drawn to that of all cells. Quantiles are
    those of its own cases and of so many values with the shape of all cells that there are `ENOUGH_CASES` together.
    """

    targets_only = moments_only = any_size = any_groups = any_grid = tiles = cellwise = True
    quantile_table: Tensor
    """(L, windows, K, Q, H, W), the K quantiles of the Q targets that have them."""

    def __init__(
        self,
        task: Task,
        grid: Grid | Domain,
        harmonics: int = 2,
        distribution: str = "normal",
        quantiles: int = 25,
        window_days: int | None = 30,
    ) -> None:
        check_integer("model.harmonics", harmonics, 0, 6)
        check_choice("model.distribution", distribution, DISTRIBUTIONS)
        check_integer("model.quantiles", quantiles, 2)
        if window_days is not None:
            check_integer("model.window_days", window_days, 1, 182)
        L = len(task.lead_times)
        shape = L, 2 * (1 + 2 * harmonics), len(task.targets), *grid.shape
        super().__init__(task, grid, torch.full(shape, torch.nan))
        self.harmonics, self._regression = harmonics, Regression(scale="log")
        chosen = {"auto": lambda target: target.near_bound, "normal": lambda _: False, "quantiles": lambda _: True}
        self._empirical = [t for t, target in enumerate(task.targets) if chosen[distribution](target)]
        self._gaussian = [t for t in range(len(task.targets)) if t not in self._empirical]
        self.quantiles, self.window_days = quantiles, window_days
        self._units: tuple[Tensor, Tensor] | None = None
        self.windows = 1 if window_days is None else max(1, round(YEAR / window_days))
        if self._empirical:
            table = torch.full((L, self.windows, quantiles, len(self._empirical), *grid.shape), torch.nan)
            self.register_buffer("quantile_table", table)

    def forward(self, sample: Sample) -> Distribution:
        """Return the distribution for the valid day of each forecast, (B, T, H, W)."""
        lead = lead_index(sample.lead_time, self._task)
        if not self._empirical:
            return self._normal(sample, lead)
        past = self._past(sample, lead)
        if not self._gaussian:
            return past
        values = torch.zeros(len(past.values), *sample.target.shape).to(past.values)
        values[:, :, self._empirical] = past.values
        kinds = [t in self._empirical for t in range(len(self._targets))]
        return by_target(kinds, lambda known: Empirical(values) if known else self._normal(sample, lead))

    def _normal(self, sample: Sample, lead: Tensor) -> Distribution:
        """Return the normal distribution of all targets."""
        coefficients = self._domain.cut(self.coefficients)[lead].movedim(1, 0)
        terms = [term[:, None, None, None] for term in self._terms(sample).to(coefficients).T]
        return self._regression.predict(coefficients, terms, terms)

    def _past(self, sample: Sample, lead: Tensor) -> Empirical:
        """Return the empirical distribution of the targets that have one."""
        day = day_of_year(sample.init_time, sample.lead_time).double() - 1
        window = (day * (self.windows / YEAR)).round().long() % self.windows
        # Windows are not interpolated: a quantile between 0 and some rain would be rain.
        return Empirical(self._domain.cut(self.quantile_table)[lead, window].movedim(1, 0))

    @torch.no_grad()
    def fit(self, batches: Iterable[Sample]) -> None:
        """Fit all cells to the truth of the training samples, in blocks of rows whose cases fit into memory.

        Where the cases of a lead time do not cover the year, there is no annual cycle. `report` holds a note about
        this, and the number of regressions without a fit. Raises `TooFewCasesError` if no cell can be fitted.
        """
        passes, leads = Passes.of(batches), self._task.lead_times
        passes.check_lead_times(self._task)
        harmonics = [self._harmonics_of(passes.days(lead)) for lead in leads]
        covered = [self._covers_year(passes.days(lead), count) for lead, count in zip(leads, harmonics, strict=True)]
        (h, w), P, T = self._domain.own_shape, self.coefficients.shape[1], len(self._targets)
        table = self.coefficients.new_zeros(len(leads), P, len(self._gaussian), h, w)
        known, penalised, borrowed = torch.zeros(3, len(leads), T, h, w)
        past = torch.full((len(leads), self.windows, self.quantiles, len(self._empirical), h, w), torch.nan)
        blocks = passes.blocks(len(passes.init_time) * w * T * 4)
        whole = gather(passes, self._task, self._pick) if len(blocks) == 1 else None  # read once only
        few = self._few_cases(passes, whole, harmonics)
        for rows in watched(blocks, "fit of climatology: block of rows"):
            read = gather(passes, self._task, self._pick, rows) if whole is None else whole
            for lead, (days, terms, truth) in enumerate(read):
                known[lead, :, rows] = truth.isfinite().any(0).float()
                if self._gaussian:
                    count, own = 1 + 2 * harmonics[lead], truth[:, self._gaussian]
                    found, weak = self._fit_normal(terms[:, :count], own)
                    if few:
                        less = found[0].isnan() & (own.isfinite().sum(0) >= FEWEST_CASES)
                        drawn = few[lead].normal(terms[:, :count], own)
                        found = torch.where(less, drawn, found)
                        borrowed[lead, self._gaussian, rows] = less.float()
                    penalised[lead, self._gaussian, rows] = weak.float()
                    location, scale = found.to(table).chunk(2)
                    table[lead, :count, :, rows], table[lead, P // 2 : P // 2 + count, :, rows] = location, scale
                if self._empirical:
                    own = truth[:, self._empirical]
                    values = self._fit_quantiles(days, own, covered[lead])
                    if few:
                        less = values[0, 0].isnan() & (own.isfinite().sum(0) >= FEWEST_CASES)
                        values = torch.where(less, few[lead].quantiles(own, self._zero(rows), self.quantiles), values)
                        borrowed[lead, self._empirical, rows] = less.float()
                    past[lead, ..., rows, :] = values
        self.coefficients[:, :, self._gaussian] = assemble(table, self._domain)
        known, penalised, borrowed = (assemble(values, self._domain) > 0 for values in (known, penalised, borrowed))
        fitted = ~self.coefficients[:, 0].isnan()
        if self._empirical:
            self.quantile_table.copy_(assemble(past, self._domain))
            fitted[:, self._empirical] = ~self.quantile_table[:, 0, 0].isnan()
        note = None
        if count := int(borrowed.sum()):
            note = (
                f"climatology has few cases in {count} of {int(known.sum())} regressions (one for each cell, lead time "
                "and target): their spread is partly that of all cells"
            )
        self.set_report(fitted, known, penalised, "climatology", [FEWEST_CASES] * len(leads), covered, [note])

    def normalise(self, location: Tensor, scale: Tensor) -> None:
        """Keep zero and the physical bounds in the units of the samples, (x - location) / scale."""
        self._units = location, scale

    def _zero(self, rows: slice) -> Tensor:
        """Return the lower bound (Q, h, w) of the targets that have quantiles, in the units of the samples."""
        bounds = [target.bounds[0] or 0.0 for target in self._task.targets]
        bound = torch.tensor(bounds)[:, None, None].expand(-1, *self._domain.own_shape)
        if self._units is not None:
            bound = (bound - self._units[0]) / self._units[1]
        return bound[self._empirical][:, rows]

    def _few_cases(
        self, passes: Passes, whole: list[tuple[Tensor, ...]] | None, harmonics: list[int]
    ) -> list[FewCases]:
        """Return what cells with few cases borrow at each lead time; [] if all starts are enough for a cell."""
        cells = shared_fit_cells(len(passes.init_time), self._domain.grid.shape)
        fewest = min(int((passes.lead_time == lead).sum()) for lead in self._task.lead_times)
        several = self._domain.own_shape != self._domain.grid.shape or whole is None
        if several and fewest >= ENOUGH_CASES:
            return []

        def pick(sample: Sample) -> tuple[Tensor, Tensor]:
            _, terms, truth = self._pick(sample)
            return terms, assemble(truth, self._domain).flatten(-2)[..., cells]

        zero = assemble(self._zero(ALL), self._domain).flatten(-2)[..., cells] if self._empirical else torch.empty(0)
        if several or whole is None:
            read = gather(passes, self._task, pick)
        else:
            read = [(terms, truth.flatten(-2)[..., cells]) for _, terms, truth in whole]
        return [
            FewCases.of(terms[:, : 1 + 2 * count], truth[:, self._gaussian], truth[:, self._empirical], zero)
            for (terms, truth), count in zip(read, harmonics, strict=True)
        ]

    def _harmonics_of(self, days: Tensor) -> int:
        """Return how many harmonics of the year cases on these days determine."""
        return max((k for k in range(1, self.harmonics + 1) if covers_year(days, k)), default=0)

    def _covers_year(self, days: Tensor, harmonics: int) -> bool:
        """Return whether cases on these days determine an annual cycle of all targets."""
        normal = not self._gaussian or self.harmonics == 0 or harmonics > 0
        return normal and (not self._empirical or self.window_days is None or covers_year(days, 2))

    def _fit_normal(self, terms: Tensor, truth: Tensor) -> Fit:
        """Return the fit, coefficients (2p, T, h, w), to cases (N, T, h, w) with the predictors (N, p)."""
        predictors, fields, found = [term[None] for term in terms.T], truth.flatten(1), []
        for cells in cell_blocks(fields.shape[1], len(fields)):
            y = fields[:, cells].T
            valid = y.isfinite()
            y = torch.where(valid, y, 0)
            found.append(self._regression.fit(predictors, predictors, y, valid.to(y)))
        parts = (torch.cat(part, dim=-1) for part in zip(*found, strict=True))
        return Fit(*(part.unflatten(-1, truth.shape[1:]) for part in parts))

    def _fit_quantiles(self, days: Tensor, truth: Tensor, seasonal: bool) -> Tensor:
        """Return the quantiles (windows, K, Q, h, w) of cases (N, Q, h, w); those of the year if cases are few."""

        def of_cases(chosen: Tensor) -> Tensor:
            cases = truth[chosen]
            few = cases.isfinite().sum(0) < ENOUGH_CASES
            return empirical_quantiles(cases, self.quantiles).masked_fill(few, torch.nan)

        year = of_cases(torch.ones_like(days, dtype=torch.bool))
        if self.window_days is None or not seasonal:
            return year.expand(self.windows, *year.shape)
        found = []
        for window in range(self.windows):
            distance = (days - 1 - window * YEAR / self.windows).abs()
            near = of_cases(torch.minimum(distance, YEAR - distance) <= self.window_days)
            found.append(torch.where(near.isnan(), year, near))
        return torch.stack(found)

    def _pick(self, sample: Sample) -> tuple[Tensor, Tensor, Tensor]:
        return day_of_year(sample.init_time, sample.lead_time), self._terms(sample), sample.target

    def _terms(self, sample: Sample) -> Tensor:
        """Return the constant and the harmonics, (B, 1 + 2·harmonics)."""
        terms = annual_harmonics(sample.init_time, sample.lead_time, self.harmonics)
        return torch.cat([terms.new_ones(len(terms), 1), terms], dim=1)
