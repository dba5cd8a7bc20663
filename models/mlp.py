"""MLP: every cell by itself, the same small network everywhere (Rasp & Lerch 2018, doi:10.1175/MWR-D-18-0187.1)."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from data_pipeline.checks import between, whole
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.distribution import Normal
from models.features import Features
from models.head import GaussianHead, silent
from models.spatial.domain import Domain
from models.spatial.dropout import Dropout


class MLP(nn.Module):
    """`depth` hidden layers of `width` units; it knows where it is only from the static features."""

    moments_only = True

    def __init__(self, task: Task, grid: Grid | Domain, width: int = 128, depth: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        whole("model.width", width, 1)
        whole("model.depth", depth, 1)
        between("model.dropout", dropout, 0, 1)
        self.features, self.head = Features(task, grid), GaussianHead(task)
        layers: list[nn.Module] = []
        count = self.features.count
        for _ in range(depth):
            layers += [nn.Conv2d(count, width, 1), nn.GELU(), Dropout(grid, dropout)]
            count = width
        self.network = nn.Sequential(*layers, silent(count, self.head.count))

    def fit(self, batches: Iterable[Sample]) -> None:
        """Learn where the ensemble used to err; all else is learnt by gradient descent."""
        self.features.errors.fit(batches)

    def forward(self, sample: Sample) -> Normal:
        """Return the corrected distribution of a batch."""
        return self.head(self.network(self.features(sample)), sample)
