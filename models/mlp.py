"""MLP: every cell by itself, the same small network everywhere (Rasp & Lerch 2018, doi:10.1175/MWR-D-18-0187.1)."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from data_pipeline.checks import between, whole
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.distribution import Distribution
from models.features import Features
from models.head import head_for, silent
from models.spatial.domain import Domain
from models.spatial.dropout import Dropout


class MLP(nn.Module):
    """`depth` hidden layers of `width` units, which know of the place the static fields and `embedding` learnt numbers.

    With these it is the distributional regression network of Rasp & Lerch, and with the `head` bernstein the Bernstein
    quantile network of Bremnes 2020 (doi:10.1175/MWR-D-19-0227.1).
    """

    moments_only = True

    def __init__(
        self,
        task: Task,
        grid: Grid | Domain,
        width: int = 128,
        depth: int = 1,
        dropout: float = 0.0,
        embedding: int = 0,
        head: str = "normal",
    ) -> None:
        super().__init__()
        whole("model.width", width, 1)
        whole("model.depth", depth, 1)
        between("model.dropout", dropout, 0, 1)
        self.features, self.head = Features(task, grid, embedding), head_for(head, task, grid)
        layers: list[nn.Module] = []
        count = self.features.count
        for _ in range(depth):
            layers += [nn.Conv2d(count, width, 1), nn.GELU(), Dropout(grid, dropout)]
            count = width
        self.network = nn.Sequential(*layers, silent(count, self.head.count))

    def normalise(self, location: Tensor, scale: Tensor) -> None:
        """Learn the units in which samples will come."""
        self.head.normalise(location, scale)

    def fit(self, batches: Iterable[Sample]) -> None:
        """Learn where the ensemble used to err; all else is learnt by gradient descent."""
        self.features.errors.fit(batches)

    def forward(self, sample: Sample) -> Distribution:
        """Return the corrected distribution of a batch."""
        return self.head(self.network(self.features(sample)), sample)
