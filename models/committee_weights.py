"""Weights of a committee's correctors, fitted on validation forecasts, and kept only where they beat equal weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from data_pipeline.common.errors import InputError
from data_pipeline.common.progress import Progress
from data_pipeline.dataset import ForecastDataset
from data_pipeline.sample import verifiable
from models.corrector import Corrector, counted, in_batches
from models.device import copy_batch
from models.distribution import Distribution, average, map_fields

CELLS = 4096
"""Number of cells of each forecast, drawn at random, that the fit uses."""
VALUES = 4_000_000
"""Approximate number of cells of all forecasts together that the fit uses."""


@dataclass(frozen=True)
class Cases:
    """Forecasts of one target by all correctors, with `truth` (N,), areas (N,) and start times (N,)."""

    parts: tuple[Distribution, ...]
    truth: Tensor
    area: Tensor
    start: Tensor

    def where(self, chosen: Tensor) -> Cases:
        """Return the cases at the True values of a mask (N,)."""
        parts = tuple(map_fields(lambda values: values[..., chosen], part) for part in self.parts)
        return Cases(parts, self.truth[chosen], self.area[chosen], self.start[chosen])

    def crps(self, weights: Tensor) -> Tensor:
        """Return the area-weighted mean CRPS of the average with `weights` (K,)."""
        crps = average(self.parts, weights).crps(self.truth)
        return (crps * self.area).sum() / self.area.sum()


@dataclass(frozen=True)
class TargetWeights:
    """The weights of one target, fitted on all validation forecasts.

    `equal_crps` is the CRPS with equal weights. `cross_crps` is the CRPS of each half of the start dates with weights
    fitted on the other half: an estimate of the score of fitted weights on new dates.
    """

    fitted: tuple[float, ...]
    equal_crps: float
    cross_crps: float

    @property
    def better(self) -> bool:
        """Whether fitted weights beat equal weights on dates that their fit has not seen."""
        return self.cross_crps < self.equal_crps

    @property
    def used(self) -> tuple[float, ...]:
        """The weights that the committee takes: the fitted ones if they are better, otherwise equal ones."""
        return self.fitted if self.better else (1 / len(self.fitted),) * len(self.fitted)


def fit_target_weights(cases: Cases) -> TargetWeights:
    """Return the weights with the lowest CRPS, and their CRPS on dates that the fit has not seen.

    The first half of the start dates is scored with weights of the second half, and the second half with weights of the
    first. Raises `InputError` if there are fewer than two start dates.
    """
    starts = cases.start.unique()
    if len(starts) < 2:
        raise InputError(
            "weights=validation needs two start dates or more in the validation years, to test weights on other dates, "
            f"found {len(starts)}; leave out weights"
        )
    equal = torch.full((len(cases.parts),), 1 / len(cases.parts), dtype=torch.float64)
    equal_crps = float(cases.crps(equal))
    if not math.isfinite(equal_crps):
        raise InputError("weights=validation: a forecast of the correctors is not finite; score them with evaluate")
    early = cases.start < starts[len(starts) // 2]
    halves = cases.where(early), cases.where(~early)
    crosses = [one.crps(_best_weights(other)) for one, other in (halves, halves[::-1])]
    sizes = [half.area.sum() for half in halves]
    cross = sum(cross * size for cross, size in zip(crosses, sizes, strict=True)) / sum(sizes)
    return TargetWeights(tuple(_best_weights(cases).tolist()), equal_crps, float(cross))


def _best_weights(cases: Cases) -> Tensor:
    """Return the weights (K,) with the lowest CRPS, not negative and with the sum 1.

    The CRPS is convex in the quantile function. This function is linear in the weights for the distributions that
    `models.distribution.average` names, so there is one minimum.
    """
    logits = torch.zeros(len(cases.parts), dtype=torch.float64, requires_grad=True)
    with torch.no_grad():
        scale = cases.crps(logits.softmax(0))  # so that tolerances do not depend on the units
    optimizer = torch.optim.LBFGS(
        [logits], max_iter=100, tolerance_grad=1e-8, tolerance_change=1e-10, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        crps = cases.crps(logits.softmax(0)) / scale
        crps.backward()
        return crps

    with torch.enable_grad():
        optimizer.step(loss)
    weights = logits.detach().softmax(0)
    if not weights.isfinite().all():
        raise InputError("weights=validation: the CRPS has no finite gradient by the weights; leave out weights")
    return weights


@torch.no_grad()
def validation_cases(
    correctors: Sequence[Corrector], dataset: ForecastDataset, device: torch.device | str = "cpu"
) -> list[Cases]:
    """Return the cases of each target, from all forecasts and as many cells of each as `CELLS` and `VALUES` allow.

    Cells without analysis, or with a missing raw member, are left out. The correctors are on `device`, the cases in the
    memory of the CPU.
    """
    task, count = dataset.task, min(CELLS, max(VALUES // max(len(dataset), 1), 1))
    area = torch.from_numpy(dataset.grid.weights).reshape(-1, 1).expand(dataset.grid.shape).flatten()
    generator = torch.Generator().manual_seed(0)
    found: list[list[Cases]] = [[] for _ in task.targets]
    with Progress("forecasts of the validation years: forecast", len(dataset)) as progress:
        for batch in counted(in_batches(dataset, slice(None), 8), progress):
            there, truth = copy_batch(batch, device), verifiable(batch, task.target_channels)
            forecasts = [corrector(there) for corrector in correctors]
            for target, cases in enumerate(found):
                known = truth[:, target].isfinite().flatten(1)
                order = torch.rand(known.shape, generator=generator).masked_fill(~known, 2).argsort(1)[:, :count]
                chosen = torch.zeros_like(known).scatter(1, order, True) & known
                start = batch.init_time[:, None].expand(known.shape)[chosen]
                parts = tuple(_at(forecast, target, chosen, truth.shape) for forecast in forecasts)
                cases.append(
                    Cases(parts, truth[:, target].flatten(1)[chosen].double(), area.expand(known.shape)[chosen], start)
                )
    return [_joined(cases) for cases in found]


def _at(forecast: Distribution, target: int, chosen: Tensor, shape: torch.Size) -> Distribution:
    """Return the distributions (N,) of one target at the True values of `chosen` (B, H x W), on the CPU."""

    def select(values: Tensor) -> Tensor:
        whole = values.broadcast_to((*values.shape[: max(values.dim() - 4, 0)], *shape))
        return whole[..., target, :, :].flatten(-2).cpu()[..., chosen]

    return map_fields(select, forecast)


def _joined(cases: Sequence[Cases]) -> Cases:
    """Return all cases as one."""
    parts = zip(*(one.parts for one in cases), strict=True)
    return Cases(
        tuple(map_fields(lambda *values: torch.cat(values, -1), *part) for part in parts),
        torch.cat([one.truth for one in cases]),
        torch.cat([one.area for one in cases]),
        torch.cat([one.start for one in cases]),
    )
