"""The order of reading: every sample once per epoch, dealt in blocks, the same in every process."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.common.errors import InputError
from data_pipeline.prefetch.stream import Stream


def test_the_order_of_an_epoch_is_the_permutation_named_by_seed_and_epoch():
    """The formula itself: a trained corrector must not depend on how its samples were read."""
    stream = Stream(50, 8, epochs=3, seed=7)
    for epoch in range(3):
        generator = torch.Generator().manual_seed(7 * 1_000_003 + epoch)
        expected = torch.randperm(50, generator=generator).tolist()
        assert stream.order(epoch).tolist() == expected
        assert np.concatenate([*Stream(50, 8, epoch + 1, 7).blocks(epoch=epoch)]).tolist() == expected


@given(
    count=st.integers(1, 80),
    batch_size=st.integers(1, 20),
    ranks=st.integers(1, 6),
    epochs=st.integers(1, 3),
    seed=st.integers(0, 9),
)
def test_the_ranks_share_every_batch_as_the_paper_says(count, batch_size, ranks, epochs, seed):
    try:
        stream = Stream(count, batch_size, epochs, seed, ranks)
    except InputError:
        return
    dealt = stream.dealt()
    blocks = [list(stream.blocks(rank)) for rank in range(ranks)]
    for epoch in range(epochs):
        order, seen = stream.order(epoch).tolist(), []
        assert sorted(order) == list(range(count))
        for step in range(stream.steps):
            batch = order[step * batch_size : (step + 1) * batch_size]
            parts = [blocks[rank][epoch * stream.steps + step].tolist() for rank in range(ranks)]
            assert [sample for part in parts for sample in part] == batch
            share = -(-len(batch) // ranks)
            assert [len(part) for part in parts] == [
                min(share, max(0, len(batch) - rank * share)) for rank in range(ranks)
            ]
            for rank, part in enumerate(parts):
                seen += [(sample, rank) for sample in part]
        assert seen == [(order[k], dealt[k]) for k in range(count)]
    assert len(blocks[0]) == epochs * stream.steps


def test_what_is_left_of_a_stream_is_its_end():
    stream = Stream(23, 5, epochs=3, seed=1, ranks=2)
    everything = [block.tolist() for block in stream.blocks(1)]
    assert [block.tolist() for block in stream.blocks(1, epoch=1, step=2)] == everything[stream.steps + 2 :]


def test_every_number_of_processes_takes_the_same_steps_and_none_is_always_without_work():
    assert Stream(50, 8).steps == 7
    assert Stream(50, 8, ranks=2).steps == 7
    assert Stream(50, 8, ranks=3).steps == 7
    assert [len(block) for block in Stream(50, 8, ranks=3).blocks(2)] == [2] * 6 + [0]  # two left, too few for three
    with pytest.raises(
        InputError, match=r"in batches of 3 leave some of 4 processes without work; make trainer\.batch_size"
    ):
        Stream(50, 3, ranks=4)


def test_an_ordered_stream_is_in_order():
    stream = Stream(7, 3, epochs=2, shuffled=False)
    assert [block.tolist() for block in stream.blocks()] == [[0, 1, 2], [3, 4, 5], [6]] * 2


@pytest.mark.parametrize("option", ["count", "batch_size", "epochs", "ranks"])
def test_a_stream_of_nothing_is_refused(option):
    with pytest.raises(InputError, match=f"{option} must be a whole number of at least 1, got 0"):
        Stream(**({"count": 4, "batch_size": 2} | {option: 0}))
