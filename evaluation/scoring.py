"""Scoring: every model on the same forecasts, which are read once, by one process or by the ranks of a mesh."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import reduce
from operator import add
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset

from data_pipeline.dataset import batches
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample, verifiable
from data_pipeline.task import Task
from evaluation.aggregation import Tally
from evaluation.scoreboard import ORACLE, Scoreboard
from evaluation.statistics import tie_breaker
from models.distribution import Distribution
from models.raw import Raw
from models.spatial.domain import Domain
from models.spatial.mesh import Mesh

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
    mesh: Mesh | None = None,
    sizes: Collection[int] = (),
) -> Scoreboard:
    """Return the scoreboard of all `models`, and of the `oracle`'s ensemble where it covers a forecast.

    A cell without analysis, or without the whole raw ensemble, is scored for no model. For each of `sizes`, all models
    are also scored on the first so many members, in the same cells.

    On a `mesh` all ranks must call this, with models and forecasts of their own tile and `regions` of the whole grid.
    Ranks of the data axis take different forecasts. What the first rank gets is the scoreboard of all; that of
    another knows only what this rank has seen.
    """
    mesh = mesh or Mesh.alone()
    task, count, domain = forecasts.task, len(forecasts), mesh.domain(forecasts.grid)
    leads = {lead: number for number, lead in enumerate(task.lead_times)}
    shape = (count, len(leads), len(task.targets), {name: field[domain.tile] for name, field in regions.items()})
    everyone = forecasts.members
    tallies = {
        size: {name: Tally(name, *shape, bins=size + 1, maps=size == everyone) for name in models}
        for size in sorted({*sizes, everyone})
    }
    times = torch.zeros(2, count, dtype=torch.int64)
    progress = Progress(count)
    for rows, batch in _share(forecasts, batch_size, mesh):
        times[:, rows] = torch.stack([batch.init_time, batch.lead_time])
        places = np.array([leads[int(lead)] for lead in batch.lead_time])
        truth, uniform = verifiable(batch, task.target_channels), _uniform(batch, seed, domain)
        for size, counted in tallies.items():
            some = batch._replace(ensemble=batch.ensemble[:, :size])
            for name, model in models.items():
                counted[name].add(rows, places, model(some), truth, uniform)
        if mesh.first:
            progress.show(int(rows[-1]) + 1)
    init_times, lead_times = (mesh.sum(times) // mesh.tiles).numpy()  # every tile of a forecast knows its times
    ceiling = None
    if oracle is not None:
        ceiling = Tally(ORACLE, *shape, bins=oracle.members + 1)
        rows_of = {key: row for row, key in enumerate(zip(init_times.tolist(), lead_times.tolist(), strict=True))}
        for _, batch in _share(oracle, batch_size, mesh):
            _add_oracle(ceiling, batch, oracle.task, rows_of, leads, seed, domain)
        ceiling = _merged(ceiling, mesh, domain)
    merged = {
        size: {name: _merged(tally, mesh, domain) for name, tally in counted.items()}
        for size, counted in tallies.items()
    }
    by_size = {size: merged[size] for size in sorted(sizes)}
    return Scoreboard(task, forecasts.grid, regions, init_times, lead_times, merged[everyone], ceiling, seed, by_size)


def _share(forecasts: Forecasts, batch_size: int, mesh: Mesh) -> Iterator[tuple[np.ndarray, Sample]]:
    """Yield the batches that this rank scores, of every so many-th forecast, with their numbers among all."""
    rows = np.arange(mesh.data_rank, len(forecasts), mesh.data)
    for number, batch in enumerate(batches(Subset(forecasts, rows.tolist()), batch_size)):  # type: ignore[arg-type]
        yield rows[number * batch_size :][:batch_size], batch


def _merged(tally: Tally, mesh: Mesh, domain: Domain) -> Tally:
    """Return on the first rank the tally of the whole grid and all forecasts, on others their own part of it."""
    parts = mesh.gather(tally)
    if parts is None:
        return tally
    return Tally.of_tiles([reduce(add, parts[tile :: mesh.tiles]) for tile in range(mesh.tiles)], domain)


def _add_oracle(
    tally: Tally,
    batch: Sample,
    task: Task,
    rows_of: Mapping[tuple[int, int], int],
    leads: Mapping[int, int],
    seed: int,
    domain: Domain,
) -> None:
    """Count the forecasts of a batch of the oracle that are among those that are scored."""
    keys = list(zip(batch.init_time.tolist(), batch.lead_time.tolist(), strict=True))
    shared = [k for k, key in enumerate(keys) if key in rows_of]
    if not shared:
        return
    batch = Sample(*(tensor[shared] for tensor in batch))
    rows = np.array([rows_of[keys[k]] for k in shared])
    places = np.array([leads[int(lead)] for lead in batch.lead_time])
    tally.add(
        rows, places, Raw(task, domain)(batch), verifiable(batch, task.target_channels), _uniform(batch, seed, domain)
    )


def _uniform(batch: Sample, seed: int, domain: Domain) -> Tensor:
    # Drawn for the whole grid, so that a cell has the same draw whichever tile it is in.
    shape = batch.target.shape[1], *domain.shape
    return domain.cut(tie_breaker(seed, batch.init_time, batch.lead_time, shape))


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
