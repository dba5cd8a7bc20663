"""What a network sees of a sample: the ensemble through its mean and spread, so any number of members will do."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from data_pipeline.checks import whole
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.cases import gather, lead_index
from models.season import season
from models.spatial.domain import Domain
from models.spatial.exchange import assemble

SMALLEST_SPREAD = 1e-3
"""In units of the variable's typical departure; keeps σ positive where all members agree."""


def spread(ensemble: Tensor) -> Tensor:
    """Return the unbiased standard deviation over the members, (B, M, ...) to (B, ...); zero for one member.

    Written out, because `torch.std` over an inner dimension is four times slower on a CPU.
    """
    departure = ensemble - ensemble.mean(1, keepdim=True)
    return torch.sqrt(departure.square().sum(1) / max(ensemble.shape[1] - 1, 1))


class Features(nn.Module):
    """Normalised sample to maps (B, F, H, W): what the ensemble says, where and when it is, how it used to err there.

    That is mean and log spread of each input, the static fields, the position among them, the season, the two maps of
    `ErrorClimate`, the lead time if the task has several, and `embedding` numbers of every cell that are learnt along
    (Rasp & Lerch 2018, doi:10.1175/MWR-D-18-0187.1).
    """

    def __init__(self, task: Task, grid: Grid | Domain, embedding: int = 0) -> None:
        super().__init__()
        whole("model.embedding", embedding, 0)
        self.errors, self._domain, self._leads = ErrorClimate(task, grid), Domain.of(grid), task.lead_times
        # From zero, where every cell is like every other: the weights that read the embedding are random, so that it
        # has a gradient as soon as the last layer speaks, and a cell without truth keeps the middle of all.
        self.embedding = nn.Parameter(torch.zeros(embedding, *grid.shape)) if embedding else None
        even = len(task.channels) + len(task.static_names) + 2
        errors = (*(target.parity for target in task.targets), *[1] * len(task.targets))
        self.parity = (*task.parity, *[1] * even, *errors, *[1] * ((len(task.lead_times) > 1) + embedding))
        """Of each map (`Window`): mean and bias of a wind change sign across a pole, its spread does not."""
        self.count = len(self.parity)

    def forward(self, sample: Sample) -> Tensor:
        """Return all features of a batch."""
        B, _, _, H, W = sample.ensemble.shape
        log_spread = visible(spread(sample.ensemble)).masked_fill(~sample.mask, 0)
        when = season(sample.init_time, sample.lead_time).to(log_spread)[:, :, None, None].expand(B, -1, H, W)
        maps = [sample.ensemble.mean(1), log_spread, sample.static, when, self.errors(sample)]
        if len(self._leads) > 1:
            maps.append(self._lead(sample).to(log_spread)[:, None, None, None].expand(B, 1, H, W))
        if self.embedding is not None:
            maps.append(self._domain.cut(self.embedding).to(log_spread).expand(B, -1, H, W))
        return torch.cat(maps, dim=1)

    def _lead(self, sample: Sample) -> Tensor:
        """Return the lead time (B,) as one number from -1, the task's first, to 1, its last.

        One, for errors grow steadily with it; what is peculiar to a single lead time is in `ErrorClimate`.
        """
        first, last = self._leads[0], self._leads[-1]
        return (2 * sample.lead_time - first - last) / (last - first)


class ErrorClimate(nn.Module):
    """How the ensemble mean used to err in the training years: its bias, with an annual cycle, and what is left.

    Many errors belong to a place: a valley that the model's orography lacks, a coast. Position alone does not tell
    a network of them; these maps do. Until they are fitted they are zero.
    """

    bias: Tensor
    residual: Tensor

    def __init__(self, task: Task, grid: Grid | Domain) -> None:
        super().__init__()
        self._task, self._targets, self._domain = task, list(task.target_channels), Domain.of(grid)
        L, T = len(task.lead_times), len(task.targets)
        self.register_buffer("bias", torch.zeros(L, 3, T, *grid.shape))
        self.register_buffer("residual", torch.zeros(L, T, *grid.shape))

    def fit(self, batches: Iterable[Sample]) -> None:
        """Least squares of the error on 1, cos and sin of the season, in every cell by itself."""
        for lead, (error, terms) in enumerate(gather(batches, self._task, self._case)):
            known = error.isfinite().to(error)
            normal = torch.einsum("np,nq,nthw->thwpq", terms, terms, known)
            moment = torch.einsum("np,nthw->thwp", terms, error.nan_to_num())
            # A cell with fewer cases than coefficients takes the smallest of the solutions: none at all, no bias.
            coefficients = (torch.linalg.pinv(normal, hermitian=True) @ moment[..., None])[..., 0]
            rest = (error - torch.einsum("np,thwp->nthw", terms, coefficients)).nan_to_num()
            variance = rest.square().sum(0) / known.sum(0).clamp(min=1)
            self.bias[lead] = assemble(coefficients.movedim(-1, 0), self._domain)
            self.residual[lead] = assemble(visible(variance.sqrt()), self._domain)

    def forward(self, sample: Sample) -> Tensor:
        """Return the expected error and its size, (B, 2T, H, W)."""
        lead = lead_index(sample.lead_time, self._task)
        bias = torch.einsum("bp,bpthw->bthw", self._terms(sample), self._domain.cut(self.bias)[lead])
        return torch.cat([bias, self._domain.cut(self.residual)[lead]], dim=1)

    def _terms(self, sample: Sample) -> Tensor:
        when = season(sample.init_time, sample.lead_time).to(self.bias)
        return torch.cat([torch.ones_like(when[:, :1]), when], dim=1)

    def _case(self, sample: Sample) -> tuple[Tensor, Tensor]:
        error = sample.target - sample.ensemble[:, :, self._targets].mean(1)
        return error.masked_fill(~sample.mask[:, self._targets], torch.nan), self._terms(sample)


def visible(size: Tensor) -> Tensor:
    """Return the logarithm of a spread: a doubling counts alike where the ensemble is calm and where it is not."""
    return torch.log(size + 10 * SMALLEST_SPREAD) + 2
