"""Persistence as a reference: the analysis at the start, with the spread of its errors on the training dates.

A single number would have the absolute error as its CRPS, and lose to every forecast with a spread. So the forecast is
a normal distribution around the analysis at the start. Its standard deviation is the root of the mean squared
difference between the analyses at start and valid time, for each cell and lead time, over the training dates.
Probability below a physical bound, such as 0 mm of rain, is moved to the bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from data_pipeline.common.errors import InputError
from data_pipeline.common.progress import watched
from data_pipeline.dates import Dates
from data_pipeline.protocols import DataSource, Fields
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.distribution import CensoredNormal, Distribution, Normal, by_target
from models.parallel.domain import Domain

FEWEST_PAIRS = 20
"""Pairs of analyses that a cell needs, as many as for climatology."""


@dataclass(frozen=True)
class Persistence:
    """Forecasts from the analysis at the start; `spreads` has a field (L, T, h, w) for each of the `folds`."""

    analyses: Fields
    task: Task
    domain: Domain
    folds: Sequence[Dates]
    spreads: Sequence[Tensor]
    pairs: int
    """The number of pairs of analyses in the lead time and fold that have the fewest pairs."""

    @classmethod
    def fit(
        cls,
        source: Callable[[Dates], DataSource],
        task: Task,
        scored: Dates,
        training: Sequence[tuple[Dates, Dates]],
        domain: Domain,
    ) -> Persistence:
        """Return persistence for the `scored` dates, with the spread of its errors on the training dates of each fold.

        Both analyses of a pair are on training dates. Raises `InputError` if there are too few pairs.
        """
        spreads, pairs = [], []
        needed = replace(task.only_targets(), analysis=task.targets)
        for dates in (*(dates for dates, _ in training), scored):
            source(dates).check_available(needed, dates, True)
        for dates, _ in training:
            analyses = source(dates).analysis_fields(task.targets)
            starts = source(dates).ensemble_fields(task.targets, task.lead_times).init_times.astype("datetime64[s]")
            total, count = torch.zeros(
                2, len(task.lead_times), len(task.targets), *domain.own_shape, dtype=torch.float64
            )
            for number, lead in enumerate(task.lead_times):
                valid = starts + np.timedelta64(lead, "h")
                usable = dates.contains(starts) & dates.contains(valid)
                before, after = (positions(analyses, times[usable]) for times in (starts, valid))
                known = (before >= 0) & (after >= 0)
                pairs.append(int(known.sum()))
                pairs_of_lead = zip(before[known].tolist(), after[known].tolist(), strict=True)
                for first, last in watched(pairs_of_lead, f"fit of persistence at {lead} h: pair", pairs[-1]):
                    squared = (read(analyses, last, domain) - read(analyses, first, domain)).double().square()
                    total[number] += squared.nan_to_num(0)
                    count[number] += squared.isfinite()
                if pairs[-1] < FEWEST_PAIRS:
                    raise InputError(
                        f"{pairs[-1]} training forecasts of {lead} h have an analysis at start and valid time, and "
                        f"{FEWEST_PAIRS} are needed"
                    )
            spreads.append(torch.where(count >= FEWEST_PAIRS, total / count, torch.nan).sqrt().float())
        folds = [fold for _, fold in training]
        return cls(source(scored).analysis_fields(task.targets), task, domain, folds, spreads, min(pairs))

    def __call__(self, batch: Sample) -> Distribution:
        """Return the distribution over (B, T, H, W); NaN without an analysis at the start."""
        starts = batch.init_time.cpu().numpy().astype("datetime64[s]")
        valid = starts + (3600 * batch.lead_time).cpu().numpy().astype("timedelta64[s]")
        place = [self.task.lead_times.index(int(lead)) for lead in batch.lead_time]
        fold = np.argmax([dates.contains(valid) for dates in self.folds], axis=0)
        mean = torch.full(tuple(batch.target.shape), torch.nan)
        for row, position in enumerate(positions(self.analyses, starts).tolist()):
            if position >= 0:
                mean[row] = read(self.analyses, position, self.domain)
        spread = torch.stack([self.spreads[k][lead] for k, lead in zip(fold, place, strict=True)])
        mean, spread = mean.to(batch.target.device), spread.to(batch.target.device)
        bounds = [target.bounds[0] if target.near_bound else -np.inf for target in self.task.targets]
        lower = torch.tensor(bounds, dtype=mean.dtype, device=mean.device)[:, None, None]
        bounded = lower.isfinite()
        if not bounded.any():
            return Normal(mean, spread)
        censored = CensoredNormal(mean, spread, lower.where(bounded, 0).expand_as(mean))
        return by_target(bounded.flatten().tolist(), lambda near: censored if near else Normal(mean, spread))


def positions(analyses: Fields, times: np.ndarray) -> np.ndarray:
    """Return the position of the analysis at each time (datetime64), -1 where there is none."""
    there = analyses.init_times.astype("datetime64[s]")
    found = np.searchsorted(there, times)
    known = there[found.clip(max=len(there) - 1)] == times
    return np.where(known, found, -1)


def read(analyses: Fields, position: int, domain: Domain) -> Tensor:
    """Return the analysis (T, h, w) at a position, on the own tile."""
    field = np.empty((1, len(analyses.variables), *domain.own_shape), np.float32)
    analyses.read(analyses.cells[position, 0], field, domain.tile)
    return torch.from_numpy(field[0])
