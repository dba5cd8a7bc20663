"""The order of reading (every sample once per epoch, divided in blocks among ranks) and the placement it implies."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipeline.common.errors import InputError
from data_pipeline.prefetch.order import NEVER_READ, Placement, Reads, SampleOrder, compute_placements

orders = st.builds(
    SampleOrder,
    count=st.integers(1, 60),
    batch_size=st.integers(6, 20),
    epochs=st.integers(1, 5),
    seed=st.integers(0, 9),
    ranks=st.integers(1, 1),
) | st.builds(
    SampleOrder,
    count=st.integers(30, 60),
    batch_size=st.sampled_from([6, 12, 20]),
    epochs=st.integers(1, 5),
    seed=st.integers(0, 9),
    ranks=st.integers(2, 3),
)


def test_seed_and_epoch_determine_the_permutation():
    """The formula itself: a trained corrector must not depend on how its samples were read."""
    order = SampleOrder(50, 8, epochs=3, seed=7)
    for epoch in range(3):
        generator = torch.Generator().manual_seed(7 * 1_000_003 + epoch)
        expected = torch.randperm(50, generator=generator).tolist()
        assert order.permutation(epoch).tolist() == expected
        assert np.concatenate([*SampleOrder(50, 8, epoch + 1, 7).batch_indices(epoch=epoch)]).tolist() == expected


@settings(max_examples=50)
@given(
    count=st.integers(1, 80),
    batch_size=st.integers(1, 20),
    ranks=st.integers(1, 6),
    epochs=st.integers(1, 3),
    seed=st.integers(0, 9),
)
def test_ranks_share_every_batch_as_in_the_paper(count, batch_size, ranks, epochs, seed):
    try:
        order = SampleOrder(count, batch_size, epochs, seed, ranks)
    except InputError:
        return
    reading_ranks = order.reading_ranks()
    batches = [list(order.batch_indices(rank)) for rank in range(ranks)]
    for epoch in range(epochs):
        samples, seen = order.permutation(epoch).tolist(), []
        assert sorted(samples) == list(range(count))
        for step in range(order.steps):
            batch = samples[step * batch_size : (step + 1) * batch_size]
            parts = [batches[rank][epoch * order.steps + step].tolist() for rank in range(ranks)]
            assert [sample for part in parts for sample in part] == batch
            share = -(-len(batch) // ranks)
            assert [len(part) for part in parts] == [
                min(share, max(0, len(batch) - rank * share)) for rank in range(ranks)
            ]
            for rank, part in enumerate(parts):
                seen += [(sample, rank) for sample in part]
        assert seen == [(samples[k], reading_ranks[k]) for k in range(count)]
    assert len(batches[0]) == epochs * order.steps


def test_all_ranks_take_the_same_number_of_steps_and_none_is_always_without_samples():
    assert SampleOrder(50, 8).steps == 7
    assert SampleOrder(50, 8, ranks=2).steps == 7
    assert SampleOrder(50, 8, ranks=3).steps == 7
    # The last batch has two samples, too few for three ranks.
    assert [len(batch) for batch in SampleOrder(50, 8, ranks=3).batch_indices(2)] == [2] * 6 + [0]
    with pytest.raises(InputError, match=r"leave some of 4 processes without work; make trainer\.batch_size"):
        SampleOrder(50, 3, ranks=4)
    for option in ("count", "batch_size", "epochs", "ranks"):
        with pytest.raises(InputError, match=f"{option} must be a whole number of at least 1, got 0"):
            SampleOrder(**({"count": 4, "batch_size": 2} | {option: 0}))


@settings(max_examples=40)
@given(orders)
def test_reads_agree_with_a_walk_through_all_batches(order):
    reads = Reads.from_order(order)
    for rank in range(order.ranks):
        samples = [int(sample) for batch in order.batch_indices(rank) for sample in batch]
        counts = Counter(samples)
        assert reads.counts[rank].tolist() == [counts[k] for k in range(order.count)]
        assert [k for k in np.argsort(reads.first[rank], kind="stable") if counts[k]] == list(dict.fromkeys(samples))
        assert all((reads.first[rank, k] == NEVER_READ) == (counts[k] == 0) for k in range(order.count))


@settings(max_examples=40)
@given(orders, st.integers(0, 30), st.integers(0, 30))
def test_the_fastest_tier_holds_the_samples_that_are_read_most(order, memory, disk):
    reads = Reads.from_order(order)
    for rank, placement in enumerate(compute_placements(order, [memory, disk])):
        counts, tiers = reads.counts[rank], [np.flatnonzero(placement.tier == tier) for tier in (0, 1, -1)]
        read = int((counts > 0).sum())
        assert len(tiers[0]) == min(memory, read)
        assert len(tiers[1]) == min(disk, read - len(tiers[0]))
        for faster, slower in ((0, 1), (0, 2), (1, 2)):
            if len(tiers[faster]) and len(tiers[slower]):
                assert counts[tiers[faster]].min() >= counts[tiers[slower]].max()
        assert not len(tiers[2]) or len(tiers[0]) + len(tiers[1]) == memory + disk or not counts[tiers[2]].any()
        assert sorted(placement.fetch_order.tolist()) == sorted([*tiers[0], *tiers[1]])
        assert np.all(np.diff(reads.first[rank][placement.fetch_order]) > 0)
        assert all(placement.position[sample] == position for position, sample in enumerate(placement.fetch_order))
        assert (placement.position >= 0).sum() == len(placement.fetch_order)


def test_among_equal_counts_the_first_read_decides():
    placement = Placement.from_reads(np.array([2, 2, 3, 2]), np.array([5, 1, 9, 0]), [1, 2])
    assert placement.tier.tolist() == [-1, 1, 0, 1]
    assert placement.fetch_order.tolist() == [3, 1, 2]
