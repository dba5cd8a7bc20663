"""Normalizer: how a corrector leaves and re-enters physical units; part of its weights, fitted on training years."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.distribution import Bounded, CensoredShiftedGamma, Distribution
from models.spatial.domain import Domain
from models.spatial.exchange import allsum, assemble


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

    def __init__(self, task: Task, grid: Grid | Domain) -> None:
        super().__init__()
        self._domain = Domain.of(grid)
        self._targets = list(task.target_channels)
        self._bounds = [target.bounds[0] or 0.0 for target in task.targets]
        C, S = len(task.channels), len(task.static_names)
        self.register_buffer("location", torch.zeros(C, *grid.shape))
        self.register_buffer("scale", torch.ones(C))
        self.register_buffer("static_location", torch.zeros(S))
        self.register_buffer("static_scale", torch.ones(S))
        weights = np.broadcast_to(self._domain.grid.weights[:, None], grid.shape).astype(np.float32)
        self.register_buffer("_area", torch.from_numpy(weights.copy()), persistent=False)

    def fit(self, batches: Callable[[], Iterator[Sample]]) -> None:
        """Take the statistics of all samples of `batches()`, in two passes: means, then departures from them."""
        area_of, domain = self._domain.cut(self._area), self._domain
        total = torch.zeros(len(self.location), *domain.own_shape, dtype=torch.float64)
        count = torch.zeros_like(total)
        for batch in batches():
            means = batch.ensemble.mean(1).masked_fill(~batch.mask, 0)
            total += means.sum(0, dtype=torch.float64)
            count += batch.mask.sum(0)
            static = batch.static[0]
        location = total / count.clamp(min=1)
        self.location.copy_(assemble(location, domain))
        location = domain.cut(self.location)
        squares, area = torch.zeros(len(total), dtype=torch.float64), torch.zeros(len(total), dtype=torch.float64)
        for batch in batches():
            departure = (batch.ensemble - location).masked_fill(~batch.mask[:, None], 0)
            squares += (departure.square().mean(1) * area_of).sum((0, 2, 3), dtype=torch.float64)
            area += (batch.mask * area_of).sum((0, 2, 3), dtype=torch.float64)
        squares, area = allsum(squares, domain), allsum(area, domain)
        self.scale.copy_(_positive(torch.sqrt(squares / area.clamp(min=1e-12))))
        static = assemble(static, domain)
        self.static_location.copy_(static.mean((-2, -1)))
        self.static_scale.copy_(_positive(static.std((-2, -1))))

    def forward(self, sample: Sample) -> Sample:
        """Return the batch in normalised units."""
        location, scale = self.target_scaling
        ensemble = (sample.ensemble - self._domain.cut(self.location)) / self.scale[:, None, None]
        return sample._replace(
            ensemble=torch.where(sample.mask[:, None], ensemble, 0),
            static=(sample.static - self.static_location[:, None, None]) / self.static_scale[:, None, None],
            target=(sample.target - location) / scale,
        )

    @property
    def target_scaling(self) -> tuple[Tensor, Tensor]:
        """Location (T, H, W) and scale (T, 1, 1) of the targets, where the own tile lies."""
        return self._domain.cut(self.location)[self._targets], self.scale[self._targets, None, None]

    def physical(self, distribution: Distribution) -> Distribution:
        """Return a distribution over normalised targets in physical units, its lower bound to the last digit.

        Rounding leaves a bound of 0 at ±2e-10, and a truth of 0 would no longer lie on it. A lower bound that differs
        from the target's physical one (from 0, if it has none) by no more than rounding is set to this number.
        """
        location, scale = self.target_scaling
        found = distribution.affine(location, scale)
        if isinstance(found, Bounded | CensoredShiftedGamma):
            bound = torch.tensor(self._bounds).to(location)[:, None, None]
            error = 4 * torch.finfo(location.dtype).eps * (location.abs() + bound.abs())
            return replace(found, lower=torch.where((found.lower - bound).abs() <= error, bound, found.lower))
        return found


def _positive(scale: Tensor) -> Tensor:
    """Replace the scale of a constant field by one: its departures are zero and shall stay so."""
    return torch.where(scale > 0, scale, 1)
