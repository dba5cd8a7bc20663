"""Scoring: every model on the same forecasts, which are read once."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from data_pipeline.dataset import batches
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from evaluation.aggregation import Tally
from evaluation.scoreboard import ORACLE, Scoreboard
from evaluation.statistics import tie_breaker
from models.distribution import Distribution
from models.raw import Raw

Model = Callable[[Sample], Distribution]
"""Takes a batch, returns a distribution over (B, T, H, W) in physical units."""


class Forecasts(Protocol):
    """What is needed of `data_pipeline.dataset.ForecastDataset`."""

    task: Task
    grid: Grid

    @property
    def members(self) -> int:
        """Number of ensemble members."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Sample: ...


@torch.no_grad()
def score_models(
    models: Mapping[str, Model],
    forecasts: Forecasts,
    regions: Mapping[str, np.ndarray],
    oracle: Forecasts | None = None,
    batch_size: int = 8,
    seed: int = 0,
) -> Scoreboard:
    """Return the scoreboard of all `models`, and of the `oracle`'s ensemble where it covers a forecast.

    A cell without analysis, or without the whole raw ensemble, is scored for no model.
    """
    task, count = forecasts.task, len(forecasts)
    leads = {lead: number for number, lead in enumerate(task.lead_times)}
    shape = (count, len(leads), len(task.targets), regions)
    tallies = {name: Tally(name, *shape, bins=forecasts.members + 1) for name in models}
    init_times, lead_times = np.zeros(count, np.int64), np.zeros(count, np.int64)
    progress, done = Progress(count), 0
    for batch in batches(forecasts, batch_size):  # type: ignore[arg-type]
        rows = np.arange(done, done + len(batch.target))
        init_times[rows], lead_times[rows] = batch.init_time.numpy(), batch.lead_time.numpy()
        places = np.array([leads[int(lead)] for lead in batch.lead_time])
        truth, uniform = known_truth(batch, task), _uniform(batch, seed)
        for name, model in models.items():
            tallies[name].add(rows, places, model(batch), truth, uniform)
        done += len(rows)
        progress.show(done)
    ceiling = None
    if oracle is not None:
        ceiling = Tally(ORACLE, *shape, bins=oracle.members + 1)
        rows_of = {key: row for row, key in enumerate(zip(init_times.tolist(), lead_times.tolist(), strict=True))}
        _add_oracle(ceiling, oracle, rows_of, leads, batch_size, seed)
    return Scoreboard(task, forecasts.grid, regions, init_times, lead_times, tallies, ceiling, seed)


def known_truth(batch: Sample, task: Task) -> Tensor:
    """Return the truth (B, T, H, W), NaN also where a member of the raw ensemble is missing."""
    return batch.target.masked_fill(~batch.mask[:, list(task.target_channels)], torch.nan)


def _add_oracle(
    tally: Tally,
    oracle: Forecasts,
    rows_of: Mapping[tuple[int, int], int],
    leads: Mapping[int, int],
    batch_size: int,
    seed: int,
) -> None:
    model = Raw(oracle.task, oracle.grid)
    for batch in batches(oracle, batch_size):  # type: ignore[arg-type]
        keys = list(zip(batch.init_time.tolist(), batch.lead_time.tolist(), strict=True))
        shared = [k for k, key in enumerate(keys) if key in rows_of]
        if not shared:
            continue
        batch = Sample(*(tensor[shared] for tensor in batch))
        rows = np.array([rows_of[keys[k]] for k in shared])
        places = np.array([leads[int(lead)] for lead in batch.lead_time])
        tally.add(rows, places, model(batch), known_truth(batch, oracle.task), _uniform(batch, seed))


def _uniform(batch: Sample, seed: int) -> Tensor:
    return tie_breaker(seed, batch.init_time, batch.lead_time, tuple(batch.target.shape[1:]))


class Progress:
    """A line every few seconds, plain enough for a log."""

    def __init__(self, total: int, every: float = 5.0) -> None:
        self._total, self._every, self._began = total, every, time.monotonic()
        self._last = self._began

    def show(self, done: int) -> None:
        """Say how far it is, if it is time for that."""
        now = time.monotonic()
        if now - self._last >= self._every and done < self._total:
            self._last = now
            left = (now - self._began) / done * (self._total - done)
            print(f"scored {done} of {self._total} forecasts, about {left:.0f} s left", flush=True)
