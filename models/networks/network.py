"""Base class of networks that read `Features` and return a distribution through a `Head`."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.distribution import Distribution
from models.networks.baseline import BaselineOption
from models.networks.features import Features
from models.networks.head import HeadOption, make_head
from models.parallel.domain import Domain


class Network(nn.Module):
    """Features of a sample, then `maps` of the subclass, then a head, which returns the distribution.

    A subclass implements `maps`: from the features (B, F, H, W), where F is `self.features.count`, to the head's input
    (B, N, H, W), where N is `self.head.count`. Its constructor passes the options `head` and `baseline` of `make_head`
    to this class. Its last layer should be a `zero_convolution`, so that training starts at the baseline.
    """

    moments_only = any_grid = tiles = True

    def __init__(
        self, task: Task, grid: Grid | Domain, head: HeadOption, baseline: BaselineOption, cell_embedding: int = 0
    ) -> None:
        super().__init__()
        self.features, self.head = Features(task, grid, cell_embedding), make_head(head, task, grid, baseline)

    def normalise(self, location: Tensor, scale: Tensor) -> None:
        """Pass the units (x - location)/scale of samples to the head."""
        self.head.normalise(location, scale)

    def fit(self, batches: Iterable[Sample]) -> None:
        """Fit past errors of the ensemble, and the baseline; gradient descent trains all other parameters."""
        self.head.fit(batches, self.features.errors)

    def forward(self, sample: Sample) -> Distribution:
        """Return the corrected distribution of a batch."""
        features = self.features(sample)
        return self.head(self.maps(features), sample, self.features.errors_among(features))

    def maps(self, features: Tensor) -> Tensor:
        """Map (B, F, H, W) to the head's input (B, N, H, W)."""
        raise NotImplementedError
