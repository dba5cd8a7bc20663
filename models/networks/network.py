"""Network: what those have in common that look at features of the ensemble and answer through a head."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.distribution import Distribution
from models.networks.features import Features
from models.networks.head import head_for
from models.parallel.domain import Domain


class Network(nn.Module):
    """`Features` in, `maps` of the subclass between, a `Head` out; `head` and `baseline` are those of `head_for`."""

    moments_only = any_grid = tiles = True

    def __init__(
        self, task: Task, grid: Grid | Domain, head: str, baseline: dict[str, Any] | None, cell_embedding: int = 0
    ) -> None:
        super().__init__()
        self.features, self.head = Features(task, grid, cell_embedding), head_for(head, task, grid, baseline)

    def normalise(self, location: Tensor, scale: Tensor) -> None:
        """Tell the head in which units (x - location)/scale samples will come."""
        self.head.normalise(location, scale)

    def fit(self, batches: Iterable[Sample]) -> None:
        """Learn where the ensemble used to err, and the start; all else is learnt by gradient descent."""
        self.features.errors.fit(batches)
        self.head.fit(batches)

    def forward(self, sample: Sample) -> Distribution:
        """Return the corrected distribution of a batch."""
        return self.head(self.maps(self.features(sample)), sample)

    def maps(self, features: Tensor) -> Tensor:
        """(B, F, H, W) to the answer (B, `head.count`, H, W)."""
        raise NotImplementedError
