"""Normalizer: how a corrector leaves and re-enters physical units; part of its weights, fitted on training years."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from data_pipeline.grid import Grid
from data_pipeline.protocols import ALL
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.distribution import Bounded, CensoredShiftedGamma, Distribution
from models.parallel.domain import Domain
from models.parallel.exchange import allsum, assemble
from models.statistical.cases import FitReport


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
    known: Tensor
    """(T, H, W) 0 where the training samples have no value of a target at all, else 1."""
    always: Tensor
    """(C, H, W) 1 where every training sample has a value of all members; 0 too where this is not known."""
    _area: Tensor

    def __init__(self, task: Task, grid: Grid | Domain) -> None:
        super().__init__()
        self._domain = Domain.of(grid)
        self._targets = list(task.target_channels)
        self._bounds = [target.bounds[0] or 0.0 for target in task.targets]
        self._names = [str(channel) for channel in task.channels]
        C, S = len(task.channels), len(task.static_names)
        self.register_buffer("location", torch.zeros(C, *grid.shape))
        self.register_buffer("scale", torch.ones(C))
        self.register_buffer("static_location", torch.zeros(S))
        self.register_buffer("static_scale", torch.ones(S))
        self.register_buffer("known", torch.ones(len(task.targets), *grid.shape))
        self.complete = True
        """Whether all of `known` is 1."""
        self.register_buffer("always", torch.zeros(C, *grid.shape))
        weights = np.broadcast_to(self._domain.grid.weights[:, None], grid.shape).astype(np.float32)
        self.register_buffer("_area", torch.from_numpy(weights.copy()), persistent=False)
        self.report = FitReport()

    def fit(self, batches: Callable[[], Iterator[Sample]]) -> None:
        """Take the statistics of all samples of `batches()`, in two passes: means, then departures from them.

        A cell without any value in the training years gets the mean of its row (of the globe, if the row has none), so
        that a value that it has later is no departure from 0 K. `report` says how many cells that are.
        """
        area_of, domain = self._domain.cut(self._area), self._domain
        total = torch.zeros(len(self.location), *domain.own_shape, dtype=torch.float64)
        count, samples = torch.zeros_like(total), 0
        for batch in batches():
            means = batch.ensemble.mean(1).masked_fill(~batch.mask, 0)
            total += means.sum(0, dtype=torch.float64)
            count += batch.mask.sum(0)
            samples += len(batch.mask)
            static = batch.static[0]
        known = assemble((count > 0).double(), domain) > 0
        self.location.copy_(filled(assemble(total / count.clamp(min=1), domain), known, self._area.double()))
        self.known.copy_(known[self._targets])
        self.complete = bool(self.known.all())
        self.report = FitReport(self._empty(known))
        self.always.copy_(assemble((count == samples).double(), domain))
        location = domain.cut(self.location)
        squares, area = torch.zeros(len(total), dtype=torch.float64), torch.zeros(len(total), dtype=torch.float64)
        for batch in batches():
            mean_square = torch.zeros_like(batch.ensemble[:, 0])
            for member in batch.ensemble.unbind(1):  # a batch of departures would be as large as the batch
                mean_square += (member - location).square_()
            mean_square.div_(batch.ensemble.shape[1]).masked_fill_(~batch.mask, 0)
            squares += (mean_square * area_of).sum((0, 2, 3), dtype=torch.float64)
            area += (batch.mask * area_of).sum((0, 2, 3), dtype=torch.float64)
        squares, area = allsum(squares, domain), allsum(area, domain)
        self.scale.copy_(_positive(torch.sqrt(squares / area.clamp(min=1e-12))))
        static = assemble(static, domain).flatten(1)
        self.static_location.copy_(static.mean(1))
        # A grid of one cell has no standard deviation.
        self.static_scale.copy_(_positive(static.std(1) if static.shape[1] > 1 else torch.zeros(len(static))))

    def _empty(self, known: Tensor) -> list[str]:
        """Return a sentence for each input that some cells (C, H, W) never have."""
        cells = known.shape[1] * known.shape[2]
        return [
            f"{name} has no value in {missing} of {cells} cells in all training samples"
            + ("; there the correction is the raw ensemble" if channel in self._targets else "")
            for channel, name in enumerate(self._names)
            if (missing := cells - int(known[channel].sum()))
        ]

    def forward(self, sample: Sample, rows: slice = ALL) -> Sample:
        """Return the batch in normalised units; it may hold only some `rows` of the own tile."""
        location, scale = self.target_scaling
        location = location[:, rows]
        ensemble = (sample.ensemble - self._domain.cut(self.location)[:, rows]) / self.scale[:, None, None]
        return sample._replace(
            ensemble=torch.where(sample.mask[:, None], ensemble, 0),
            static=(sample.static - self.static_location[:, None, None]) / self.static_scale[:, None, None],
            target=(sample.target - location) / scale,
        )

    def complete_state(self, state: dict[str, Tensor], prefix: str) -> None:
        """Add to a `state` whose names begin with `prefix` what files of earlier versions do not have."""
        state.setdefault(f"{prefix}known", torch.ones(self.known.shape))
        state.setdefault(f"{prefix}always", torch.zeros(self.always.shape))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        """Take the state, also that of a file of an earlier version."""
        self.complete_state(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *arguments)
        self.complete = bool(self.known.all())

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


def filled(mean: Tensor, known: Tensor, area: Tensor) -> Tensor:
    """Return fields (C, H, W) whose unknown cells have the mean of the row's known cells, else that of the globe's.

    It is 0 where a channel has no known cell at all.
    """
    mean, weight = torch.where(known, mean, 0), known * area
    rows, globe = known.sum(2, keepdim=True), weight.sum((1, 2), keepdim=True)
    of_globe = (mean * weight).sum((1, 2), keepdim=True) / globe.clamp(min=1e-12)
    of_row = torch.where(rows > 0, mean.sum(2, keepdim=True) / rows.clamp(min=1), of_globe)
    return torch.where(known, mean, of_row)


def _positive(scale: Tensor) -> Tensor:
    """Replace the scale of a constant field by one: its departures are zero and shall stay so."""
    return torch.where(scale > 0, scale, 1)
