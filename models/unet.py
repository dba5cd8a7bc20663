"""U-Net on the sphere (Ronneberger et al. 2015, arXiv:1505.04597): context at every scale, detail through the skips."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.distribution import Distribution
from models.features import Features
from models.head import head_for, silent
from models.spatial.domain import Domain
from models.trunk import Place, Trunk


class UNet(nn.Module):
    """`depth` halvings of the resolution, `width` channels at the finest, twice as many at each coarser level.

    With `embedding`, so many learnt numbers of each cell have a say in the end (`Place`). With `mixture`, the options
    of `Mixing`, the convolutions at the finest resolution are mixtures of experts.
    """

    moments_only = True

    def __init__(
        self,
        task: Task,
        grid: Grid | Domain,
        width: int = 16,
        depth: int = 2,
        dropout: float = 0.1,
        embedding: int = 0,
        head: str = "normal",
        mixture: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.features, self.head = Features(task, grid), head_for(head, task, grid)
        self.trunk = Trunk(grid, self.features.count, width, depth, dropout, mixture)
        self.place = Place(grid, width, embedding) if embedding else nn.Identity()
        self.last = silent(width, self.head.count)

    def normalise(self, location: Tensor, scale: Tensor) -> None:
        """Tell the head in which units (x - location)/scale samples will come."""
        self.head.normalise(location, scale)

    def fit(self, batches: Iterable[Sample]) -> None:
        """Learn where the ensemble used to err; all else is learnt by gradient descent."""
        self.features.errors.fit(batches)

    def forward(self, sample: Sample) -> Distribution:
        """Return the corrected distribution of a batch."""
        return self.head(self.last(self.place(self.trunk(self.features(sample)))), sample)
