"""Normalizer: converts samples to normalised units, and forecasts back to physical units."""

from __future__ import annotations

import logging
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

logger = logging.getLogger(__name__)


class Normalizer(nn.Module):
    """Normalises each input: departure from the cell's mean in the training years, divided by the typical departure.

    The mean is a map, so that a network need not learn the gradient of 100 K between equator and pole. The scale is one
    number per input, so that small departures in quiet cells stay small. The truth has the mean and scale of its input,
    so the raw ensemble stays a forecast of it. Missing cells become zero, the mean. All numbers are fitted to the
    training years and are part of the corrector file.
    """

    location: Tensor
    scale: Tensor
    static_location: Tensor
    static_scale: Tensor
    known: Tensor
    """(T, H, W) 0 where no training sample has a value of the target, else 1."""
    always: Tensor
    """(C, H, W) 1 where every training sample has a value of all members; 0 elsewhere, and in files of old versions."""
    _area: Tensor

    def __init__(self, task: Task, grid: Grid | Domain) -> None:
        super().__init__()
        self._domain = Domain.of(grid)
        self._targets = list(task.target_channels)
        self._bounds = [target.bounds[0] or 0.0 for target in task.targets]
        self._names = [(str(channel), channel.variable.sea_only) for channel in task.channels]
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
        """Compute the statistics of all samples of `batches()`, in two passes: means, then departures from them.

        A cell without any value in the training years gets the mean of its row (of the globe, if the row has none).
        With a mean of 0 K, a value in a later forecast would be a huge departure. `report` counts these cells.
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
        self.location.copy_(fill_unknown(assemble(total / count.clamp(min=1), domain), known, self._area.double()))
        self.known.copy_(known[self._targets])
        self.complete = bool(self.known.all())
        self.report = FitReport(self._notes(known))
        self.always.copy_(assemble((count == samples).double(), domain))
        location = domain.cut(self.location)
        squares, area = torch.zeros(len(total), dtype=torch.float64), torch.zeros(len(total), dtype=torch.float64)
        for batch in batches():
            mean_square = torch.zeros_like(batch.ensemble[:, 0])
            for member in batch.ensemble.unbind(1):  # one by one, because departures need as much memory as the members
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

    def _notes(self, known: Tensor) -> list[str]:
        """Return a note for each input that no training sample has in some cells, given where (C, H, W) it has values.

        Variables that exist at sea only lack values over land by nature: there is no note about them.
        """
        cells, notes = known.shape[1] * known.shape[2], []
        for channel, (name, sea_only) in enumerate(self._names):
            missing = cells - int(known[channel].sum())
            note = f"{name} has no value in {missing} of {cells} cells in all training samples"
            if missing and sea_only:
                logger.debug(note)
            elif missing:
                notes.append(note + "; there the correction is the raw ensemble" * (channel in self._targets))
        return notes

    def forward(self, sample: Sample, rows: slice = ALL) -> Sample:
        """Return a batch in normalised units; the batch may hold only some `rows` of the own tile."""
        location, scale = self.target_scaling
        location = location[:, rows]
        ensemble = (sample.ensemble - self._domain.cut(self.location)[:, rows]) / self.scale[:, None, None]
        return sample._replace(
            ensemble=torch.where(sample.mask[:, None], ensemble, 0),
            static=(sample.static - self.static_location[:, None, None]) / self.static_scale[:, None, None],
            target=(sample.target - location) / scale,
        )

    def complete_state(self, state: dict[str, Tensor], prefix: str) -> None:
        """Add the tensors that files of earlier versions lack to a `state` whose names begin with `prefix`."""
        state.setdefault(f"{prefix}known", torch.ones(self.known.shape))
        state.setdefault(f"{prefix}always", torch.zeros(self.always.shape))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        """Load a state, which may come from a file of an earlier version."""
        self.complete_state(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *arguments)
        self.complete = bool(self.known.all())

    @property
    def target_scaling(self) -> tuple[Tensor, Tensor]:
        """Location (T, H, W) and scale (T, 1, 1) of the targets on the own tile."""
        return self._domain.cut(self.location)[self._targets], self.scale[self._targets, None, None]

    def physical(self, distribution: Distribution) -> Distribution:
        """Return a distribution of normalised targets in physical units, with an exact lower bound.

        Rounding can change a bound of 0 to ±2e-10, and then a truth of 0 no longer lies on it. A lower bound that
        differs from the target's physical bound (from 0, if it has none) by rounding only is set to this bound.
        """
        location, scale = self.target_scaling
        physical = distribution.affine(location, scale)
        if isinstance(physical, Bounded | CensoredShiftedGamma):
            bound = torch.tensor(self._bounds).to(location)[:, None, None]
            error = 4 * torch.finfo(location.dtype).eps * (location.abs() + bound.abs())
            exact = torch.where((physical.lower - bound).abs() <= error, bound, physical.lower)
            return replace(physical, lower=exact)
        return physical


def fill_unknown(mean: Tensor, known: Tensor, area: Tensor) -> Tensor:
    """Return fields (C, H, W) with the mean of the row's known cells, or of the globe's, in all unknown cells.

    A channel without known cells becomes 0.
    """
    mean, weight = torch.where(known, mean, 0), known * area
    rows, globe = known.sum(2, keepdim=True), weight.sum((1, 2), keepdim=True)
    of_globe = (mean * weight).sum((1, 2), keepdim=True) / globe.clamp(min=1e-12)
    of_row = torch.where(rows > 0, mean.sum(2, keepdim=True) / rows.clamp(min=1), of_globe)
    return torch.where(known, mean, of_row)


def _positive(scale: Tensor) -> Tensor:
    """Return 1 for the scale 0 of a constant field, so that its departures of zero stay zero."""
    return torch.where(scale > 0, scale, 1)
