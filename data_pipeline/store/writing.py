"""Writing a store, file by file; killed at any moment it goes on, to the same bytes."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from data_pipeline.common.errors import DiskFullError, InputError, InterruptedRunError
from data_pipeline.common.files import atomic_path, disk_error, lock_folder, remove_partial_files
from data_pipeline.moments import pseudo_members
from data_pipeline.store.manifest import Finished, Manifest
from data_pipeline.store.plan import STATIC, Job, Plan
from data_pipeline.store.shard import ENSEMBLE, TARGET, describe, library_errors, write_at

SLACK = 1 << 20
"""Bytes for the description of a file: what else it needs of a disk."""


def write(job: Job, folder: Path, progress: Callable[[int, int], None]) -> None:
    """Write what is missing of the store; `progress(done, total)` counts samples."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise disk_error(error, folder) or error from None
    with lock_folder(folder):
        remove_partial_files(folder)
        manifest = _begun(job.plan, folder)
        try:
            _complete(job, folder, manifest, progress)
        except KeyboardInterrupt:
            raise InterruptedRunError(
                f"interrupted while writing {folder}; run the same command again to go on"
            ) from None
        except DiskFullError as error:
            raise InterruptedRunError(f"{error}; then run the same command again to go on") from None


def _begun(plan: Plan, folder: Path) -> Manifest:
    """Return the manifest of the store, with those files that are there and whole; a new one is written."""
    found = Manifest.read(folder)
    if found is None:
        if strangers := sorted(path.name for path in folder.glob("*.nc")):
            raise InputError(f"{folder} holds {strangers[0]}, which is of no store; choose another folder")
        manifest = Manifest(plan)
        manifest.write(folder)
        return manifest
    if other := found.plan.differs_in(plan):
        raise InputError(f"{folder} holds a store with other {' and '.join(other)}; choose another folder or remove it")
    whole = {name: file for name, file in found.files.items() if file.describes(folder / name)}
    return Manifest(plan, whole)


def _complete(job: Job, folder: Path, manifest: Manifest, progress: Callable[[int, int], None]) -> None:
    plan = job.plan
    done = sum(len(samples) for name, samples in plan.shards.items() if name in manifest.files)
    progress(done, len(plan.samples))
    for name in plan.files:
        if name in manifest.files:
            continue
        with atomic_path(folder / name) as partial:
            if name == STATIC:
                with library_errors(partial):
                    job.archive.static.to_netcdf(partial, format="NETCDF4")
                finished = Finished.of(partial, {})
            else:
                finished = Finished.of(partial, _write_samples(partial, job, plan.shards[name]))
                done += len(plan.shards[name])
        manifest = replace(manifest, files=manifest.files | {name: finished})
        manifest.write(folder)
        if name != STATIC:
            progress(done, len(plan.samples))


def _write_samples(path: Path, job: Job, samples: range) -> dict[str, int]:
    """Write the file of `samples`; return where its variables begin."""
    plan = job.plan
    if shutil.disk_usage(path.parent).free < len(samples) * plan.sample_bytes + SLACK:
        # Found out before the work is done; what the disk says later counts as well.
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    offsets = describe(path, plan, samples)
    members = np.empty((len(plan.numbers), *plan.ensemble_shape[1:]), np.float32)
    truth = np.empty(plan.target_shape, np.float32)
    descriptor = os.open(path, os.O_WRONLY)
    try:
        for place, sample in enumerate(samples):
            init, lead, analysis = job.keys[sample]
            job.ensemble.read(init, lead, members)
            job.truth.read(analysis, 0, truth)
            ensemble = pseudo_members(members) if plan.moments else members
            write_at(descriptor, ensemble, offsets[ENSEMBLE] + place * ensemble.nbytes)
            write_at(descriptor, truth, offsets[TARGET] + place * truth.nbytes)
    finally:
        os.close(descriptor)
    return offsets
