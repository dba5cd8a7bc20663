"""Normalizer: how a corrector leaves and re-enters physical units; part of its weights, fitted on training years."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor, nn

from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.distribution import Distribution


class Normalizer(nn.Module):
    """Per input: departure from the cell's mean over the training years, in units of the typical departure.

    The mean is a map, so that a network need not learn geography from a gradient of 100 K between equator and
    pole; the scale is one number per input, so that no quiet cell is blown up. Truth shares both with its input,
    so the raw ensemble stays the raw ensemble. Missing cells become zero, the mean.
    """

    location: Tensor
    scale: Tensor
    static_location: Tensor
    static_scale: Tensor
    _area: Tensor

    def __init__(self, task: Task, grid: Grid) -> None:
        super().__init__()
        self._targets = list(task.target_channels)
        C, S = len(task.inputs), len(task.static_names)
        self.register_buffer("location", torch.zeros(C, *grid.shape))
        self.register_buffer("scale", torch.ones(C))
        self.register_buffer("static_location", torch.zeros(S))
        self.register_buffer("static_scale", torch.ones(S))
        weights = np.broadcast_to(grid.weights[:, None], grid.shape).astype(np.float32)
        self.register_buffer("_area", torch.from_numpy(weights.copy()), persistent=False)

    def fit(self, batches: Callable[[], Iterator[Sample]]) -> None:
        """Take the statistics of all samples of `batches()`, in two passes: means, then departures from them."""
        total = torch.zeros_like(self.location, dtype=torch.float64)
        count = torch.zeros_like(total)
        for batch in batches():
            means = batch.ensemble.mean(1).masked_fill(~batch.mask, 0)
            total += means.sum(0, dtype=torch.float64)
            count += batch.mask.sum(0)
            static = batch.static[0]
        self.location.copy_(total / count.clamp(min=1))
        squares, area = torch.zeros(len(total), dtype=torch.float64), torch.zeros(len(total), dtype=torch.float64)
        for batch in batches():
            departure = (batch.ensemble - self.location).masked_fill(~batch.mask[:, None], 0)
            squares += (departure.square().mean(1) * self._area).sum((0, 2, 3), dtype=torch.float64)
            area += (batch.mask * self._area).sum((0, 2, 3), dtype=torch.float64)
        self.scale.copy_(_positive(torch.sqrt(squares / area.clamp(min=1e-12))))
        self.static_location.copy_(static.mean((-2, -1)))
        self.static_scale.copy_(_positive(static.std((-2, -1))))

    def forward(self, sample: Sample) -> Sample:
        """Return the batch in normalised units."""
        location, scale = self.target_scaling
        ensemble = (sample.ensemble - self.location) / self.scale[:, None, None]
        return sample._replace(
            ensemble=torch.where(sample.mask[:, None], ensemble, 0),
            static=(sample.static - self.static_location[:, None, None]) / self.static_scale[:, None, None],
            target=(sample.target - location) / scale,
        )

    @property
    def target_scaling(self) -> tuple[Tensor, Tensor]:
        """Location (T, H, W) and scale (T, 1, 1) of the targets."""
        return self.location[self._targets], self.scale[self._targets, None, None]

    def physical(self, distribution: Distribution) -> Distribution:
        """Return a distribution over normalised targets in physical units."""
        return distribution.affine(*self.target_scaling)


def _positive(scale: Tensor) -> Tensor:
    """Replace the scale of a constant field by one: its departures are zero and shall stay so."""
    return torch.where(scale > 0, scale, 1)
