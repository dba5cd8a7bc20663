"""The verb `prepare`: generate data or check the user's files, then compute statistics and write a store.

Finished parts are not repeated, so the same command continues after an interruption.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig

from conf import build, is_chosen, verb
from data_pipeline.archive import Archive
from data_pipeline.cluster import Cluster
from data_pipeline.common.checks import check_choice
from data_pipeline.common.cost_meter import CostMeter
from data_pipeline.common.errors import DiskFullError, InputError, InterruptedRunError
from data_pipeline.common.files import lock_folder
from data_pipeline.common.messages import format_duration, format_size, say
from data_pipeline.common.progress import Progress
from data_pipeline.dates import Dates
from data_pipeline.sources.inventory import Inventory, task_report
from data_pipeline.split import Split
from data_pipeline.statistics import STATISTICS
from data_pipeline.statistics.statistic import Piece, Statistic
from data_pipeline.statistics.statistic_file import is_written, write_statistic
from data_pipeline.statistics.training_forecasts import TrainingForecasts
from data_pipeline.store import Store
from data_pipeline.task import Task


@dataclass(frozen=True)
class Preparation:
    """What the options of `prepare` describe."""

    archive: Archive
    cluster: Cluster
    task: Task
    statistics: Sequence[Statistic]
    store: str | None
    split: Any
    """The split, None where it is not needed: without statistics and without a store. It may be unset then."""
    generator: Any
    """What makes the data of a twin experiment, None for files of the user."""

    @classmethod
    def of(cls, cfg: DictConfig) -> Preparation:
        """Return what the options describe, without reading data."""
        statistics, store = [build(cfg[name]) for name in selected_statistics(cfg.statistics)], cfg.data.store
        if cfg.moments and store is None:
            raise InputError("moments=true applies to a store; set its folder with store=FOLDER, or leave out moments")
        split = build(cfg.data.split) if statistics or store else None
        generator = build(cfg.data.generator) if "generator" in cfg.data else None
        return cls(
            build(cfg.data.archive), build(cfg.cluster), build(cfg.task), statistics, store, split, generator
        )  # fmt: skip


@verb("prepare", Preparation.of)
def main(cfg: DictConfig) -> None:
    """Prepare the data, and print what it took."""
    with CostMeter() as meter:
        run(cfg)
        print(meter.usage().line())


def run(cfg: DictConfig) -> None:
    """Print the plan, then execute it."""
    given, run_dir = Preparation.of(cfg), Path(cfg.run_dir)
    archive, cluster, task, store = given.archive, given.cluster, given.task, given.store
    inventory, generator = Inventory(archive), given.generator

    print(generator.plan() if generator else inventory.plan(cluster.at_once))
    for statistic in given.statistics:
        print(f"statistics: will be in {run_dir / statistic.name}.nc")
    if store:
        print(f"store: will be in {store}")
    if generator:
        generator.prepare()
    with cluster.executor() as workers:
        if not generator:
            inventory.scan(workers)
        print()
        try:
            for line in task_report(archive, task, used_dates(cfg, task)):
                say(line)
        except InputError as error:
            if is_chosen("task"):
                raise
            say(f"task {task.name}, which no option chooses, cannot be used for training: {error}")
        if given.statistics:
            training = TrainingForecasts(archive, task, given.split.dates("train", task.lead_times))
            compute_statistics(given.statistics, training, run_dir, cluster.at_once)
        if store:
            write_store(archive, task, given.split, Path(store), cfg.moments, workers, cluster.at_once)


def used_dates(cfg: DictConfig, task: Task) -> dict[str, Dates]:
    """Return the dates of each split that is set, by title; if no fold is chosen, the dates of all folds together."""
    if "train" not in cfg.data.split:
        return {}
    split: Split = build(cfg.data.split)
    if split.folds is not None and split.fold is None:
        return {"all folds": split.stored}
    titles = {"train": "training", "val": "validation", "test": "test"}
    given = [name for name in titles if name == "train" or (split.validates if name == "val" else split.test)]
    return {titles[name]: split.dates(name, task.lead_times) for name in given}


def selected_statistics(names: object) -> list[str]:
    """Return the names of the requested statistics, without repetition."""
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise InputError(f"statistics must be a list, such as [normalization,efi], got {names!r}")
    for name in names:
        check_choice("statistics", name, STATISTICS)
    return list(dict.fromkeys(names))


def compute_statistics(
    statistics: Sequence[Statistic], training: TrainingForecasts, folder: Path, at_once: int
) -> None:
    """Compute the statistics that have no file yet."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot create the folder {folder} ({error.strerror}); choose another run_dir") from None
    say("\n".join(["", *training.ledger.lines(f"statistics, {training.dates}")]))
    with lock_folder(folder):
        remaining = [each for each in statistics if not is_written(folder / f"{each.name}.nc", each, training)]
        if remaining:
            say(estimate_reading(remaining, training, at_once))
        for statistic in statistics:
            path = folder / f"{statistic.name}.nc"
            if statistic in remaining:
                try:
                    write_statistic(path, statistic, training, with_progress(statistic, training, at_once))
                except DiskFullError as error:
                    raise InterruptedRunError(f"{error}; then run the same command again to resume") from None
            say(f"{statistic.name}: in {path}, {format_size(path.stat().st_size)}")


def estimate_reading(statistics: Sequence[Statistic], training: TrainingForecasts, at_once: int) -> str:
    """Return a message with the estimated reading time of some statistics, from the time of one forecast."""
    fields = training.inputs
    sample = np.empty((len(fields.numbers), len(fields.variables), *fields.grid.shape), np.float32)
    init, lead, _ = training.keys[0]
    start_time = time.monotonic()
    fields.read(fields.cells[init, lead], sample)
    per_field = (time.monotonic() - start_time) / (sample.shape[0] * sample.shape[1])
    count = sum(statistic.count_fields(training) for statistic in statistics)
    return (
        f"statistics: {count:,} fields to read, {format_size(count * sample[0, 0].nbytes)} when decoded, at least "
        f"{format_duration(count * per_field / at_once)} with {at_once} at a time, "
        f"because one took {1000 * per_field:.2g} ms"
    )


def with_progress(statistic: Statistic, training: TrainingForecasts, at_once: int) -> Iterator[Piece]:
    """Yield the pieces of a statistic, and show the progress."""
    with Progress(f"{statistic.name}: piece", statistic.count_pieces(training, at_once)) as progress:
        for piece in statistic.compute(training, at_once):
            yield piece
            progress.step(piece[0])


def write_store(
    archive: Archive, task: Task, split: Split, folder: Path, moments: bool, workers: Executor, at_once: int
) -> None:
    """Write a store with the forecasts of all training and validation dates, including the dates of all folds."""
    plan = Store.plan(archive, task, split.stored, moments=moments)
    at_once = min(at_once, len(plan.shards))
    say("\n".join([f"\nstore: {plan}, in {folder}, {at_once} at a time", *plan.ledger.lines("store")]))
    Store.write(archive, task, folder, split.stored, moments=moments, workers=workers)


if __name__ == "__main__":
    main()
