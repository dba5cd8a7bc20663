"""Write a store file by file. A run that was killed can be continued; its files are the same byte for byte."""

from __future__ import annotations

import errno
import os
import pickle
import shutil
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import CancelledError, Executor, ThreadPoolExecutor, as_completed, wait
from contextlib import closing
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

import numpy as np

from data_pipeline.common.checks import check_integer
from data_pipeline.common.errors import DiskFullError, InputError, InterruptedRunError
from data_pipeline.common.files import atomic_path, disk_error, lock_folder
from data_pipeline.common.progress import Progress
from data_pipeline.dates import Dates, epoch_seconds
from data_pipeline.protocols import DataSource, Fields
from data_pipeline.samples.inputs import open_task
from data_pipeline.samples.pseudo_members import read_moments
from data_pipeline.samples.selection import present_members, select_forecasts
from data_pipeline.store.manifest import FinishedFile, Manifest
from data_pipeline.store.shard import ENSEMBLE_NAME, TARGET_NAME, create_shard, name_file_in_errors, write_at
from data_pipeline.store.store_plan import STATIC_NAME, StorePlan
from data_pipeline.task import Task
from data_pipeline.truth_checks import CheckedReader

METADATA_BYTES = 1 << 20
"""Upper bound for the metadata of a file."""


@dataclass(frozen=True, eq=False)
class WriteJob:
    """The plan of a store, and the fields of the archive from which its samples are read."""

    plan: StorePlan
    archive: DataSource
    ensemble: Fields
    truth: Fields
    keys: list[tuple[int, int, int]]
    """For each sample, the indices of start and lead time in `ensemble`, and of the analysis in `truth`."""
    present: dict[tuple[int, int], list[int]]
    """The `present_members`."""
    recipe: bytes
    """The pickled arguments of `from_task`, from which another process makes an equal job."""

    @classmethod
    def from_task(
        cls, archive: DataSource, task: Task, dates: Dates | None, moments: bool, shard_bytes: int
    ) -> WriteJob:
        """Find the forecasts of `task` that are valid on `dates` (None: all) and have a verifying analysis.

        Raise `InputError` if a target has other units or intervals in the ensemble than in the analysis.
        """
        check_integer("shard_bytes", shard_bytes, 1)
        wanted = dates or Dates.all()
        opened = open_task(archive, task, wanted, moments)
        ensemble, truth = opened.inputs, opened.truth
        keys, ledger = select_forecasts(archive, task, opened, wanted)
        seconds = epoch_seconds(ensemble.init_times)
        plan = StorePlan(
            archive.fingerprint, task.inputs, task.targets, task.lead_times,
            tuple(map(str, archive.static)), ensemble.grid, ensemble.numbers, moments,
            dates, 1,
            tuple((int(seconds[i]), task.lead_times[j]) for i, j, _ in keys),
            ensemble.meanings, truth.meanings,
            task.other_leads, task.analysis, archive.missing, ledger.omissions, task.formulas,
            isinstance(truth.reader, CheckedReader) and truth.reader.policy == "mask",
        )  # fmt: skip
        shard_samples = max(1, shard_bytes // plan.sample_bytes)
        recipe = pickle.dumps((archive, task, dates, moments, shard_bytes))
        present = present_members(task, ensemble.numbers, ledger)
        return cls(replace(plan, shard_samples=shard_samples), archive, ensemble, truth, keys, present, recipe)


def complete_store(job: WriteJob, folder: Path, workers: Executor | None = None) -> None:
    """Write the missing files of a store; each file is a task of `workers`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise disk_error(error, folder) or error from None
    with lock_folder(folder):
        manifest = _start_manifest(job.plan, folder)
        try:
            _write_missing(job, folder, manifest, workers)
        except KeyboardInterrupt:
            raise InterruptedRunError(
                f"interrupted while writing {folder}; run the same command again to resume"
            ) from None
        except DiskFullError as error:
            raise InterruptedRunError(f"{error}; then run the same command again to resume") from None


def _start_manifest(plan: StorePlan, folder: Path) -> Manifest:
    """Return the manifest of a folder, without damaged files; write a new manifest if there is none."""
    found = Manifest.read(folder)
    if found is None:
        if others := sorted(path.name for path in folder.glob("*.nc")):
            raise InputError(f"{folder} has no store but holds {others[0]}; choose another folder")
        manifest = Manifest(plan)
        manifest.write(folder)
        return manifest
    if differences := found.plan.differences(plan):
        raise InputError(f"{folder} holds a store with other {' and '.join(differences)}; choose another folder")
    undamaged = {name: file for name, file in found.files.items() if file.matches(folder / name)}
    return Manifest(plan, undamaged)


def _write_missing(job: WriteJob, folder: Path, manifest: Manifest, workers: Executor | None) -> None:
    """Write the missing files. The manifest is updated after each file, so a killed run loses only unfinished files."""
    plan = job.plan
    done = sum(len(samples) for name, samples in plan.shards.items() if name in manifest.files)
    if STATIC_NAME in plan.files and STATIC_NAME not in manifest.files:
        with atomic_path(folder / STATIC_NAME) as path:
            with name_file_in_errors(path):
                job.archive.static.to_netcdf(path, format="NETCDF4")
            finished = FinishedFile.from_path(path, {})
        manifest = _add(manifest, folder, STATIC_NAME, finished)
    missing = [name for name in plan.shards if name not in manifest.files]
    shown, counting = Progress("store: forecast", len(plan.samples), done), threading.Lock()

    def count() -> None:
        with counting:
            shown.step()

    with shown, closing(_finish_shards(job, folder, missing, workers, count)) as shards:
        for name, finished in shards:
            manifest = _add(manifest, folder, name, finished)
            done += len(plan.shards[name])
            # Threads have counted the samples of this file and of unfinished files; other processes count none.
            with counting:
                shown.reach(max(done, shown.done))


def _add(manifest: Manifest, folder: Path, name: str, finished: FinishedFile) -> Manifest:
    manifest = replace(manifest, files=manifest.files | {name: finished})
    manifest.write(folder)
    return manifest


def _finish_shards(
    job: WriteJob, folder: Path, names: Sequence[str], workers: Executor | None, count: Callable[[], None]
) -> Generator[tuple[str, FinishedFile]]:
    """Write shards and yield each finished one; without `workers`, write them one after the other in this thread.

    `count` is called after each sample that this process has written.
    """
    stopped = threading.Event()
    if workers is None:
        yield from ((name, _finish_shard(job, folder, stopped, count, name)) for name in names)
        return
    in_threads = isinstance(workers, ThreadPoolExecutor)
    # The catalog of a large archive is costly to send, so each process opens the archive itself, once.
    write = (
        partial(_finish_shard, job, folder, stopped, count)
        if in_threads
        else partial(_finish_shard_elsewhere, job.recipe, job.plan.digest, folder.absolute())
    )
    futures = {workers.submit(write, name): name for name in names}
    try:
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        stopped.set()
        for future in futures:
            future.cancel()
        if in_threads:
            wait(futures)  # until the threads have removed their partial files


def _finish_shard_elsewhere(recipe: bytes, digest: str, folder: Path, name: str) -> FinishedFile:
    job = _reopen(recipe)
    if job.plan.digest != digest:  # this process may have opened the files for an earlier store
        _reopen.cache_clear()
        job = _reopen(recipe)
    if job.plan.digest != digest:
        raise InputError("the files of the archive have changed while the store was written; run again")
    return _finish_shard(job, folder, threading.Event(), lambda: None, name)


@lru_cache(maxsize=1)
def _reopen(recipe: bytes) -> WriteJob:
    return WriteJob.from_task(*pickle.loads(recipe))


def _finish_shard(
    job: WriteJob, folder: Path, stopped: threading.Event, count: Callable[[], None], name: str
) -> FinishedFile:
    with atomic_path(folder / name) as path:
        offsets = _write_samples(path, job, job.plan.shards[name], stopped, count)
        return FinishedFile.from_path(path, offsets)


def _write_samples(
    path: Path, job: WriteJob, samples: range, stopped: threading.Event, count: Callable[[], None]
) -> dict[str, int]:
    """Write the file of `samples`; return the offsets of its variables. Raise `CancelledError` if `stopped` is set."""
    plan = job.plan
    if shutil.disk_usage(path.parent).free < len(samples) * plan.sample_bytes + METADATA_BYTES:
        # Detected before the samples are read; the disk may still fill up later.
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    offsets = create_shard(path, plan, samples)
    ensemble = np.empty(plan.ensemble_shape, np.float32)
    truth = np.empty(plan.target_shape, np.float32)
    descriptor = os.open(path, os.O_WRONLY)
    try:
        for index, sample in enumerate(samples):
            if stopped.is_set():
                raise CancelledError
            init, lead, analysis = job.keys[sample]
            wanted = job.ensemble.cells[init, lead]
            if plan.moments:
                wanted = wanted[job.present.get(plan.samples[sample], slice(None))]
                read_moments(job.ensemble.reader, wanted, ensemble)
            else:
                job.ensemble.read(wanted, ensemble)
            job.truth.read(job.truth.cells[analysis, 0], truth)
            write_at(descriptor, ensemble, offsets[ENSEMBLE_NAME] + index * ensemble.nbytes)
            write_at(descriptor, truth, offsets[TARGET_NAME] + index * truth.nbytes)
            count()
    finally:
        os.close(descriptor)
    return offsets
