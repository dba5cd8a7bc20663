"""Scoring of all models on the same forecasts, which are read once, by one process or by the ranks of a mesh."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from concurrent.futures import Executor, as_completed
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from data_pipeline.cluster import Cluster, Threads
from data_pipeline.common.errors import InputError
from data_pipeline.common.messages import say
from data_pipeline.common.progress import Progress, watched
from data_pipeline.common.threads import BUDGET, processors
from data_pipeline.grid import Grid
from data_pipeline.protocols import Fields
from data_pipeline.sample import Sample, forecast_times, verifiable
from data_pipeline.statistics.efi import traces
from data_pipeline.task import Task
from data_pipeline.variables.thresholds import Threshold, without_climatology
from evaluation.kernels.region_sums import RegionSums
from evaluation.scores import default_diagrams, default_scores, statistics_of
from evaluation.scores.case import Case, is_ensemble, tie_breaker
from evaluation.scores.score import Diagram, Score, Settings
from evaluation.scores.threshold import make_events
from evaluation.scoring.aggregation import Tally
from evaluation.scoring.forecast_blocks import block_size, one_ahead, read_blocks, whole_starts
from evaluation.scoring.partial_scores import PartialScores
from evaluation.scoring.scoreboard import ORACLE, Scoreboard
from evaluation.scoring.tallies import Tallies
from models.device import copy_batch
from models.distribution import Distribution
from models.members.coupling import member_values, written_members
from models.members.methods import METHODS
from models.members.options import CorrectionOptions
from models.members.past import Past
from models.parallel.domain import Domain
from models.parallel.mesh import Mesh
from models.parallel.single_process import Processes
from models.provenance.noise import Noise
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
    `correct` writes them with these quantile `levels`, are scored beside their distributions: those of the first of the
    `methods`, and of all members also those of the others. `past`, `current` and the `noise` of each model are what
    these read. An `optional` model may give no number for some forecasts, which its comparisons leave out; it is left
    out itself if no forecast is left. Models are already on `device`, to which batches are moved. With `groups`, a
    number for each forecast, all forecasts of a batch are of one group. `blocks` has the block of dates of each
    forecast for tests on maps, or -1.
    `thresholds` holds the thresholds of each target; percentiles of climatology are left out if climatology is not
    scored. `extremeness` returns the extreme forecast index of the raw ensemble. The members of `undrawn` models are
    quantiles, not random draws.

    Fewer than `batch_size` forecasts are scored at a time if more do not fit into `memory_bytes`. Sums are kept in
    `partial`, from which an interrupted run continues. With `workers`, processes of a cluster score the forecasts,
    `jobs` at the same time.
    """

    batch_size: int = 8
    seed: int = 0
    member_counts: Collection[int] = ()
    written: Collection[str] = ()
    levels: str = "hazen"
    methods: tuple[str, ...] = ("ecc-q",)
    past: Past | None = None
    current: Fields | None = None
    noise: Mapping[str, Noise] = field(default_factory=dict)
    optional: Collection[str] = ()
    device: torch.device | str = "cpu"
    groups: np.ndarray | None = None
    undrawn: Collection[str] = ()
    blocks: np.ndarray | None = None
    scores: Collection[Score] = field(default_factory=default_scores)
    diagrams: Collection[Diagram] = field(default_factory=default_diagrams)
    thresholds: tuple[tuple[Threshold, ...], ...] = ()
    extremeness: Callable[[Sample], Tensor] | None = None
    memory_bytes: int = 2_000_000_000
    partial: PartialScores | None = None
    workers: Executor | None = None
    jobs: int = 1


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
    domain, times = mesh.domain(forecasts.grid), forecast_times(forecasts)  # type: ignore[arg-type]
    tile = RegionSums(np.stack([weights[domain.tile] for weights in regions.values()]))
    partial, workers = options.partial, options.workers
    options = replace(options, partial=None, workers=None)
    scorer = Scorer(models, forecasts, tile, oracle, options, domain, *(one.numpy() for one in times))
    tallies = scorer.empty()
    if partial:
        partial.load(tallies)
    every = np.flatnonzero(scorer.units % mesh.data == mesh.data_rank)
    rows = every[~tallies.done[every]]
    known = int(tallies.done.sum()) * mesh.data
    if known:
        say(f"{known} of {len(forecasts)} forecasts were scored by an earlier run")
    scored = scorer.score(tallies, rows) if workers is None else _on_cluster(scorer, tallies, rows, workers)
    with Progress("scoring: forecast", len(forecasts), known) as progress:
        for latest in scored:
            tallies = latest
            if partial:
                partial.save(tallies)
            progress.reach(min(int(tallies.done.sum()) * mesh.data, len(forecasts)))
    if oracle is not None:
        with Progress("scoring the oracle"):
            scorer.add_oracle(tallies, np.arange(mesh.data_rank, len(oracle), mesh.data))
    merged = tallies.merged(mesh, domain)
    optional = [name for name in models if name in options.optional]
    by_size, everyone = merged.by_size, forecasts.members
    missing = {name: sum(counted[name].missing for counted in by_size.values()) for name in optional}
    lost = {
        name: missing[name]
        for name in optional
        if missing[name] and any(counted[name].empty.any() for counted in by_size.values())
    }
    by_size = {size: {n: tally for n, tally in counted.items() if n not in lost} for size, counted in by_size.items()}
    return Scoreboard(
        forecasts.task, forecasts.grid, regions, scorer.init_times, scorer.lead_times, by_size[everyone],
        merged.oracle, options.seed,
        by_member_count={size: by_size[size] for size in sorted(options.member_counts)},
        written=merged.written[everyone, options.methods[0]],
        written_by_count={size: merged.written[size, options.methods[0]] for size in by_size},
        method=options.methods[0], further={method: merged.written[everyone, method] for method in options.methods[1:]},
        lost=lost, wanted=options.scores, diagrams=options.diagrams,
    )  # fmt: skip


@dataclass(frozen=True)
class Scorer:
    """The models, forecasts and options for scoring; a worker of a cluster gets a copy.

    `init_times` and `lead_times` have all forecasts. `regions` and `forecasts` are of the tile in `domain`.
    """

    models: Mapping[str, Forecaster]
    forecasts: Forecasts
    regions: RegionSums
    oracle: Forecasts | None
    options: ScoringOptions
    domain: Domain
    init_times: np.ndarray
    lead_times: np.ndarray

    @cached_property
    def whole(self) -> np.ndarray:
        """Whether a forecast is in one batch with all lead times of its start, because a score needs them together."""
        correlates = any(METHODS[method].correlates for method in self.options.methods)
        if not correlates and not any(score.joint == "lead_times" for score in self.options.scores):
            return np.zeros(len(self.init_times), bool)
        whole = whole_starts(self.init_times, len(self.forecasts.task.lead_times), self.options.groups)
        if not whole.all():
            others = ", members=decc has the order of ecc-q in these" if correlates else ""
            say(
                f"scores over lead times leave out {np.unique(self.init_times[~whole]).size} starts: a lead time is "
                f"missing or corrected by another fold{others}"
            )
        return whole

    @cached_property
    def units(self) -> np.ndarray:
        """Number of the unit of each forecast, which one process scores: a whole start, or a forecast."""
        alone = np.arange(len(self.init_times)) + self.init_times.max(initial=0) + 1
        units: np.ndarray = np.unique(np.where(self.whole, self.init_times, alone), return_inverse=True)[1]
        return units

    def empty(self) -> Tallies:
        """Return tallies without any forecast."""
        everyone, options = self.forecasts.members, self.options
        by_size = {
            size: {name: self._tally(name, size, size == everyone, name in options.optional) for name in self.models}
            for size in sorted({*options.member_counts, everyone})
        }
        written = {
            (size, method): {
                name: self._tally(name, size, maps=False) for name in self.models if name in options.written
            }
            for size in by_size
            for method in (options.methods if size == everyone else options.methods[:1])
        }
        oracle = None if self.oracle is None else self._tally(ORACLE, self.oracle.members)
        return Tallies(by_size, written, oracle, np.zeros(len(self.forecasts), bool))

    def score(self, tallies: Tallies, rows: np.ndarray) -> Iterator[Tallies]:
        """Add the forecasts `rows` to the tallies; yield them after every batch."""
        options, together = self.options, len(self.forecasts.task.lead_times) if self.whole.any() else 1
        size = block_size(self.forecasts, options.batch_size, options.memory_bytes, together) if len(rows) else 1
        rows = rows[np.lexsort((self.lead_times[rows], self.init_times[rows]))]
        groups = self.whole + 2 * (0 if options.groups is None else options.groups)
        prepared = self._prepared(rows, size, groups)
        # Closed, so that no thread reads ahead after an error.
        with closing(one_ahead(prepared) if self._on_gpu else prepared) as blocks:
            for block, batch, uniform in blocks:
                self._add(tallies, block, batch, uniform)
                tallies.done[block] = True
                yield tallies

    def add_oracle(self, tallies: Tallies, rows: np.ndarray) -> None:
        """Add the oracle's forecasts `rows` that are also scored for the models."""
        if self.oracle is None or tallies.oracle is None:
            return
        keys = zip(self.init_times.tolist(), self.lead_times.tolist(), strict=True)
        rows_of = {key: row for row, key in enumerate(keys)}
        times = [one.tolist() for one in forecast_times(self.oracle)]  # type: ignore[arg-type]
        found = np.array([rows_of.get(key, -1) for key in zip(*times, strict=True)])
        rows = rows[found[rows] >= 0]
        size = block_size(self.oracle, self.options.batch_size, self.options.memory_bytes) if len(rows) else 1
        task = self.oracle.task
        blocks = read_blocks(self.oracle, rows, size)
        for block, batch in watched(blocks, "scoring the oracle: batch", -(-len(rows) // size)):
            uniform = self._uniform(batch).to(self.options.device)
            batch = copy_batch(batch, self.options.device)
            truth = verifiable(batch, task.target_channels)
            case = Case(Raw(task, self.domain)(batch), truth, uniform, tallies.oracle.settings.bins)
            tallies.oracle.add(found[block], self._places(found[block]), case)

    @property
    def _on_gpu(self) -> bool:
        return torch.device(self.options.device).type == "cuda"

    def _prepared(
        self, rows: np.ndarray, size: int, groups: np.ndarray
    ) -> Generator[tuple[np.ndarray, Sample, Tensor], None, None]:
        """Yield rows, batches and their random numbers, in memory from which a GPU copies them."""
        with closing(read_blocks(self.forecasts, rows, size, groups)) as blocks:
            for block, batch in blocks:
                uniform = self._uniform(batch)
                if self._on_gpu:
                    batch, uniform = Sample(*(tensor.pin_memory() for tensor in batch)), uniform.pin_memory()
                yield block, batch, uniform

    def _add(self, tallies: Tallies, rows: np.ndarray, batch: Sample, uniform: Tensor) -> None:
        options, task = self.options, self.forecasts.task
        uniform, places = uniform.to(options.device, non_blocking=True), self._places(rows)
        batch = copy_batch(batch, options.device)
        truth = verifiable(batch, task.target_channels)
        normal = self.models.get("climatology")
        climate = normal(batch) if normal else None
        events = make_events(self._thresholds, climate, truth)
        extremeness = options.extremeness(batch) if options.extremeness else None
        eps = torch.from_numpy(traces(task.targets)).to(truth)
        leads = task.lead_times if self.whole[rows].all() else ()
        shared = events, climate, extremeness, eps, leads, self.domain
        for size, counted in tallies.by_size.items():
            some = batch._replace(ensemble=batch.ensemble[:, :size])
            for name, model in self.models.items():
                forecast = climate if model is normal and climate is not None else model(some)
                drawn = name not in self.options.undrawn
                case = Case(forecast, truth, uniform, size + 1, drawn, *shared)
                counted[name].add(rows, places, case)
                for (count, method), tally_of in tallies.written.items():
                    if count == size and name in tally_of:
                        values = self._written(name, forecast, some, method, tally_of[name].is_joint)
                        drawn = is_ensemble(forecast) or METHODS[method].values == "random levels"
                        tally_of[name].add(rows, places, Case(values, truth, uniform, size + 1, drawn, *shared))

    def _written(self, name: str, forecast: Distribution, batch: Sample, method: str, joint: bool) -> Distribution:
        """Return the members that `correct` writes; which member has which value is right only for `joint` scores."""
        task, options = self.forecasts.task, self.options
        if not joint and METHODS[method].values == "levels":
            # Scores of single values do not depend on the order of the members.
            return member_values(forecast, task, batch.ensemble.shape[1], options.levels)
        made = CorrectionOptions(options.levels, options.seed, method)
        return written_members(
            forecast, batch, task, self.domain, made, options.past, options.current, options.noise.get(name)
        )

    @property
    def _thresholds(self) -> tuple[tuple[Threshold, ...], ...]:
        thresholds = self.options.thresholds
        return thresholds if "climatology" in self.models else without_climatology(thresholds)

    def _tally(self, name: str, members: int, maps: bool = True, optional: bool = False) -> Tally:
        settings, options = Settings(self.forecasts.task, members + 1), self.options
        if name != ORACLE:
            settings = replace(
                settings, thresholds=self._thresholds, climatology="climatology" in self.models,
                extremeness=bool(options.extremeness), grid=self.domain.grid, cuts=self.domain.cuts,
            )  # fmt: skip
        wanted: list[Score | Diagram] = [*options.scores, *options.diagrams]
        computed = [one for one in wanted if not one.missing(settings)]
        blocks = None if name == ORACLE else options.blocks
        return Tally(
            name, len(self.forecasts), settings, self.regions, statistics_of(*computed), maps, optional, blocks
        )

    def _places(self, rows: np.ndarray) -> np.ndarray:
        """Return the index of each forecast on the axis of lead times."""
        return np.array([self.forecasts.task.lead_times.index(int(lead)) for lead in self.lead_times[rows]])

    def _uniform(self, batch: Sample) -> Tensor:
        # Drawn for the whole grid, so that the draw of a cell does not depend on the tiles.
        shape = batch.target.shape[1], *self.domain.shape
        draws = tie_breaker(self.options.seed, batch.init_time, batch.lead_time, shape)
        return self.domain.cut(draws)


def _on_cluster(scorer: Scorer, tallies: Tallies, rows: np.ndarray, workers: Executor) -> Iterator[Tallies]:
    """Yield the sum of the tallies and all parts that workers have finished, after each part."""
    units = np.unique(scorer.units[rows])
    count = min(len(units), 4 * scorer.options.jobs)
    parts = [rows[np.isin(scorer.units[rows], some)] for some in np.array_split(units, count or 1) if len(some)]
    for future in as_completed([workers.submit(_score_part, scorer, part) for part in parts]):
        tallies = tallies + future.result()
        yield tallies


@torch.no_grad()
def _score_part(scorer: Scorer, rows: np.ndarray) -> Tallies:
    torch.set_num_threads(processors())
    tallies = scorer.empty()
    for _ in scorer.score(tallies, rows):
        pass
    return tallies


def check_workers(cluster: Cluster, mesh: Processes, device: torch.device) -> None:
    """Raise an `InputError` if the workers of a cluster would need a mesh or an accelerator."""
    if isinstance(cluster, Threads):
        return
    if mesh.ranks > 1:
        raise InputError(
            f"cluster has workers of its own, and mesh has {mesh.ranks} ranks; leave out one of them: "
            "mesh=[1,1] or cluster=threads"
        )
    if device.type != "cpu":
        raise InputError(f"workers of a cluster score on the CPU, but device is {device}; set device=cpu")


@contextmanager
def scoring_workers(cluster: Cluster) -> Iterator[Executor | None]:
    """Start the workers of `cluster`; yield None for threads of this process, whose number is then limited."""
    if not isinstance(cluster, Threads):
        with cluster.executor() as workers:
            yield workers
        return
    if cluster.workers is not None:
        BUDGET.limit(cluster.workers)
        torch.set_num_threads(cluster.workers)
    yield None
