"""What a network starts from: the mean and spread to which a head applies its answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from data_pipeline.common.checks import construct
from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.parallel.domain import Domain
from models.statistical.cases import FitReport, Passes, lead_index
from models.statistical.crossfit import CrossFitted, single_year_note, year_folds
from models.statistical.emos import EMOS
from models.statistical.predictors import SMALLEST_SPREAD, spread

FOLDS = 4
"""Groups of years that are left out in turn."""


def start_for(options: dict[str, Any] | None, task: Task, grid: Grid | Domain) -> Start:
    """Return the raw ensemble as a start, or, where there are options of `EMOS`, what it makes of the ensemble."""
    if options is not None and not isinstance(options, Mapping):
        raise InputError(f"model.baseline must be null or options of emos such as {{shared: partly}}, got {options!r}")
    return Start(task) if options is None else FittedStart(task, grid, options)


class Start(nn.Module):
    """Mean and spread of the raw ensemble."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self._targets = list(task.target_channels)

    def forward(self, sample: Sample) -> tuple[Tensor, Tensor]:
        """Return mean and spread (B, T, H, W); the spread is never zero."""
        m, s = self._moments(sample)
        return m, torch.sqrt(s.square() + SMALLEST_SPREAD**2)

    def normalise(self, location: Tensor, scale: Tensor) -> None:
        """Learn the units (x - location)/scale in which samples will come, if they matter."""

    def fit(self, batches: Iterable[Sample]) -> None:
        """Learn from the training samples what can be learnt at once."""

    def _moments(self, sample: Sample) -> tuple[Tensor, Tensor]:
        members = sample.ensemble[:, :, self._targets]
        return members.mean(1), spread(members)


class FittedStart(Start):
    """Location and spread of EMOS, which is fitted before the network learns.

    For few cases, or a raw ensemble that is worse than climatology: what is far from the truth is a long way to
    descend, on which a network learns the noise as well. In training mode a sample gets the EMOS that was fitted
    without its own years, one of `FOLDS` groups of years (`CrossFitted`): one fit for each year is too dear.
    """

    def __init__(self, task: Task, grid: Grid | Domain, options: dict[str, Any]) -> None:
        super().__init__(task)
        self.emos = construct("EMOS", partial(EMOS, task, grid), dict(options))
        self.without = CrossFitted(Domain.of(grid), per_cell=self.emos.shared is not True)
        self.report = FitReport()
        self._task = task

    def normalise(self, location: Tensor, scale: Tensor) -> None:
        """Tell EMOS the units of its bound."""
        self.emos.normalise(location, scale)

    def fit(self, batches: Iterable[Sample]) -> None:
        """Fit EMOS to all samples, and to all but those of each group of years."""
        passes = Passes.of(batches)
        ends = year_folds(passes, FOLDS)
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
        return corrected.mu, corrected.sigma * corrected.standard.std
