"""The order in which a run reads its samples, and the samples that each rank caches.

The seed determines both, so every rank computes them for all ranks without exchanging messages. The placement follows
NoPFS (Dryden et al. 2021, doi:10.1145/3458817.3476181): the samples that a rank reads most go to its fastest tier.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from data_pipeline.common.checks import check_integer
from data_pipeline.common.errors import InputError

NEVER_READ = np.iinfo(np.int64).max


@dataclass(frozen=True)
class SampleOrder:
    """One permutation of `count` samples per epoch, cut into batches; each batch is divided among `ranks`.

    Seed and epoch determine the permutation. Batch b of an epoch holds positions [bB, (b + 1)B) of the permutation;
    rank i of N takes the i-th block of ceil(size / N) positions. If the last batch is too small for all ranks, some
    ranks get no sample but take the step with the others. Without `shuffle`, every epoch has the order of the data set.

    >>> [batch.tolist() for batch in SampleOrder(5, batch_size=2, shuffle=False).batch_indices()]
    [[0, 1], [2, 3], [4]]
    """

    count: int
    batch_size: int
    epochs: int = 1
    seed: int = 0
    ranks: int = 1
    shuffle: bool = True

    def __post_init__(self) -> None:
        for name in ("count", "batch_size", "epochs", "ranks"):
            check_integer(name, getattr(self, name), 1)
        check_integer("seed", self.seed, 0)
        size = min(self.batch_size, self.count)
        if (self.ranks - 1) * -(-size // self.ranks) >= size:
            raise InputError(
                f"{self.count} samples in batches of {size} leave some of {self.ranks} processes without work; "
                "make trainer.batch_size a multiple of the number of processes, or use fewer processes"
            )

    @property
    def steps(self) -> int:
        """Number of batches in an epoch."""
        return -(-self.count // self.batch_size)

    def permutation(self, epoch: int) -> np.ndarray:
        """Return the number of the sample at each position of an epoch, (count,)."""
        if not self.shuffle:
            return np.arange(self.count)
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        return torch.randperm(self.count, generator=generator).numpy()

    def reading_ranks(self) -> np.ndarray:
        """Return the rank that reads each position of an epoch, (count,); it is the same in every epoch."""
        positions = np.arange(self.count)
        start = positions - positions % self.batch_size
        size = np.minimum(self.batch_size, self.count - start)
        return (positions - start) // -(-size // self.ranks)

    def batch_indices(self, rank: int = 0, epoch: int = 0, step: int = 0) -> Iterator[np.ndarray]:
        """Yield the samples of every batch of `rank`, from a step of an epoch to the end of the last epoch."""
        for later in range(epoch, self.epochs):
            order = self.permutation(later)
            for index in range(step if later == epoch else 0, self.steps):
                batch = order[index * self.batch_size : (index + 1) * self.batch_size]
                share = -(-len(batch) // self.ranks)
                yield batch[rank * share : (rank + 1) * share]


@dataclass(frozen=True)
class Reads:
    """How often, and when first, each of N ranks reads each of F samples in all epochs; both arrays are (N, F)."""

    counts: np.ndarray
    """Number of reads."""
    first: np.ndarray
    """Epoch times F plus position in the epoch; `NEVER_READ` where the rank does not read the sample."""

    @classmethod
    def from_order(cls, order: SampleOrder) -> Reads:
        """Count the reads of all epochs."""
        counts = np.zeros((order.ranks, order.count), np.int32)
        first = np.full((order.ranks, order.count), NEVER_READ)
        rank, positions = order.reading_ranks(), np.arange(order.count)
        for epoch in range(order.epochs):
            sample = order.permutation(epoch)
            # An epoch reads each sample once, so no pair (rank, sample) occurs twice in this indexed addition.
            counts[rank, sample] += 1
            first[rank, sample] = np.minimum(first[rank, sample], epoch * order.count + positions)
        return cls(counts, first)


@dataclass(frozen=True)
class Placement:
    """The samples that one rank caches."""

    tier: np.ndarray
    """(F,) index of the tier that caches each sample, 0 for the fastest tier; -1 if the sample is not cached."""
    fetch_order: np.ndarray
    """The cached samples in the order of their first read; they are fetched in this order."""
    position: np.ndarray
    """(F,) position of each sample in `fetch_order`; -1 if the sample is not cached."""

    @classmethod
    def from_reads(cls, counts: np.ndarray, first: np.ndarray, capacities: Sequence[int]) -> Placement:
        """Fill tiers that hold `capacities` samples, the fastest tier first.

        Samples that are read more often come first, then samples that are read earlier.
        """
        ranking = np.lexsort((first, -counts))
        ranking = ranking[counts[ranking] > 0]
        tier = np.full(len(counts), -1, np.int8)
        begin = 0
        for index, capacity in enumerate(capacities):
            tier[ranking[begin : begin + capacity]] = index
            begin += capacity
        cached = np.flatnonzero(tier >= 0)
        fetch_order = cached[np.argsort(first[cached], kind="stable")]
        position = np.full(len(counts), -1, np.int64)
        position[fetch_order] = np.arange(len(fetch_order))
        return cls(tier, fetch_order, position)


def compute_placements(order: SampleOrder, capacities: Sequence[int]) -> list[Placement]:
    """Return the placement of every rank; all ranks have the same capacities."""
    reads = Reads.from_order(order)
    return [Placement.from_reads(reads.counts[rank], reads.first[rank], capacities) for rank in range(order.ranks)]
