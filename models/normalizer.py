"""Normalizer: converts samples to normalised units, and forecasts back to physical units."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from data_pipeline.cell_moments import OrderedMoments
from data_pipeline.common.checks import per_target
from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.protocols import ALL
from data_pipeline.sample import Sample, select_channels, verifiable
from data_pipeline.statistics.normalization import NormalizationData
from data_pipeline.task import Task
from models.distribution import Distribution, by_target, power_transformed, to_power
from models.parallel.domain import Domain
from models.parallel.exchange import assemble
from models.statistical.cases import FitReport

SMALLEST_POWER = 0.25
"""The fourth root is nearly a logarithm; scores of smaller powers would need more nodes of integration."""


class Normalizer(nn.Module):
    """Normalises each input: departure from the cell's mean in the training years, divided by the typical departure.

    The mean is a map, so that a network need not learn the gradient of 100 K between equator and pole. The scale is one
    number per input, so that small departures in quiet cells stay small. The truth has the mean and scale of its input,
    so the raw ensemble stays a forecast of it, and so have the means of groups of its members. Their spread has no
    location, and the scale of the members. Missing cells become zero, the mean. All numbers are fitted to the training
    years and are part of the corrector file.

    For targets with a power below 1, models see `to_power` of members and truth, for example the root of precipitation,
    and `physical` takes the inverse. `powers` has the power of each target, `bounds` their lower bounds, which the
    power leaves as they are.
    """

    location: Tensor
    scale: Tensor
    static_location: Tensor
    static_scale: Tensor
    known: Tensor
    """(T, H, W) 0 where no training sample has a value of the target, else 1."""
    always: Tensor
    """(C, H, W) 1 where every training sample has a value of all members, else 0."""
    _area: Tensor

    def __init__(
        self, task: Task, grid: Grid | Domain, power: float | Sequence[float] = 1.0,
        bounds: Sequence[float] | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.powers = per_target(power, len(task.targets))
        self._domain = Domain.of(grid)
        self._targets = list(task.target_channels)
        self.bounds = [target.bounds[0] or 0.0 for target in task.targets] if bounds is None else list(bounds)
        self._upper = [torch.inf if target.bounds[1] is None else target.bounds[1] for target in task.targets]
        self._group_means = [(t, k) for t, channels in enumerate(task.group_means) for k in channels]
        if task.system_channels:
            self._group_means += [*enumerate(task.system_channels[-1][0])]
        self._group_spreads = [(t, k) for _, spreads in task.system_channels for t, k in enumerate(spreads)]
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

    @classmethod
    def of_model(cls, spec: Mapping[str, Any], task: Task, grid: Grid | Domain) -> Normalizer:
        """Return the normaliser for the model that `spec`, complete with `with_laws`, describes: it takes its `power`.

        `power` and `lower` have one value for all targets, or a list. Raises `InputError` for an invalid power, and for
        a target with a power but without a lower bound, or with a bound that differs from `lower` of the model.
        """
        powers, lowers = (per_target(spec.get(name, default), len(task.targets)) for name, default in
                          (("power", 1.0), ("lower", None)))  # fmt: skip
        bounds = []
        for target, power, lower in zip(task.targets, powers, lowers, strict=True):
            if isinstance(power, bool) or not isinstance(power, int | float) or not SMALLEST_POWER <= power <= 1:
                raise InputError(f"model.power must be a number from {SMALLEST_POWER} to 1, got {power!r}")
            bound = target.bounds[0]
            if power != 1 and bound is None and lower is None:
                raise InputError(
                    f"model.power={power:g} takes a power of the distance from the lower bound, and {target} has no "
                    "known one; set model.power=1, or model.lower for a model that has this option"
                )
            if power != 1 and None not in (bound, lower) and bound != lower:
                raise InputError(
                    f"model.lower={lower:g} differs from {bound:g}, the lower bound of {target}; with model.power="
                    f"{power:g} both must be equal"
                )
            bounds.append((lower if power != 1 and bound is None else bound) or 0.0)
        return cls(task, grid, [float(power) for power in powers], bounds)

    def fit(self, batches: Iterable[Sample]) -> None:
        """Compute the statistics of all samples, in one pass.

        A cell without any value in the training years gets the mean of its row (of the globe, if the row has none).
        With a mean of 0 K, a value in a later forecast would be a huge departure. `report` counts these cells, and the
        cells without truth.
        """
        domain = self._domain
        moments, samples = OrderedMoments((len(self.location), *domain.own_shape)), 0
        verified = torch.zeros(len(self._targets), *domain.own_shape, dtype=torch.bool)
        for batch in map(self._take_powers, batches):
            for ensemble, mask in zip(batch.ensemble.cpu().numpy(), batch.mask.cpu().numpy(), strict=True):
                moments.add(ensemble, mask)
            verified |= verifiable(batch, self._targets).isfinite().any(0).to(verified.device)
            samples += len(batch.mask)
            static = batch.static[0]
        own = moments.total()
        count, mean, squares = (
            assemble(torch.from_numpy(part).double(), domain) for part in (own.count, own.mean, own.squares)
        )
        self.set_moments(count, mean, squares, assemble(verified.double(), domain) > 0, samples)
        self.set_static(assemble(static, domain))

    def set_moments(self, count: Tensor, mean: Tensor, squares: Tensor, verified: Tensor, samples: int) -> None:
        """Set the statistics of the inputs from the `CellMoments` (C, H, W) of `samples` forecasts on the whole grid.

        `verified` (T, H, W) is True where some forecast of a target has a truth.
        """
        known, area = count > 0, self._area.double()
        self.location.copy_(fill_unknown(mean, known, area))
        self.known.copy_(known[self._targets])
        self.complete = bool(self.known.all())
        unverified = known[self._targets] & ~verified
        self.report = FitReport(self._notes(known) + self._notes_on_truth(unverified))
        self.always.copy_(count == samples)
        # The location is rounded to single precision.
        squares = squares + count * (mean - self.location.double()).square()
        total, weight = (squares * area).sum((1, 2)), (count * area).sum((1, 2))
        self.scale.copy_(_positive(torch.sqrt(total / weight.clamp(min=1e-12))))
        for target, channel in self._group_means:
            for values in (self.location, self.scale):
                values[channel] = values[self._targets[target]]
        for target, channel in self._group_spreads:
            self.location[channel] = 0
            if self.powers[target] == 1:
                self.scale[channel] = self.scale[self._targets[target]]

    def set_normalization(self, found: NormalizationData, static: Tensor) -> None:
        """Set the statistics of inputs from a file of `deepweather prepare`; `static` (S, H, W) are static fields."""
        count, mean, squares, verified = map(torch.from_numpy, (found.count, found.mean, found.squares, found.verified))
        self.set_moments(count, mean, squares, verified, len(found.starts))
        self.set_static(static)

    def set_static(self, static: Tensor) -> None:
        """Set the statistics of the static fields (S, H, W) of the whole grid."""
        static = static.flatten(1)
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
            if missing and not sea_only:
                note = f"{name} has no value in {missing} of {cells} cells in all training samples"
                notes.append(note + "; there the correction is the raw ensemble" * (channel in self._targets))
        return notes

    def _notes_on_truth(self, unverified: Tensor) -> list[str]:
        """Return a note for each target that has forecasts but no truth in some cells, `unverified` (T, H, W)."""
        cells = unverified[0].numel()
        return [
            f"{self._names[channel][0]} has no truth in {missing} of {cells} cells in all training samples; there "
            "models of single cells give the raw ensemble, and others what they learnt elsewhere"
            for channel, of_target in zip(self._targets, unverified, strict=True)
            if (missing := int(of_target.sum()))
        ]

    def forward(self, sample: Sample, rows: slice = ALL) -> Sample:
        """Return a batch in normalised units; the batch may hold only some `rows` of this rank's tile."""
        sample = self._take_powers(sample)
        location, scale = self.target_scaling
        location = location[:, rows]
        ensemble = (sample.ensemble - self._domain.cut(self.location)[:, rows]) / self.scale[:, None, None]
        return sample._replace(
            ensemble=torch.where(sample.mask[:, None], ensemble, 0),
            static=(sample.static - self.static_location[:, None, None]) / self.static_scale[:, None, None],
            target=(sample.target - location) / scale,
        )

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        """Load a state."""
        super()._load_from_state_dict(state_dict, prefix, *arguments)
        self.complete = bool(self.known.all())

    @property
    def target_scaling(self) -> tuple[Tensor, Tensor]:
        """Location (T, H, W) and scale (T, 1, 1) of the targets on this rank's tile."""
        return (
            select_channels(self._domain.cut(self.location), self._targets, 0),
            select_channels(self.scale, self._targets, 0)[:, None, None],
        )

    def normalise_targets(self, values: Tensor) -> Tensor:
        """Return physical values of the targets, (..., T, h, w) on this rank's tile, in the units that models see."""
        location, scale = self.target_scaling
        return (self._power(values) - location) / scale

    def _take_powers(self, sample: Sample) -> Sample:
        """Return a batch in physical units with powers of the targets' members and truth, and of means of groups."""
        if set(self.powers) == {1}:
            return sample
        ensemble = sample.ensemble.clone()
        powers = self._power(select_channels(ensemble, self._targets, 2))
        for target, channel in enumerate(self._targets):
            ensemble[:, :, channel] = powers[:, :, target]
        for target, channel in self._group_means:
            means = self._power(ensemble[:, :, channel, None].expand(-1, -1, len(self._targets), -1, -1))
            ensemble[:, :, channel] = means[:, :, target]
        return sample._replace(ensemble=ensemble, target=self._power(sample.target))

    def _power(self, values: Tensor) -> Tensor:
        """Return the powers of physical values of the targets, (..., T, h, w)."""
        lower, found = _bounds(self.bounds, values), {1: values}
        for power in set(self.powers) - {1}:
            found[power] = to_power(values, power, lower)
        if len(set(self.powers)) == 1:
            return found[self.powers[0]]
        return torch.stack([found[power].select(-3, t) for t, power in enumerate(self.powers)], -3)

    def physical(self, distribution: Distribution) -> Distribution:
        """Return a distribution of normalised targets in physical units, with an exact lower bound.

        Rounding can change a bound of 0 to ±2e-10, and then a truth of 0 no longer lies on it. A lower bound that
        differs from the target's physical bound (from 0, if it has none) by rounding only is set to this bound, and so
        are past values at the upper or lower bound.
        """
        location, scale = self.target_scaling
        lower, upper = _bounds(self.bounds, location), _bounds(self._upper, location)

        def exact(values: Tensor) -> Tensor:
            return _rounded_to(_rounded_to(values, lower, location), upper, location)

        physical = distribution.affine(location, scale).with_bounds(exact)
        return by_target(
            self.powers, lambda power: physical if power == 1 else power_transformed(physical, power, lower)
        )


def _bounds(values: Sequence[float], like: Tensor) -> Tensor:
    """Return a bound of each target, (T, 1, 1)."""
    # Without `non_blocking`, the host would wait until a GPU has done all steps before the copy.
    return torch.tensor(values).to(like, non_blocking=True)[:, None, None]


def _rounded_to(values: Tensor, bound: Tensor, location: Tensor) -> Tensor:
    """Return `bound` where values differ from it by rounding errors of numbers like `location` only."""
    error = 4 * torch.finfo(location.dtype).eps * (location.abs() + bound.abs())
    return torch.where(bound.isfinite() & ((values - bound).abs() <= error), bound, values)


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
