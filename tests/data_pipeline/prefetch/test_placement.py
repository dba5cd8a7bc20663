"""Which rank keeps what: checked by walking through the streams one access at a time."""

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.prefetch.placement import NEVER, Placement, Reads, placements
from data_pipeline.prefetch.stream import Stream

streams = st.builds(
    Stream,
    count=st.integers(1, 60),
    batch_size=st.integers(6, 20),
    epochs=st.integers(1, 5),
    seed=st.integers(0, 9),
    ranks=st.integers(1, 1),
) | st.builds(
    Stream,
    count=st.integers(30, 60),
    batch_size=st.sampled_from([6, 12, 20]),
    epochs=st.integers(1, 5),
    seed=st.integers(0, 9),
    ranks=st.integers(2, 3),
)


@given(streams)
def test_reads_are_those_of_the_stream(stream):
    reads = Reads.of(stream)
    for rank in range(stream.ranks):
        order = [int(sample) for block in stream.blocks(rank) for sample in block]
        counts = Counter(order)
        assert reads.counts[rank].tolist() == [counts[k] for k in range(stream.count)]
        assert [k for k in np.argsort(reads.first[rank], kind="stable") if counts[k]] == list(dict.fromkeys(order))
        assert all((reads.first[rank, k] == NEVER) == (counts[k] == 0) for k in range(stream.count))


@given(streams, st.integers(0, 30), st.integers(0, 30))
def test_the_fastest_tier_holds_what_is_read_most(stream, memory, disk):
    reads = Reads.of(stream)
    for rank, placement in enumerate(placements(stream, [memory, disk])):
        counts, tiers = reads.counts[rank], [np.flatnonzero(placement.tier == tier) for tier in (0, 1, -1)]
        read = int((counts > 0).sum())
        assert len(tiers[0]) == min(memory, read)
        assert len(tiers[1]) == min(disk, read - len(tiers[0]))
        for faster, slower in ((0, 1), (0, 2), (1, 2)):
            if len(tiers[faster]) and len(tiers[slower]):
                assert counts[tiers[faster]].min() >= counts[tiers[slower]].max()
        assert not len(tiers[2]) or len(tiers[0]) + len(tiers[1]) == memory + disk or not counts[tiers[2]].any()
        assert sorted(placement.order.tolist()) == sorted([*tiers[0], *tiers[1]])
        assert np.all(np.diff(reads.first[rank][placement.order]) > 0)
        assert all(placement.place[sample] == place for place, sample in enumerate(placement.order))
        assert (placement.place >= 0).sum() == len(placement.order)


def test_of_equals_the_first_ones_are_kept():
    placement = Placement.of(np.array([2, 2, 3, 2]), np.array([5, 1, 9, 0]), [1, 2])
    assert placement.tier.tolist() == [-1, 1, 0, 1]
    assert placement.order.tolist() == [3, 1, 2]
