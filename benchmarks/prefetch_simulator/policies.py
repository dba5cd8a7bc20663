"""Caching policies of published data loaders: the storage from which each sample is fetched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from data_pipeline.prefetch.order import NEVER_READ, Placement, Reads, SampleOrder

SHARED, OWN_MEMORY, OWN_DISK, REMOTE_MEMORY, REMOTE_DISK = range(5)
"""Storages: the shared file system; this worker's memory and disk; memory and disk of another worker."""


@dataclass(frozen=True)
class Workload:
    """`workers` read a data set of `samples` samples of `size` MB for `epochs` epochs; their capacities are in MB."""

    samples: int
    size: float
    epochs: int
    workers: int = 4
    memory: float = 120_000
    disk: float = 900_000
    batch_size: int = 128
    seed: int = 0

    @property
    def order(self) -> SampleOrder:
        """The order of reading."""
        return SampleOrder(self.samples, self.batch_size, self.epochs, self.seed, self.workers)

    @property
    def capacities(self) -> tuple[int, int]:
        """Number of samples that fit into the memory and onto the disk of a worker."""
        return int(self.memory // self.size), int(self.disk // self.size)

    def first_worker(self) -> Iterator[np.ndarray]:
        """Yield the samples that the first worker reads in each epoch."""
        order, first = self.order, self.order.reading_ranks() == 0
        for epoch in range(self.epochs):
            yield order.permutation(epoch)[first]


Storages = Iterator[np.ndarray]
"""For each epoch the storage of each sample that the first worker reads, in order."""


def staging_buffer(workload: Workload) -> Storages:
    """Read ahead from the shared file system and cache nothing."""
    for samples in workload.first_worker():
        yield np.full(len(samples), SHARED)


def deep_io(workload: Workload) -> Storages:
    """Every worker caches in memory the samples of its first epoch; other workers fetch them from there."""
    return _cache_first_epoch(workload, (workload.capacities[0], 0))


def lbann(workload: Workload) -> Storages | None:
    """Like DeepIO, but None for data sets that do not fit into the memory of all workers."""
    return deep_io(workload) if workload.samples <= workload.workers * workload.capacities[0] else None


def locality_aware(workload: Workload) -> Storages:
    """Every worker caches the samples of its first epoch; later batches are assigned to the workers that cache them."""
    for storages in _cache_first_epoch(workload, workload.capacities):
        yield np.select([storages == REMOTE_MEMORY, storages == REMOTE_DISK], [OWN_MEMORY, OWN_DISK], storages)


def parallel_staging(workload: Workload) -> Storages:
    """Every worker first copies its share, as far as it fits, and then reads only this copy, in another order."""
    cached = min(workload.samples // workload.workers, sum(workload.capacities))
    yield np.full(cached, SHARED)
    for samples in workload.first_worker():
        yield np.where(np.arange(len(samples)) % cached < workload.capacities[0], OWN_MEMORY, OWN_DISK)


def nopfs(workload: Workload) -> Storages:
    """Every worker caches the samples that it reads most in its fastest tier, and fetches others from their workers."""
    reads = Reads.from_order(workload.order)
    tiers = [
        Placement.from_reads(counts, first, workload.capacities).tier
        for counts, first in zip(reads.counts, reads.first, strict=True)
    ]
    # A sample is cached from its first read by a worker that caches it; until then only the shared file system has it.
    cached_from = np.where(np.array(tiers) >= 0, reads.first, NEVER_READ)
    nearest = np.where(cached_from[1:] < NEVER_READ, np.array(tiers[1:]), len(workload.capacities)).min(0)
    for epoch, samples in enumerate(workload.first_worker()):
        epoch_start = epoch * workload.samples
        local = cached_from[0, samples] < epoch_start
        remote = cached_from[1:, samples].min(0) < epoch_start
        own, other = OWN_MEMORY + tiers[0][samples], REMOTE_MEMORY + nearest[samples]
        yield np.where(local, own, np.where(remote, other, SHARED))


def _cache_first_epoch(workload: Workload, capacities: tuple[int, int]) -> Storages:
    """Every worker caches the samples of its first epoch, in memory, then on disk, as far as they fit."""
    rank, order = workload.order.reading_ranks(), workload.order.permutation(0)
    tier = np.full((workload.workers, workload.samples), -1)
    for worker in range(workload.workers):
        read = order[rank == worker][: sum(capacities)]
        tier[worker, read] = np.where(np.arange(len(read)) < capacities[0], 0, 1)
    others = tier[1:].max(0, initial=-1)
    for epoch, samples in enumerate(workload.first_worker()):
        local, remote = tier[0, samples], others[samples]
        later = np.where(local >= 0, OWN_MEMORY + local, np.where(remote >= 0, REMOTE_MEMORY + remote, SHARED))
        yield later if epoch else np.full(len(samples), SHARED)


POLICIES: dict[str, Callable[[Workload], Storages | None]] = {
    "StagingBuffer": staging_buffer,
    "DeepIO": deep_io,
    "ParallelStaging": parallel_staging,
    "LBANN": lbann,
    "LocalityAware": locality_aware,
    "NoPFS": nopfs,
}
