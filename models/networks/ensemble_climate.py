"""Ensemble climate: mean of the ensemble mean over the training years in every cell, by season."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.parallel.domain import Domain
from models.parallel.exchange import assemble
from models.statistical.cases import lead_index
from models.statistical.crossfit import CrossFitted
from models.statistical.predictors import annual_harmonics


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
        # The ends are copied: `fitted.safetensors` refuses tensors that share memory with those of `ErrorClimate`.
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
