"""Features: the inputs of a network, with mean and spread of the ensemble for any number of members."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations_with_replacement

import torch
from torch import Tensor, nn

from data_pipeline.common.checks import check_integer
from data_pipeline.common.progress import watched
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample, select_channels
from data_pipeline.task import Task
from models.parallel.domain import Domain
from models.parallel.exchange import assemble
from models.statistical.cases import FitReport, Passes, covers_year, lead_index, season_note
from models.statistical.crossfit import CrossFitted, fold_index, single_year_note, year_folds
from models.statistical.predictors import SMALLEST_SPREAD, annual_harmonics, spread


class Features(nn.Module):
    """Features (B, F, H, W) of a normalised sample, in this order:

    mean of each input; log spread of each input; static fields, which include the position; cosine and sine of the
    season; expected error and its size for each target (`ErrorClimate`); a mask for each input that exists at sea only;
    the lead time, if the task has several; and `cell_embedding` numbers of every cell, which are trained with the
    network (Rasp & Lerch 2018, doi:10.1175/MWR-D-18-0187.1).
    """

    def __init__(self, task: Task, grid: Grid | Domain, cell_embedding: int = 0) -> None:
        super().__init__()
        check_integer("model.cell_embedding", cell_embedding, 0)
        self.errors, self._domain, self._leads = ErrorClimate(task, grid), Domain.of(grid), task.lead_times
        # From the variable's name, not from training data: shapes of a network depend on the task alone.
        self._at_sea = [k for k, channel in enumerate(task.channels) if channel.variable.sea_only]
        # It starts at zero, all cells alike. The weights that read it are random, so it has a gradient as soon as the
        # last layer is not zero. A cell without truth stays at zero, the middle of all.
        self.embedding = nn.Parameter(torch.zeros(cell_embedding, *grid.shape)) if cell_embedding else None
        even = len(task.channels) + len(task.static_names) + 2
        errors = (*(target.parity for target in task.targets), *[1] * len(task.targets))
        rest = len(self._at_sea) + (len(task.lead_times) > 1) + cell_embedding
        self.parity = (*task.parity, *[1] * even, *errors, *[1] * rest)
        """Parity of each map (`HaloPad`): mean and bias of a wind change sign across a pole, its spread does not."""
        self.count = len(self.parity)

    def forward(self, sample: Sample) -> Tensor:
        """Return all features of a batch."""
        B, _, _, H, W = sample.ensemble.shape
        log_spread = log_of_spread(spread(sample.ensemble)).masked_fill(~sample.mask, 0)
        when = annual_harmonics(sample.init_time, sample.lead_time).to(log_spread)[:, :, None, None].expand(B, -1, H, W)
        maps = [sample.ensemble.mean(1), log_spread, sample.static, when, self.errors(sample)]
        if self._at_sea:
            maps.append(sample.mask[:, self._at_sea].to(log_spread))
        if len(self._leads) > 1:
            maps.append(self._lead(sample).to(log_spread)[:, None, None, None].expand(B, 1, H, W))
        if self.embedding is not None:
            maps.append(self._domain.cut(self.embedding).to(log_spread).expand(B, -1, H, W))
        return torch.cat(maps, dim=1)

    def _lead(self, sample: Sample) -> Tensor:
        """Return the lead time (B,), scaled to -1 for the task's first and 1 for its last.

        One number is enough, because errors grow steadily with it; `ErrorClimate` has maps of its own per lead time.
        """
        first, last = self._leads[0], self._leads[-1]
        return (2 * sample.lead_time - first - last) / (last - first)


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
    def fit(self, batches: Iterable[Sample]) -> None:
        """Fit the error by least squares to 1, cos and sin of the season, in every cell.

        Memory holds only the sums of the normal equations of each year. If the cases of a lead time do not cover the
        year, the bias is a constant and `report` has a note.
        """
        passes = Passes.of(batches)
        passes.check_lead_times(self._task)
        ends = year_folds(passes)
        seasonal = [covers_year(passes.days(lead)) for lead in self._task.lead_times]
        self.report = FitReport(
            [note for note in (single_year_note(passes), season_note(self._task, seasonal)) if note]
        )
        F, L, T, (h, w) = len(ends) + 1, len(seasonal), len(self._targets), self._domain.own_shape
        maps = self.bias.new_empty(F + 1, L, 4, T, h, w)
        for rows in watched(passes.blocks(F * L * T * w * N_SUMS * 8), "fit of the mean errors: block of rows"):
            sums = self._sums(passes.begin(rows), ends, T, rows.stop - rows.start)
            total = sums.sum(0)
            for fold in range(F + 1):
                kept = total if fold == F else total - sums[fold]
                for lead, cyclic in enumerate(seasonal):
                    maps[fold, lead, ..., rows, :] = _maps(kept[lead], cyclic)
        self.bias.copy_(assemble(maps[-1, :, :3], self._domain))
        self.residual.copy_(assemble(maps[-1, :, 3], self._domain))
        self.without.set(maps[:-1].flatten(0, 1), ends)

    def forward(self, sample: Sample) -> Tensor:
        """Return the expected error and its size, (B, 2T, H, W)."""
        lead = lead_index(sample.lead_time, self._task)
        if self.training and self.without.fitted:
            maps = self.without.table[self.without.fold(sample) * len(self._task.lead_times) + lead]
            bias, residual = maps[:, :3], maps[:, 3]
        else:
            bias, residual = self._domain.cut(self.bias)[lead], self._domain.cut(self.residual)[lead]
        return torch.cat([torch.einsum("bp,bpthw->bthw", self._terms(sample), bias), residual], dim=1)

    def _sums(self, batches: Iterable[Sample], ends: Tensor, targets: int, rows: int) -> Tensor:
        """Return Σ x_p x_q for p <= q, Σ x_p e, and Σ e² over the cases with truth, (F, L, 10, T, rows, W), float64."""
        shape = len(ends) + 1, len(self._task.lead_times), N_SUMS, targets, rows, self._domain.own_shape[1]
        sums = torch.zeros(shape, dtype=torch.float64)
        for batch in batches:
            error, terms = self._case(batch)
            lead = lead_index(batch.lead_time, self._task).tolist()
            fold = fold_index(batch.init_time + 3600 * batch.lead_time, ends).tolist()
            for place, e, x in zip(zip(fold, lead, strict=True), error.double(), terms.double(), strict=True):
                known, e, own = e.isfinite().double(), e.nan_to_num(), sums[place]
                for row, (p, q) in enumerate(PAIRS):
                    own[row].add_(known, alpha=float(x[p] * x[q]))
                for p in range(3):
                    own[len(PAIRS) + p].add_(e, alpha=float(x[p]))
                own[-1].add_(e.square_())
        return sums

    def _terms(self, sample: Sample) -> Tensor:
        when = annual_harmonics(sample.init_time, sample.lead_time).to(self.bias)
        return torch.cat([torch.ones_like(when[:, :1]), when], dim=1)

    def _case(self, sample: Sample) -> tuple[Tensor, Tensor]:
        error = sample.target - select_channels(sample.ensemble, self._targets, 2).mean(1)
        return error.masked_fill(~select_channels(sample.mask, self._targets, 1), torch.nan), self._terms(sample)


PAIRS = tuple(combinations_with_replacement(range(3), 2))
N_SUMS = len(PAIRS) + 3 + 1
"""Numbers of the normal equations of three coefficients, and the sum of squares."""


def _maps(sums: Tensor, seasonal: bool) -> Tensor:
    """Return three coefficients and the log residual (4, T, H, W) from the sums (10, T, H, W) of some cases."""
    terms = 3 if seasonal else 1
    normal = sums.new_zeros(*sums.shape[1:], terms, terms)
    for row, (p, q) in enumerate(PAIRS):
        if q < terms:
            normal[..., p, q] = normal[..., q, p] = sums[row]
    moment = sums[len(PAIRS) : len(PAIRS) + terms].movedim(0, -1)
    if bool((normal == normal[:1, :1, :1]).all()):
        normal = normal[:1, :1, :1]  # all cells have the same cases, so invert one matrix
    # A cell with fewer cases than coefficients gets the smallest solution; without cases, no bias. Sums of a fold are
    # differences, which have rounding errors in place of zeros: `rtol` treats these as zero eigenvalues.
    inverse = torch.linalg.pinv(normal, hermitian=True, rtol=1e-9)
    coefficients = (inverse @ moment[..., None])[..., 0]
    coefficients = torch.where(sums[:1].movedim(0, -1) > 0.5, coefficients, 0)
    squares = (sums[-1] - (coefficients * moment).sum(-1)).clamp(min=0)
    residual = log_of_spread((squares / sums[0].clamp(min=1)).sqrt())
    found = sums.new_zeros(4, *sums.shape[1:])
    found[:terms], found[3] = coefficients.movedim(-1, 0), residual
    return found


def log_of_spread(size: Tensor) -> Tensor:
    """Return the logarithm of a spread, so that a doubling is the same step for small and large spreads."""
    return torch.log(size + 10 * SMALLEST_SPREAD) + 2
