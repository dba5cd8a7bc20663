"""Boosted EMOS: EMOS that selects among many predictors, cell by cell."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from data_pipeline.common.checks import check_boolean
from data_pipeline.common.progress import watched
from data_pipeline.grid import Grid
from data_pipeline.protocols import ALL
from data_pipeline.sample import Sample, verifiable
from data_pipeline.task import Task
from models.distribution import Distribution, by_target
from models.parallel.domain import Domain
from models.parallel.exchange import allsum, assemble
from models.statistical.boosting import (
    Boosting,
    CaseBlock,
    EMOSIndices,
    best_step,
    case_blocks,
    linear_predictors,
    products,
    total_score,
)
from models.statistical.cases import Passes, covers_year, lead_index, shared_fit_cells, shared_fit_note
from models.statistical.cell_model import CellModel, LowerOption, regressions
from models.statistical.predictors import SMALLEST_SPREAD, annual_harmonics, spread


class BoostedEMOS(CellModel):
    """EMOS whose predictors come from all inputs of the task; each cell uses the ones that improve its forecast.

    Predictors are mean and log spread of every input, and cosine and sine of the year's phase. With `products`, the
    products of any two of the means and harmonics are predictors too, so that a bias may depend on season and flow.
    `shared` fits one set of coefficients for the whole globe, and adds the static fields. Before a fit, and at cells
    without truth, the forecast has the ensemble's own mean and standard deviation. `family`, `score` and `lower` are
    options of EMOS; `learning_rate`, `max_steps` and `folds` are options of `Boosting`.
    """

    moments_only = any_grid = tiles = cellwise = True

    def __init__(
        self,
        task: Task,
        grid: Grid | Domain,
        family: str | Sequence[str] = "normal",
        score: str = "crps",
        learning_rate: float = 0.3,
        max_steps: int = 50,
        folds: int = 4,
        products: bool = False,
        shared: bool = False,
        lower: LowerOption = None,
    ) -> None:
        check_boolean("model.products", products)
        check_boolean("model.shared", shared)
        forms = regressions(task, family, "log", score, lower)
        self.boostings = [Boosting(form, learning_rate, max_steps, folds) for form in forms]
        C, S = len(task.channels), len(task.static_names) if shared else 0
        count = 2 * C + 2 + S + products * ((C + 2) * (C + 3) // 2)
        # The initial coefficients give the raw ensemble: one for its mean and its log spread.
        raw = torch.zeros(len(task.lead_times), 4 + 2 * count, len(task.targets))
        for t, c in enumerate(task.target_channels):
            raw[:, 1 + c, t] = 1
            raw[:, 2 + count + C + c, t] = 1
            raw[:, 1 + count, t] = -math.log(forms[t].unit_std)
        raw[:, -2], raw[:, -1] = -1e30, 1e30  # no limits of the spread
        cells = (1, 1) if shared else grid.shape
        super().__init__(task, grid, raw[..., None, None].expand(*raw.shape, *cells).contiguous(), lower)
        self.products, self.shared = products, shared

    def forward(self, sample: Sample) -> Distribution:
        """Return the corrected distribution over (B, T, H, W)."""
        table = self.coefficients if self.shared else self._domain.cut(self.coefficients)
        lead = lead_index(sample.lead_time, self._task)
        maps, when = self._maps(sample), annual_harmonics(sample.init_time, sample.lead_time).to(sample.ensemble)
        # One sample at a time: the coefficients of a batch would take many times the memory of the batch itself.
        eta = [
            linear_predictors(
                table.index_select(0, i)[0].to(maps), self._predictors(own.unbind(), now.unbind(), static)
            )
            for i, own, now, static in zip(lead.split(1), maps, when[..., None, None], sample.static, strict=True)
        ]
        mu, log_sigma = torch.stack(eta, dim=1)
        lower = None if self.lower is None else self._domain.cut(self.lower)
        return by_target(
            [boosting.regression for boosting in self.boostings], lambda form: form.distribution(mu, log_sigma, lower)
        )

    @torch.no_grad()
    def fit(self, batches: Iterable[Sample]) -> None:
        """Fit all cells to the training samples, in blocks of rows whose cases fit into memory.

        The rows are read twice, because all cells have the same number of steps. Coefficients that all cells share are
        fitted to the cells of `shared_fit_cells`. Where the cases of a lead time do not cover the year, the season is
        no predictor. `report` holds notes about both, and the number of regressions without a fit. Raises
        `TooFewCasesError` if no cell can be fitted.
        """
        passes, leads, T = Passes.of(batches), self._task.lead_times, len(self._targets)
        passes.check_lead_times(self._task)
        row_bytes = len(passes.init_time) * self._domain.own_shape[1] * 4 * (2 * len(self._task.channels) + T)
        blocks_of_rows = [ALL] if self.shared else passes.blocks(row_bytes)
        starts = len(passes.init_time) * len(self._task.channels)
        cells = shared_fit_cells(starts, self._domain.grid.shape) if self.shared else None
        covered = [covers_year(passes.days(lead)) for lead in leads]
        regressions: Iterable[_Regression] = self._regressions(passes, blocks_of_rows, cells, covered)
        if len(blocks_of_rows) == 1:
            regressions = list(regressions)  # read once only
        total = torch.zeros(len(leads), T, self.boostings[0].max_steps + 1, dtype=torch.float64)
        count = len(leads) * T * len(blocks_of_rows)
        for one in watched(regressions, "fit of boosted EMOS: number of steps of regression", count):
            curve = torch.cat([block.held_out_scores(self.boostings[one.target], one.emos) for block in one.blocks()])
            total[one.lead, one.target] += total_score(curve, one.area)
        # With shared coefficients, every rank has the scores of all cells already.
        total = total if self.shared else allsum(total, self._domain)
        shape = (*self.coefficients.shape[:3], *((1, 1) if self.shared else self._domain.own_shape))
        found, (known, penalised) = self.coefficients.new_zeros(shape), torch.zeros(2, len(leads), T, *shape[3:])
        if not isinstance(regressions, list):
            regressions = self._regressions(passes, blocks_of_rows, cells, covered)
        for one in watched(regressions, "fit of boosted EMOS: regression", count):
            steps = best_step(total[one.lead, one.target])
            fits = [block.fit(self.boostings[one.target], one.emos, steps) for block in one.blocks()]
            own = found[one.lead, :, one.target, one.rows]
            coefficients, weak = (torch.cat(part, dim=-1) for part in zip(*fits, strict=True))
            own.copy_(coefficients.view(own.shape))
            known[one.lead, one.target, one.rows] = one.known.view(own.shape[1:])
            penalised[one.lead, one.target, one.rows] = weak.view(own.shape[1:]).float()
        if not self.shared:
            found, known, penalised = (assemble(values, self._domain) for values in (found, known, penalised))
        notes = [shared_fit_note(cells, self._domain.grid.shape)]
        fitted, needed = ~found[:, 0].isnan(), [8] * len(leads)
        self.set_report(fitted, known > 0, penalised > 0, "boosted EMOS", needed, covered, notes)
        self.coefficients.copy_(torch.where(found.isnan(), self.coefficients, found))

    def training_times(self, sample: Sample) -> list[Tensor]:
        """Return the harmonics of the year (B, 2)."""
        return [annual_harmonics(sample.init_time, sample.lead_time)]

    def training_fields(self, sample: Sample) -> list[Tensor]:
        """Return mean and log spread (B, 2C, h, w), and truth (B, T, h, w), NaN where truth or a member is missing."""
        return [self._maps(sample), verifiable(sample, self._targets)]

    def _regressions(
        self, passes: Passes, blocks_of_rows: Iterable[slice], cells: Tensor | None, covered: Sequence[bool]
    ) -> Iterator[_Regression]:
        """Read one block of rows after the other; yield its regressions for each lead time and target."""
        for rows in blocks_of_rows:
            for lead, read in enumerate(self.read_cases(passes, rows, cells)):
                maps, truth = read.fields
                # Harmonics of zero never vary, so they get no coefficient.
                when = read.times[0] * covered[lead]
                static = read.static
                if cells is not None:
                    static = assemble(static, self._domain).flatten(-2)[:, cells]
                area = self.cell_area(rows, cells)
                columns = partial(self._columns, maps.flatten(2), when, static.flatten(1))
                for t, c in enumerate(self._targets):
                    y = truth[:, t].flatten(1)
                    weight = area if self.shared else torch.ones_like(y[0])
                    known = y.isfinite().any(0)
                    yield _Regression(
                        rows, lead, t, (c, c + maps.shape[1] // 2),
                        partial(
                            case_blocks, self.boostings[t], columns, y, self.lower_bound(t, rows, cells), weight,
                            self.shared,
                        ),
                        area[:1] if self.shared else area,
                        (known.any() if self.shared else known).float(),
                    )  # fmt: skip

    def _maps(self, sample: Sample) -> Tensor:
        """Return mean and log spread of each input, (B, 2C, H, W)."""
        small = torch.as_tensor(10 * SMALLEST_SPREAD).to(sample.ensemble)
        return torch.cat([sample.ensemble.mean(1), torch.hypot(spread(sample.ensemble), small).log()], dim=1)

    def _columns(self, maps: Tensor, when: Tensor, static: Tensor, cells: slice) -> list[Tensor]:
        """Return all predictors of some cells: maps (N, 2C, K), harmonics (N, 2), static (S, K)."""
        return self._predictors(maps[:, :, cells].unbind(1), when[:, :, None].unbind(1), static[:, cells])

    def _predictors(self, maps: Sequence[Tensor], when: Sequence[Tensor], static: Iterable[Tensor]) -> list[Tensor]:
        """Return all predictors, in the order of the coefficients."""
        found = [*maps, *when, *(static if self.shared else ())]
        return found + products([*maps[: len(maps) // 2], *when]) if self.products else found


class _Regression(NamedTuple):
    """The regression of one lead time and target on some rows of this rank's tile, or on cells of the whole grid."""

    rows: slice
    lead: int
    target: int
    emos: EMOSIndices
    blocks: Callable[[], Iterator[CaseBlock]]
    """Makes the cases, in blocks of cells."""
    area: Tensor
    """(K,) weights of the cells in the total score, or (1,) with shared coefficients."""
    known: Tensor
    """(K,) 1 at cells with truth, or a single number with shared coefficients."""
