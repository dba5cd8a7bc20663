"""Baseline: the mean and spread that the head of a network corrects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from data_pipeline.common.checks import construct
from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample, select_channels
from data_pipeline.task import Task
from models.distribution import LocationScale
from models.parallel.domain import Domain
from models.statistical.cases import FitReport, Passes, lead_index
from models.statistical.crossfit import CrossFitted, single_year_note, year_folds
from models.statistical.emos import EMOS
from models.statistical.predictors import SMALLEST_SPREAD, spread

YEAR_GROUPS = 4
"""Groups of training years; EMOS is fitted without each of them."""


def make_baseline(options: dict[str, Any] | None, task: Task, grid: Grid | Domain) -> Baseline:
    """Return the raw ensemble as baseline, or, given options of `EMOS`, the ensemble corrected by EMOS."""
    if options is not None and not isinstance(options, Mapping):
        raise InputError(f"model.baseline must be null or options of emos such as {{shared: partly}}, got {options!r}")
    return Baseline(task) if options is None else EMOSBaseline(task, grid, options)


class Baseline(nn.Module):
    """Mean and spread of the raw ensemble; base class of other baselines."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self._targets = list(task.target_channels)

    def forward(self, sample: Sample) -> tuple[Tensor, Tensor]:
        """Return mean and spread (B, T, H, W); the spread is never zero."""
        m, s = self._moments(sample)
        return m, torch.sqrt(s.square() + SMALLEST_SPREAD**2)

    def normalise(self, location: Tensor, scale: Tensor) -> None:
        """Set the units (x - location)/scale of samples, if they matter."""

    def fit(self, batches: Iterable[Sample]) -> None:
        """Fit the baseline to the training samples, if it has something to fit."""

    def _moments(self, sample: Sample) -> tuple[Tensor, Tensor]:
        members = select_channels(sample.ensemble, self._targets, 2)
        return members.mean(1), spread(members)


class EMOSBaseline(Baseline):
    """Mean and spread of EMOS, which is fitted before the network is trained.

    Use it when there are few training cases, or when climatology beats the raw ensemble: far from the truth, gradient
    descent takes many steps and fits noise as well. In training mode a sample gets the EMOS that was fitted without
    its group of years (`CrossFitted`). There are `YEAR_GROUPS` groups, because one fit per year takes too long.
    """

    def __init__(self, task: Task, grid: Grid | Domain, options: dict[str, Any]) -> None:
        super().__init__(task)
        self.emos = construct("EMOS", partial(EMOS, task, grid), dict(options))
        if self.emos.regression.has_shift:
            raise InputError(
                f"model.baseline has no family={self.emos.regression.family}: networks correct location and scale; set "
                "family=censored_logistic in model.baseline"
            )
        self.without = CrossFitted(Domain.of(grid), per_cell=self.emos.shared is not True)
        self.report = FitReport()
        self._task = task

    def normalise(self, location: Tensor, scale: Tensor) -> None:
        """Pass the units of samples to EMOS, which has a physical bound in them."""
        self.emos.normalise(location, scale)

    def fit(self, batches: Iterable[Sample]) -> None:
        """Fit EMOS to all samples, and without each group of years."""
        passes = Passes.of(batches)
        ends = year_folds(passes, YEAR_GROUPS)
        table = self.emos.fit(passes, ends)
        assert table is not None
        self.without.set(table.flatten(0, 1), ends)
        self.report = FitReport([note for note in [single_year_note(passes)] if note])

    def _moments(self, sample: Sample) -> tuple[Tensor, Tensor]:
        if self.training and self.without.fitted:
            place = self.without.fold(sample) * len(self._task.lead_times) + lead_index(sample.lead_time, self._task)
            corrected = self.emos.predict(sample, self.without.table, place)
        else:
            corrected = self.emos(sample)
        assert isinstance(corrected, LocationScale)
        return corrected.mu, corrected.sigma * corrected.standard.std
