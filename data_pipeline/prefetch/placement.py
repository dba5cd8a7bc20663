"""Placement: which samples each rank keeps, and in which tier.

Everything follows from the stream and the capacities, so every rank computes the placement of all of them and no
message is needed. The assignment is that of NoPFS (Dryden et al. 2021, doi:10.1145/3458817.3476181): what a rank reads
most goes to its fastest tier.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from data_pipeline.prefetch.stream import Stream

NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Reads:
    """How often each of N ranks reads each of F samples in all epochs, and when for the first time; both (N, F)."""

    counts: np.ndarray
    """Number of reads."""
    first: np.ndarray
    """Epoch times F plus position in the epoch; NEVER where the rank does not read the sample."""

    @classmethod
    def of(cls, stream: Stream) -> Reads:
        """Walk through the whole stream."""
        counts = np.zeros((stream.ranks, stream.count), np.int32)
        first = np.full((stream.ranks, stream.count), NEVER)
        rank, positions = stream.dealt(), np.arange(stream.count)
        for epoch in range(stream.epochs):
            sample = stream.order(epoch)
            # A sample comes once in an epoch, so no pair (rank, sample) comes twice in this addition.
            counts[rank, sample] += 1
            first[rank, sample] = np.minimum(first[rank, sample], epoch * stream.count + positions)
        return cls(counts, first)


@dataclass(frozen=True)
class Placement:
    """What one rank keeps."""

    tier: np.ndarray
    """(F,) index of the tier that shall hold a sample, fastest first; -1 for none."""
    order: np.ndarray
    """The samples to be kept, in the order of their first read: the order in which to fetch them."""
    place: np.ndarray
    """(F,) where a sample stands in `order`; -1 for none."""

    @classmethod
    def of(cls, counts: np.ndarray, first: np.ndarray, capacities: Sequence[int]) -> Placement:
        """Fill tiers of `capacities` samples, fastest first, with what is read most (of equals, what is read first)."""
        ranking = np.lexsort((first, -counts))
        ranking = ranking[counts[ranking] > 0]
        tier = np.full(len(counts), -1, np.int8)
        begin = 0
        for index, capacity in enumerate(capacities):
            tier[ranking[begin : begin + capacity]] = index
            begin += capacity
        kept = np.flatnonzero(tier >= 0)
        order = kept[np.argsort(first[kept], kind="stable")]
        place = np.full(len(counts), -1, np.int64)
        place[order] = np.arange(len(order))
        return cls(tier, order, place)


def placements(stream: Stream, capacities: Sequence[int]) -> list[Placement]:
    """Return the placement of every rank, all with the same capacities."""
    reads = Reads.of(stream)
    return [Placement.of(reads.counts[rank], reads.first[rank], capacities) for rank in range(stream.ranks)]
