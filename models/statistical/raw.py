"""The raw ensemble as a model, the reference of every correction."""

from __future__ import annotations

from torch import nn

from data_pipeline.grid import Grid
from data_pipeline.sample import Sample, select_channels
from data_pipeline.task import Task
from models.distribution import Ensemble
from models.parallel.domain import Domain


class Raw(nn.Module):
    """Returns the members of the targets unchanged."""

    targets_only = any_size = any_groups = any_grid = tiles = cellwise = True

    def __init__(self, task: Task, grid: Grid | Domain) -> None:
        super().__init__()
        self._targets = list(task.target_channels)

    def forward(self, sample: Sample) -> Ensemble:
        """Return the empirical distribution of the members, (B, T, H, W); NaN where a member is missing."""
        members, mask = (
            select_channels(sample.ensemble, self._targets, 2),
            select_channels(sample.mask, self._targets, 1),
        )
        return Ensemble(members.masked_fill(~mask[:, None], float("nan")).movedim(1, 0))
