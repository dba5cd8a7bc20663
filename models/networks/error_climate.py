"""Error climate: past errors of the raw ensemble in every cell, by season; ensemble climate: its mean."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations_with_replacement

import torch
from torch import Tensor, nn

from data_pipeline.common.progress import watched
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample, select_channels
from data_pipeline.task import Task
from models.parallel.domain import Domain
from models.parallel.exchange import assemble
from models.statistical.cases import FitReport, Passes, covers_year, lead_index, season_note
from models.statistical.crossfit import CrossFitted, fold_index, single_year_note, year_folds
from models.statistical.predictors import SMALLEST_SPREAD, annual_harmonics


class EnsembleClimate(nn.Module):
    """Mean of the ensemble mean in a cell: coefficients of 1, cosine and sine of the season for each lead time.

    `ErrorClimate.fit` fits it together with the mean errors, to the same cases. In training mode a sample gets the
    climate of the other years (`CrossFitted`).
    """

    coefficients: Tensor

    def __init__(self, task: Task, grid: Grid | Domain) -> None:
        super().__init__()
        self._task, self._domain = task, Domain.of(grid)
        self.register_buffer("coefficients", torch.zeros(len(task.lead_times), 3, len(task.targets), *grid.shape))
        self.without = CrossFitted(self._domain)

    def set(self, coefficients: Tensor, ends: Tensor) -> None:
        """Set the coefficients (F + 1, L, 3, T, h, w) on this rank's tile: without each of F folds, then of all years.

        `ends` are the ends of the folds. All ranks must call this together.
        """
        self.coefficients.copy_(assemble(coefficients[-1], self._domain))
        # A view would share its memory with `ErrorClimate`, and `fitted.safetensors` refuses tensors that share memory.
        self.without.set(coefficients[:-1].flatten(0, 1), ends.clone())

    def forward(self, sample: Sample, held_out: bool | None = None) -> Tensor:
        """Return the climate (B, T, H, W) on the days of a batch; `held_out` as in `ErrorClimate`."""
        lead = lead_index(sample.lead_time, self._task)
        if (self.training if held_out is None else held_out) and self.without.fitted:
            own = self.without.table[self.without.fold(sample) * len(self._task.lead_times) + lead]
        else:
            own = self._domain.cut(self.coefficients)[lead]
        return (seasonal_terms(sample).to(own)[..., None, None, None] * own).sum(1)


def seasonal_terms(sample: Sample) -> Tensor:
    """Return 1, cosine and sine of the season of each forecast's valid time, (B, 3)."""
    when = annual_harmonics(sample.init_time, sample.lead_time)
    return torch.cat([torch.ones_like(when[:, :1]), when], dim=1)


class ErrorClimate(nn.Module):
    """Errors of the ensemble mean in the training years, per cell: the bias with an annual cycle, and the residual.

    Many errors belong to a place, such as a coast or a valley that the model's orography lacks. A network cannot derive
    them from the position; these maps show them. Before the fit they are zero. In training mode a sample gets the maps
    that were fitted without its own year (`CrossFitted`), because residuals of a fit are smaller than new errors.
    """

    bias: Tensor
    residual: Tensor

    def __init__(self, task: Task, grid: Grid | Domain) -> None:
        super().__init__()
        self._task, self._targets, self._domain = task, list(task.target_channels), Domain.of(grid)
        L, T = len(task.lead_times), len(task.targets)
        self.register_buffer("bias", torch.zeros(L, 3, T, *grid.shape))
        self.register_buffer("residual", torch.zeros(L, T, *grid.shape))
        self.without = CrossFitted(self._domain)
        self.report = FitReport()

    @torch.no_grad()
    def fit(self, batches: Iterable[Sample], climate: EnsembleClimate | None = None) -> Tensor:
        """Fit the error by least squares to 1, cos and sin of the season; return the numbers of cases (L, T, H, W).

        Memory holds only the sums of the normal equations of each year. If the cases of a lead time do not cover the
        year, the bias is a constant and `report` has a note. An ensemble `climate` is fitted to the same cases.
        """
        passes = Passes.of(batches)
        passes.check_lead_times(self._task)
        ends = year_folds(passes)
        seasonal = [covers_year(passes.days(lead)) for lead in self._task.lead_times]
        self.report = FitReport(
            [note for note in (single_year_note(passes), season_note(self._task, seasonal)) if note]
        )
        F, L, T, (h, w) = len(ends) + 1, len(seasonal), len(self._targets), self._domain.own_shape
        maps, cases = self.bias.new_empty(F + 1, L, 4, T, h, w), self.bias.new_empty(L, T, h, w)
        means = None if climate is None else self.bias.new_empty(F + 1, L, 3, T, h, w)
        count = N_SUMS + (0 if climate is None else 3)
        for rows in watched(passes.blocks(F * L * T * w * count * 8), "fit of the mean errors: block of rows"):
            sums = self._sums(passes.begin(rows), ends, T, rows.stop - rows.start, count)
            total = sums.sum(0)
            cases[..., rows, :] = total[:, 0]
            for fold in range(F + 1):
                kept = total if fold == F else total - sums[fold]
                for lead, cyclic in enumerate(seasonal):
                    maps[fold, lead, ..., rows, :] = _maps(kept[lead], cyclic)
                    if means is not None:
                        means[fold, lead, ..., rows, :] = _coefficients(kept[lead], kept[lead, N_SUMS:], cyclic)
        self.bias.copy_(assemble(maps[-1, :, :3], self._domain))
        self.residual.copy_(assemble(maps[-1, :, 3], self._domain))
        self.without.set(maps[:-1].flatten(0, 1), ends)
        if climate is not None and means is not None:
            climate.set(means, ends)
        return assemble(cases, self._domain)

    def forward(self, sample: Sample, held_out: bool | None = None) -> Tensor:
        """Return the expected error and its size, (B, 2T, H, W).

        With `held_out` both come from the other years; None stands for the training mode.
        """
        lead = lead_index(sample.lead_time, self._task)
        if (self.training if held_out is None else held_out) and self.without.fitted:
            maps = self.without.table[self.without.fold(sample) * len(self._task.lead_times) + lead]
            bias, residual = maps[:, :3], maps[:, 3]
        else:
            bias, residual = self._domain.cut(self.bias)[lead], self._domain.cut(self.residual)[lead]
        # Products of maps stay in single precision inside autocast, unlike `einsum`: baselines add the expected error.
        expected = (seasonal_terms(sample).to(bias)[..., None, None, None] * bias).sum(1)
        return torch.cat([expected, residual], dim=1)

    def _sums(self, batches: Iterable[Sample], ends: Tensor, targets: int, rows: int, count: int) -> Tensor:
        """Return Σ x_p x_q for p <= q, Σ x_p e, and Σ e² over the cases with truth, (F, L, count, T, rows, W), float64.

        A larger `count` than `N_SUMS` adds Σ x_p m, with the ensemble mean m.
        """
        shape = len(ends) + 1, len(self._task.lead_times), count, targets, rows, self._domain.own_shape[1]
        sums = torch.zeros(shape, dtype=torch.float64)
        for batch in batches:
            mean, error = self._case(batch)
            terms = seasonal_terms(batch)
            lead = lead_index(batch.lead_time, self._task).tolist()
            fold = fold_index(batch.init_time + 3600 * batch.lead_time, ends).tolist()
            places = zip(fold, lead, strict=True)
            for place, m, e, x in zip(places, mean.double(), error.double(), terms.double(), strict=True):
                known, e, own = e.isfinite().double(), e.nan_to_num(), sums[place]
                for row, (p, q) in enumerate(PAIRS):
                    own[row].add_(known, alpha=float(x[p] * x[q]))
                for p in range(3):
                    own[len(PAIRS) + p].add_(e, alpha=float(x[p]))
                own[N_SUMS - 1].add_(e.square())
                if count > N_SUMS:
                    m = m.where(known > 0, 0)
                    for p in range(3):
                        own[N_SUMS + p].add_(m, alpha=float(x[p]))
        return sums

    def _case(self, sample: Sample) -> tuple[Tensor, Tensor]:
        """Return the ensemble mean, and its error, NaN where a member or the truth is missing, (B, T, H, W) each."""
        mean = select_channels(sample.ensemble, self._targets, 2).mean(1)
        return mean, (sample.target - mean).masked_fill(~select_channels(sample.mask, self._targets, 1), torch.nan)


PAIRS = tuple(combinations_with_replacement(range(3), 2))
N_SUMS = len(PAIRS) + 3 + 1
"""Numbers of the normal equations of three coefficients, and the sum of squares."""


def _maps(sums: Tensor, seasonal: bool) -> Tensor:
    """Return three coefficients and the log residual (4, T, H, W) from the sums (10, T, H, W) of some cases."""
    moment = sums[len(PAIRS) : len(PAIRS) + 3]
    coefficients = _coefficients(sums, moment, seasonal)
    squares = (sums[N_SUMS - 1] - (coefficients * moment).sum(0)).clamp(min=0)
    residual = log_of_spread((squares / sums[0].clamp(min=1)).sqrt())
    return torch.cat([coefficients, residual[None]])


def _coefficients(sums: Tensor, moment: Tensor, seasonal: bool) -> Tensor:
    """Return the coefficients (3, T, H, W) of a regression with the moments Σ x_p y (3, T, H, W)."""
    terms = 3 if seasonal else 1
    normal = sums.new_zeros(*sums.shape[1:], terms, terms)
    for row, (p, q) in enumerate(PAIRS):
        if q < terms:
            normal[..., p, q] = normal[..., q, p] = sums[row]
    if bool((normal == normal[:1, :1, :1]).all()):
        normal = normal[:1, :1, :1]  # all cells have the same cases, so invert one matrix
    # A cell with fewer cases than coefficients gets the smallest solution; without cases, zero. Sums of a fold are
    # differences, which have rounding errors in place of zeros: `rtol` treats these as zero eigenvalues.
    inverse = torch.linalg.pinv(normal, hermitian=True, rtol=1e-9)
    solved = (inverse @ moment[:terms].movedim(0, -1)[..., None])[..., 0].movedim(-1, 0)
    found = torch.zeros_like(moment)
    found[:terms] = torch.where(sums[:1] > 0.5, solved, 0)
    return found


def log_of_spread(size: Tensor) -> Tensor:
    """Return the logarithm of a spread, so that a doubling is the same step for small and large spreads."""
    return torch.log(size + 10 * SMALLEST_SPREAD) + 2


def error_size(log_size: Tensor) -> Tensor:
    """Return the spread of which `log_size` is the `log_of_spread`."""
    return (torch.exp(log_size - 2) - 10 * SMALLEST_SPREAD).clamp(min=0)
