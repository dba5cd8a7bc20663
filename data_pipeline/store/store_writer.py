"""Writing a store file by file. A run that was killed can be continued, and the files are the same byte for byte."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from data_pipeline.calendar import year_of
from data_pipeline.common.checks import check_integer
from data_pipeline.common.errors import DiskFullError, InputError, InterruptedRunError
from data_pipeline.common.files import atomic_path, disk_error, lock_folder, remove_partial_files
from data_pipeline.inputs import input_fields, skipped_starts
from data_pipeline.moments import pseudo_members
from data_pipeline.protocols import DataSource, Fields
from data_pipeline.split import count_valid, verified_forecasts
from data_pipeline.store.manifest import FinishedFile, Manifest
from data_pipeline.store.shard import ENSEMBLE_NAME, TARGET_NAME, create_shard, name_file_in_errors, write_at
from data_pipeline.store.store_plan import STATIC_NAME, StorePlan
from data_pipeline.task import Task

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
    """For each sample the indices of initial time and lead time in `ensemble` and of the analysis in `truth`."""

    @classmethod
    def from_task(
        cls, archive: DataSource, task: Task, years: Collection[int] | None, moments: bool, shard_bytes: int
    ) -> WriteJob:
        """Find the forecasts of `task` that are valid in `years` (None: all) and have a verifying analysis."""
        check_integer("shard_bytes", shard_bytes, 1)
        archive.check_available(years or (), moments, task.further)
        ensemble = input_fields(archive, task)
        truth = archive.analysis_fields(task.targets)
        if not ensemble.grid.matches(truth.grid):
            raise InputError(
                f"the ensemble has {ensemble.grid}, the analysis {truth.grid}; bring both to one grid first"
            )
        wanted = set(_valid_years(ensemble)) if years is None else set(years)
        keys = verified_forecasts(ensemble.init_times, task.lead_times, truth.init_times, wanted)
        seconds = ensemble.init_times.astype("datetime64[s]").astype(np.int64)
        plan = StorePlan(
            archive.fingerprint, task.inputs, task.targets, task.lead_times,
            tuple(map(str, archive.static)), ensemble.grid, ensemble.numbers, moments,
            None if years is None else tuple(sorted(wanted)), 1,
            tuple((int(seconds[i]), task.lead_times[j]) for i, j, _ in keys),
            task.other_leads, task.analysis, count_valid(skipped_starts(ensemble), task.lead_times, wanted),
        )  # fmt: skip
        shard_samples = max(1, shard_bytes // plan.sample_bytes)
        return cls(replace(plan, shard_samples=shard_samples), archive, ensemble, truth, keys)


def _valid_years(ensemble: Fields) -> Iterator[int]:
    """Yield the years of all valid times."""
    for lead in ensemble.lead_times:
        yield from map(year_of, ensemble.init_times + np.timedelta64(lead, "h"))


def complete_store(job: WriteJob, folder: Path, progress: Callable[[int, int], None]) -> None:
    """Write the missing files of a store; `progress(done, total)` counts samples."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise disk_error(error, folder) or error from None
    with lock_folder(folder):
        remove_partial_files(folder)
        manifest = _start_manifest(job.plan, folder)
        try:
            _write_missing(job, folder, manifest, progress)
        except KeyboardInterrupt:
            raise InterruptedRunError(
                f"interrupted while writing {folder}; run the same command again to resume"
            ) from None
        except DiskFullError as error:
            raise InterruptedRunError(f"{error}; then run the same command again to resume") from None


def _start_manifest(plan: StorePlan, folder: Path) -> Manifest:
    """Return the manifest of a folder with its undamaged files; write a new one if there is none."""
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


def _write_missing(job: WriteJob, folder: Path, manifest: Manifest, progress: Callable[[int, int], None]) -> None:
    plan = job.plan
    done = sum(len(samples) for name, samples in plan.shards.items() if name in manifest.files)
    progress(done, len(plan.samples))
    for name in plan.files:
        if name in manifest.files:
            continue
        with atomic_path(folder / name) as partial:
            if name == STATIC_NAME:
                with name_file_in_errors(partial):
                    job.archive.static.to_netcdf(partial, format="NETCDF4")
                finished = FinishedFile.from_path(partial, {})
            else:
                finished = FinishedFile.from_path(partial, _write_samples(partial, job, plan.shards[name]))
                done += len(plan.shards[name])
        manifest = replace(manifest, files=manifest.files | {name: finished})
        manifest.write(folder)
        if name != STATIC_NAME:
            progress(done, len(plan.samples))


def _write_samples(path: Path, job: WriteJob, samples: range) -> dict[str, int]:
    """Write the file of `samples`; return the offsets of its variables."""
    plan = job.plan
    if shutil.disk_usage(path.parent).free < len(samples) * plan.sample_bytes + METADATA_BYTES:
        # Detected before the samples are read; the disk may still fill up later.
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    offsets = create_shard(path, plan, samples)
    members = np.empty((len(plan.numbers), *plan.ensemble_shape[1:]), np.float32)
    truth = np.empty(plan.target_shape, np.float32)
    descriptor = os.open(path, os.O_WRONLY)
    try:
        for index, sample in enumerate(samples):
            init, lead, analysis = job.keys[sample]
            job.ensemble.read(init, lead, members)
            job.truth.read(analysis, 0, truth)
            ensemble = pseudo_members(members) if plan.moments else members
            write_at(descriptor, ensemble, offsets[ENSEMBLE_NAME] + index * ensemble.nbytes)
            write_at(descriptor, truth, offsets[TARGET_NAME] + index * truth.nbytes)
    finally:
        os.close(descriptor)
    return offsets
