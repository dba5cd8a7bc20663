"""Weights of the parts of an average, for each lead time: fitted, equal or of one part, as left-out cases decide.

Stacking (Breiman 1996, doi:10.1007/BF00117832) with the CRPS as loss. Weights are judged on cases that their fit has
not seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from data_pipeline.common.errors import InputError
from data_pipeline.common.progress import Progress
from data_pipeline.dataset import ForecastDataset
from data_pipeline.sample import Sample, forecast_times, verifiable
from data_pipeline.task import Task
from models.corrector import Corrector, counted, in_batches
from models.device import copy_batch
from models.distribution import Distribution, average, map_fields

VALUES = 2**14
"""Approximate number of cells of all forecasts of a lead time that a fit of weights uses."""


@dataclass(frozen=True)
class Cases:
    """Forecasts of one target and lead time by all parts, with `truth` (N,), areas (N,) and folds (N,)."""

    parts: tuple[Distribution, ...]
    truth: Tensor
    area: Tensor
    fold: Tensor

    @classmethod
    def joined(cls, cases: Sequence[Cases]) -> Cases:
        """Return all cases as one."""
        parts = zip(*(one.parts for one in cases), strict=True)
        return cls(
            tuple(map_fields(lambda *values: torch.cat(values, -1), *part) for part in parts),
            *(torch.cat([getattr(one, name) for one in cases]) for name in ("truth", "area", "fold")),
        )

    def where(self, chosen: Tensor) -> Cases:
        """Return the cases at the True values of a mask (N,)."""
        parts = tuple(map_fields(lambda values: values[..., chosen], part) for part in self.parts)
        return Cases(parts, self.truth[chosen], self.area[chosen], self.fold[chosen])

    def scores(self, weights: Tensor) -> Tensor:
        """Return the CRPS (N,) of the average with `weights` (K,) or (K, N); of several members the fair CRPS."""

        def crps(part: Distribution) -> Tensor:
            members = part.as_members
            return part.crps(self.truth, fair=members is not None and len(members) > 1)

        return average(self.parts, weights).scored(crps)

    def mean(self, scores: Tensor) -> Tensor:
        """Return the area-weighted mean of `scores` (N,)."""
        return (scores * self.area).sum() / self.area.sum()


@dataclass(frozen=True)
class Weighing:
    """The weights that the average takes at one lead time, and the choices that were tried.

    `tried` has the CRPS of each choice on left-out cases: `fitted` to this lead time, `all leads`, `equal` weights, and
    each part alone, by its number.
    """

    weights: tuple[float, ...]
    choice: str
    tried: dict[str, float]

    @property
    def crps(self) -> float:
        """CRPS of the choice on left-out cases."""
        return self.tried[self.choice]


FITTED, ALL_LEADS, EQUAL = "fitted", "all leads", "equal"


def weigh(leads: Sequence[Cases]) -> list[Weighing]:
    """Return the weights at each lead time: the choice with the lowest CRPS on left-out cases.

    For fitted weights, the cases of each fold are scored with weights that were fitted to the other folds. Raises
    `InputError` if there are fewer than two folds, or if a forecast is not finite.
    """
    pooled = Cases.joined(leads)
    count, folds = len(pooled.parts), pooled.fold.unique().tolist()
    if len(folds) < 2:
        raise InputError("weights need two start dates or more, to be tested on other dates")
    singles = dict(zip(map(str, range(count)), torch.eye(count, dtype=torch.float64), strict=True))
    fixed = {EQUAL: torch.full((count,), 1 / count, dtype=torch.float64)} | singles
    across = _fits(pooled, folds) if len(leads) > 1 else None
    found = []
    for cases in leads:
        scores = {name: cases.scores(weights) for name, weights in fixed.items()}
        if not all(values.isfinite().all() for values in scores.values()):
            raise InputError("a forecast of the parts is not finite; score each corrector with evaluate")
        candidates = {FITTED: _fits(cases, folds)} | ({} if across is None else {ALL_LEADS: across})
        for name, fits in candidates.items():
            scores[name] = cases.scores(torch.stack([fits[k] for k in cases.fold.tolist()], 1))
        tried = {name: float(cases.mean(values)) for name, values in scores.items()}
        choice = min(tried, key=lambda name: tried[name])
        weights = fixed[choice] if choice in fixed else candidates[choice][None]
        found.append(Weighing(tuple(weights.tolist()), choice, tried))
    return found


def _fits(cases: Cases, folds: Sequence[int]) -> dict[int | None, Tensor]:
    """Return the best weights for the cases outside each fold, and under the key None for all cases."""
    return {k: _best_weights(cases if k is None else cases.where(cases.fold != k)) for k in (*folds, None)}


def _best_weights(cases: Cases) -> Tensor:
    """Return the weights (K,) with the lowest CRPS, not negative and with the sum 1.

    The CRPS is convex in the quantile function. This function is linear in the weights for the distributions that
    `models.distribution.average` names, so there is one minimum.
    """
    scale = float(cases.mean(cases.scores(torch.full((len(cases.parts),), 1 / len(cases.parts), dtype=torch.float64))))

    def loss(values: np.ndarray) -> tuple[float, np.ndarray]:
        logits = torch.tensor(values, requires_grad=True)
        with torch.enable_grad():
            crps = cases.mean(cases.scores(logits.softmax(0))) / scale  # tolerances do not depend on the units
        (slope,) = torch.autograd.grad(crps, logits)
        if not slope.isfinite().all():
            raise InputError("the CRPS has no finite gradient by the weights; leave out weights")
        return crps.item(), slope.numpy()

    logits = np.zeros(len(cases.parts))
    if scale > 0:
        # Not torch.optim, which imports torch's compiler: 1.2 s for a fit of milliseconds.
        logits = minimize(loss, logits, jac=True, method="L-BFGS-B", options={"maxiter": 50, "ftol": 1e-9}).x
    weights = torch.tensor(logits).softmax(0)
    weights = torch.where(weights < SMALLEST_WEIGHT, 0, weights)
    return weights / weights.sum()


SMALLEST_WEIGHT = 0.05
"""A smaller weight counts as 0, so that its part is not computed for nothing."""


@torch.no_grad()
def validation_cases(
    correctors: Sequence[Corrector], dataset: ForecastDataset, device: torch.device | str = "cpu"
) -> list[list[Cases]]:
    """Return the cases of each target and lead time, from all forecasts and as many cells of each as `VALUES` allows.

    Cells without analysis, or with a missing raw member, are left out. The first half of the start dates is one fold,
    the second half the other. The correctors are on `device`, the cases in the memory of the CPU.
    """
    task, starts = dataset.task, forecast_times(dataset)[0].unique()
    middle = starts[len(starts) // 2] if len(starts) > 1 else starts[0]
    generator = torch.Generator().manual_seed(0)
    found: list[list[list[Cases]]] = [[[] for _ in task.lead_times] for _ in task.targets]
    area = torch.from_numpy(dataset.grid.weights).reshape(-1, 1).expand(dataset.grid.shape).flatten()
    count = max(VALUES // max(len(starts), 1), 1)
    with Progress("forecasts of the validation years: forecast", len(dataset)) as progress:
        for batch in counted(in_batches(dataset, slice(None), 8), progress):
            there = copy_batch(batch, device)
            forecasts = [corrector(there) for corrector in correctors]
            collect_cases(found, forecasts, batch, task, (batch.init_time >= middle).long(), area, count, generator)
    return [[Cases.joined(cases) for cases in of_target] for of_target in found]


def collect_cases(
    found: list[list[list[Cases]]], forecasts: Sequence[Distribution], batch: Sample, task: Task, fold: Tensor,
    area: Tensor, count: int, generator: torch.Generator,
) -> None:  # fmt: skip
    """Add the cases of a batch to `found[target][lead]`: at most `count` cells of each forecast, drawn at random.

    `fold` is (B,), `area` (H x W,); forecasts of a lead time without any truth add nothing.
    """
    truth = verifiable(batch, task.target_channels)
    for target, of_target in enumerate(found):
        known = truth[:, target].isfinite().flatten(1)
        order = torch.rand(known.shape, generator=generator).masked_fill(~known, 2).argsort(1)[:, :count]
        chosen = torch.zeros_like(known).scatter(1, order, True) & known
        for lead, hours in enumerate(task.lead_times):
            own = chosen & (batch.lead_time == hours)[:, None]
            if own.any():
                parts = tuple(_at(forecast, target, own, truth.shape) for forecast in forecasts)
                folds = fold[:, None].expand(own.shape)[own]
                of_target[lead].append(
                    Cases(parts, truth[:, target].flatten(1)[own].double(), area.expand(own.shape)[own], folds)
                )


def _at(forecast: Distribution, target: int, chosen: Tensor, shape: torch.Size) -> Distribution:
    """Return the distributions (N,) of one target at the True values of `chosen` (B, H x W), on the CPU."""

    def select(values: Tensor) -> Tensor:
        whole = values.broadcast_to((*values.shape[: max(values.dim() - 4, 0)], *shape))
        return whole[..., target, :, :].flatten(-2).cpu()[..., chosen]

    return map_fields(select, forecast.of_target(target))
