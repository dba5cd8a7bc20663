"""Scoring of all models on the same forecasts, which are read once, by one process or by the ranks of a mesh."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
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
from evaluation.scores import default_diagrams, default_scores, statistics_of
from evaluation.scores.case import Case, is_ensemble, tie_breaker
from evaluation.scores.score import Diagram, Score, Settings
from evaluation.scores.threshold import Threshold, make_events, without_climatology
from models.coupling import member_values, written_members
from models.distribution import Distribution
from models.parallel.domain import Domain
from models.parallel.mesh import Mesh
from models.statistical.raw import Raw

Forecaster = Callable[[Sample], Distribution]
"""A function of a batch that returns a distribution over (B, T, H, W) in physical units."""


class Forecasts(Protocol):
    """The part of `data_pipeline.dataset.ForecastDataset` that scoring uses."""

    task: Task
    grid: Grid

    @property
    def members(self) -> int:
        """Number of ensemble members."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Sample: ...


@dataclass(frozen=True)
class ScoringOptions:
    """How the models are scored.

    `member_counts` are numbers of first members that are scored too. `written` are the models whose members, as
    `correct` writes them with these quantile `levels`, are scored beside their distributions. An `optional` model may
    give no number for some forecasts, which its comparisons leave out; it is left out itself if no forecast is left.
    Models are already on `device`, to which batches are moved. With `groups`, a number for each forecast, all forecasts
    of a batch are of one group. `thresholds` are those of each target; percentiles of climatology are left out without
    it. `extremeness` returns the extreme forecast index of the raw ensemble.
    """

    batch_size: int = 8
    seed: int = 0
    member_counts: Collection[int] = ()
    written: Collection[str] = ()
    levels: str = "hazen"
    optional: Collection[str] = ()
    device: torch.device | str = "cpu"
    groups: np.ndarray | None = None
    scores: Collection[Score] = field(default_factory=default_scores)
    diagrams: Collection[Diagram] = field(default_factory=default_diagrams)
    thresholds: tuple[tuple[Threshold, ...], ...] = ()
    extremeness: Callable[[Sample], Tensor] | None = None


@torch.no_grad()
def score_models(
    models: Mapping[str, Forecaster],
    forecasts: Forecasts,
    regions: Mapping[str, np.ndarray],
    oracle: Forecasts | None = None,
    options: ScoringOptions | None = None,
    mesh: Mesh | None = None,
) -> Scoreboard:
    """Return the scoreboard of all `models`, and of the `oracle`'s ensemble where it covers a forecast.

    Cells without analysis, or with a missing raw member, are scored for no model. All numbers of members are scored in
    the same cells.

    On a `mesh` all ranks must call this, with models and forecasts of their own tile and `regions` of the whole grid.
    Ranks of the data axis score different forecasts. The first rank gets the complete scoreboard; another rank gets
    only its own part.
    """
    mesh, options = mesh or Mesh.single(), options or ScoringOptions()
    task, count, domain = forecasts.task, len(forecasts), mesh.domain(forecasts.grid)
    leads = {lead: number for number, lead in enumerate(task.lead_times)}
    tile = {name: weights[domain.tile] for name, weights in regions.items()}
    everyone = forecasts.members

    normal = models.get("climatology")
    thresholds = options.thresholds if normal else without_climatology(options.thresholds)

    def empty(name: str, members: int, maps: bool = True, optional: bool = False) -> Tally:
        settings = Settings(task, members + 1)
        if name != ORACLE:
            settings = replace(
                settings, thresholds=thresholds, climatology=bool(normal), extremeness=bool(options.extremeness)
            )
        wanted: list[Score | Diagram] = [*options.scores, *options.diagrams]
        computed = [one for one in wanted if not one.missing(settings)]
        return Tally(name, count, settings, tile, statistics_of(*computed), maps, optional)

    tallies = {
        size: {name: empty(name, size, size == everyone, name in options.optional) for name in models}
        for size in sorted({*options.member_counts, everyone})
    }
    written = {name: empty(name, everyone, maps=False) for name in models if name in options.written}
    joint = any("energy" in tally.per_forecast for tally in written.values())
    times = torch.zeros(2, count, dtype=torch.int64)
    progress, done = ScoringProgress(count), 0
    for rows, batch in _share(forecasts, options.batch_size, mesh, options.groups):
        times[:, rows] = torch.stack([batch.init_time, batch.lead_time])
        uniform = _uniform(batch, options.seed, domain).to(options.device)
        places = np.array([leads[int(lead)] for lead in batch.lead_time])
        batch = to_device(batch, options.device)
        truth = verifiable(batch, task.target_channels)
        climate = normal(batch) if normal else None
        events = make_events(thresholds, climate, truth)
        extremeness = options.extremeness(batch) if options.extremeness else None
        for size, counted in tallies.items():
            some = batch._replace(ensemble=batch.ensemble[:, :size])
            for name, model in models.items():
                forecast = climate if model is normal and climate is not None else model(some)
                case = Case(forecast, truth, uniform, size + 1, True, events, climate, extremeness)
                counted[name].add(rows, places, case)
                if size == everyone and name in written:
                    # Scores of single values do not depend on the order of the members.
                    values = (
                        written_members(
                            forecast, batch, task, domain, quantile_levels=options.levels, seed=options.seed
                        )
                        if joint
                        else member_values(forecast, task, everyone, options.levels)
                    )
                    case = Case(values, truth, uniform, size + 1, is_ensemble(forecast), events, climate, extremeness)
                    written[name].add(rows, places, case)
        done += len(rows) * mesh.data
        if mesh.first:
            progress.show(min(done, count))
    init_times, lead_times = (mesh.sum(times) // mesh.tiles).numpy()  # every tile of a forecast adds its times
    ceiling = None
    if oracle is not None:
        ceiling = empty(ORACLE, oracle.members)
        rows_of = {key: row for row, key in enumerate(zip(init_times.tolist(), lead_times.tolist(), strict=True))}
        for _, batch in _share(oracle, options.batch_size, mesh):
            _add_oracle(ceiling, batch, oracle.task, rows_of, leads, options, domain)
        ceiling = _merged(ceiling, mesh, domain)
    merged = {
        size: {name: _merged(tally, mesh, domain) for name, tally in counted.items()}
        for size, counted in tallies.items()
    }
    optional = [name for name in models if name in options.optional]
    missing = {name: sum(counted[name].missing for counted in merged.values()) for name in optional}
    lost = {
        name: missing[name]
        for name in optional
        if missing[name] and any(counted[name].empty.any() for counted in merged.values())
    }
    merged = {size: {n: tally for n, tally in counted.items() if n not in lost} for size, counted in merged.items()}
    return Scoreboard(
        task, forecasts.grid, regions, init_times, lead_times, merged[everyone], ceiling, options.seed,
        by_member_count={size: merged[size] for size in sorted(options.member_counts)},
        written={name: _merged(tally, mesh, domain) for name, tally in written.items()},
        lost=lost, wanted=options.scores, diagrams=options.diagrams,
    )  # fmt: skip


def to_device(batch: Sample, device: torch.device | str) -> Sample:
    """Return a batch on `device`."""
    return Sample(*(tensor.to(device, non_blocking=True) for tensor in batch))


def _share(
    forecasts: Forecasts, batch_size: int, mesh: Mesh, groups: np.ndarray | None = None
) -> Iterator[tuple[np.ndarray, Sample]]:
    """Yield the batches that this rank scores, every `mesh.data`-th forecast, with their indices among all."""
    every = np.arange(mesh.data_rank, len(forecasts), mesh.data)
    labels = np.zeros(len(forecasts), int) if groups is None else groups
    for label in np.unique(labels[every]):
        rows = every[labels[every] == label]
        for number, batch in enumerate(batches(Subset(forecasts, rows.tolist()), batch_size)):  # type: ignore[arg-type]
            yield rows[number * batch_size :][:batch_size], batch


def _merged(tally: Tally, mesh: Mesh, domain: Domain) -> Tally:
    """Return the tally of the whole grid and all forecasts on the first rank, and their own part on the others."""
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
    options: ScoringOptions,
    domain: Domain,
) -> None:
    """Add the forecasts of a batch of the oracle that are also scored for the models."""
    keys = list(zip(batch.init_time.tolist(), batch.lead_time.tolist(), strict=True))
    shared = [k for k, key in enumerate(keys) if key in rows_of]
    if not shared:
        return
    batch = Sample(*(tensor[shared] for tensor in batch))
    rows = np.array([rows_of[keys[k]] for k in shared])
    places = np.array([leads[int(lead)] for lead in batch.lead_time])
    uniform = _uniform(batch, options.seed, domain).to(options.device)
    batch = to_device(batch, options.device)
    truth = verifiable(batch, task.target_channels)
    tally.add(rows, places, Case(Raw(task, domain)(batch), truth, uniform, tally.settings.bins))


def _uniform(batch: Sample, seed: int, domain: Domain) -> Tensor:
    # Drawn for the whole grid, so that the draw of a cell does not depend on the tiles.
    shape = batch.target.shape[1], *domain.shape
    return domain.cut(tie_breaker(seed, batch.init_time, batch.lead_time, shape))


class ScoringProgress:
    """Prints a line every few seconds."""

    def __init__(self, total: int, every: float = 5.0) -> None:
        self._total, self._every, self._began = total, every, time.monotonic()
        self._last = self._began

    def show(self, done: int) -> None:
        """Print the progress if the last line is old enough."""
        now = time.monotonic()
        if now - self._last >= self._every and done < self._total:
            self._last = now
            left = (now - self._began) / done * (self._total - done)
            print(f"scored {done} of {self._total} forecasts, about {left:.0f} s left", flush=True)
