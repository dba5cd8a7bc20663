"""How published loaders choose from where to fetch: the policies that the simulator compares."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from data_pipeline.prefetch.order import NEVER_READ, Placement, Reads, SampleOrder

SHARED, MEMORY, DISK, REMOTE_MEMORY, REMOTE_DISK = range(5)
"""The shared file system; this worker's memory and disk; those of another worker."""


@dataclass(frozen=True)
class Case:
    """A data set of `samples` samples of `size` MB each, read by `workers` for `epochs` epochs; their room in MB."""

    samples: int
    size: float
    epochs: int
    workers: int = 4
    memory: float = 120_000
    disk: float = 900_000
    batch_size: int = 128
    seed: int = 0

    @property
    def stream(self) -> SampleOrder:
        """The order of reading."""
        return SampleOrder(self.samples, self.batch_size, self.epochs, self.seed, self.workers)

    @property
    def rooms(self) -> tuple[int, int]:
        """Samples that fit into the memory and onto the disk of a worker."""
        return int(self.memory // self.size), int(self.disk // self.size)

    def mine(self) -> Iterator[np.ndarray]:
        """Yield what the first worker reads, epoch by epoch."""
        stream, first = self.stream, self.stream.reading_ranks() == 0
        for epoch in range(self.epochs):
            yield stream.permutation(epoch)[first]


Sources = Iterator[np.ndarray]
"""From where the first worker fetches each of its samples, in order, epoch by epoch."""


def staging_buffer(case: Case) -> Sources:
    """Read ahead from the shared file system, keep nothing."""
    for samples in case.mine():
        yield np.full(len(samples), SHARED)


def deep_io(case: Case) -> Sources:
    """In the first epoch every worker keeps in memory what it reads; the others ask it for that later."""
    return _kept_at_first(case, (case.rooms[0], 0))


def lbann(case: Case) -> Sources | None:
    """As DeepIO, but for data sets only that fit into the memory of all workers."""
    return deep_io(case) if case.samples <= case.workers * case.rooms[0] else None


def locality_aware(case: Case) -> Sources:
    """Every worker keeps what it reads first, and batches are dealt anew so that it gets what it keeps."""
    for sources in _kept_at_first(case, case.rooms):
        yield np.select([sources == REMOTE_MEMORY, sources == REMOTE_DISK], [MEMORY, DISK], sources)


def parallel_staging(case: Case) -> Sources:
    """Every worker first copies its share, as much as fits, and then reads nothing else: another order of samples."""
    held = min(case.samples // case.workers, sum(case.rooms))
    yield np.full(held, SHARED)
    for samples in case.mine():
        yield np.where(np.arange(len(samples)) % held < case.rooms[0], MEMORY, DISK)


def nopfs(case: Case) -> Sources:
    """What a worker will read most is kept in its fastest tier; what others keep is asked of them."""
    reads = Reads.from_order(case.stream)
    kept = [
        Placement.from_reads(counts, first, case.rooms).tier
        for counts, first in zip(reads.counts, reads.first, strict=True)
    ]
    # When a sample is first read by one who keeps it; until then it is on the shared file system only.
    held = np.where(np.array(kept) >= 0, reads.first, NEVER_READ)
    nearest = np.where(held[1:] < NEVER_READ, np.array(kept[1:]), len(case.rooms)).min(0)
    for epoch, samples in enumerate(case.mine()):
        begun = epoch * case.samples
        local = held[0, samples] < begun
        remote = held[1:, samples].min(0) < begun
        own, other = MEMORY + kept[0][samples], REMOTE_MEMORY + nearest[samples]
        yield np.where(local, own, np.where(remote, other, SHARED))


def _kept_at_first(case: Case, rooms: tuple[int, int]) -> Sources:
    """What a worker reads in the first epoch it keeps, in memory, then on disk, while there is room."""
    rank, order = case.stream.reading_ranks(), case.stream.permutation(0)
    tier = np.full((case.workers, case.samples), -1)
    for worker in range(case.workers):
        read = order[rank == worker][: sum(rooms)]
        tier[worker, read] = np.where(np.arange(len(read)) < rooms[0], 0, 1)
    others = tier[1:].max(0, initial=-1)
    for epoch, samples in enumerate(case.mine()):
        local, remote = tier[0, samples], others[samples]
        later = np.where(local >= 0, MEMORY + local, np.where(remote >= 0, REMOTE_MEMORY + remote, SHARED))
        yield later if epoch else np.full(len(samples), SHARED)


POLICIES: dict[str, Callable[[Case], Sources | None]] = {
    "StagingBuffer": staging_buffer,
    "DeepIO": deep_io,
    "ParallelStaging": parallel_staging,
    "LBANN": lbann,
    "LocalityAware": locality_aware,
    "NoPFS": nopfs,
}
