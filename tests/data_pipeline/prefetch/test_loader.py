"""Batches follow the order for any number of threads; loaders stop, raise errors and continue correctly."""

import threading
import time
import traceback

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import eventually, running_loaders

from data_pipeline.common.errors import InputError
from data_pipeline.prefetch.budget import Budget
from data_pipeline.prefetch.disk import SAMPLE_OVERHEAD
from data_pipeline.prefetch.loader import Prefetcher
from data_pipeline.prefetch.order import SampleOrder
from data_pipeline.prefetch.staging import ClosedError, Collator
from data_pipeline.prefetch.tiers import Tiers
from data_pipeline.samples import sample_reader
from data_pipeline.samples.sample_reader import Buffers


def numbers(batch):
    """Return the sample numbers of a batch."""
    return (batch.init_time - 10_000_000_000).tolist()


def loader(data, order, rank=0, **budget):
    tiers = Tiers(data, Budget(**budget), order, rank=rank)
    return Prefetcher(tiers, order, rank)


@settings(max_examples=40)
@given(
    count=st.integers(1, 30),
    batch_size=st.integers(1, 8),
    epochs=st.integers(1, 3),
    slots=st.integers(1, 9),
    memory=st.integers(0, 30),
    threads=st.integers(1, 4),
    ranks=st.integers(1, 3),
)
def test_batches_follow_the_order(numbered, count, batch_size, epochs, slots, memory, threads, ranks):
    data = numbered(count, cells=3)
    if (ranks - 1) * -(-min(batch_size, count) // ranks) >= min(batch_size, count):
        ranks = 1
    order, rank = SampleOrder(count, batch_size, epochs, seed=4, ranks=ranks), ranks - 1
    one = data.nbytes + SAMPLE_OVERHEAD
    with loader(data, order, rank, staging_bytes=slots * one, memory_bytes=memory * one, threads=threads) as batches:
        found = []
        for epoch in range(epochs):
            batches.set_epoch(epoch)
            found += list(batches)
    for batch, indices in zip(found, order.batch_indices(rank), strict=True):
        # A rank without samples in a step gets one sample without its truth.
        assert numbers(batch) == (indices.tolist() or [0])
        k = torch.tensor(numbers(batch), dtype=torch.float32)
        assert torch.equal(batch.ensemble, k[:, None, None, None, None].expand(-1, 2, 1, 1, 3))
        truth = -k if len(indices) else torch.full_like(k, torch.nan)
        torch.testing.assert_close(batch.target[:, 0, 0], truth[:, None].expand(-1, 3), rtol=0, atol=0, equal_nan=True)
        assert batch.static.shape == (len(k), 2, 1, 3)


@settings(max_examples=15)
@given(st.integers(0, 2), st.integers(0, 4))
def test_a_resumed_epoch_has_exactly_the_remaining_batches(numbered, epoch, step):
    data, order = numbered(18, cells=3), SampleOrder(18, 4, epochs=3, seed=2)
    with loader(data, order) as first:
        first.set_epoch(epoch)
        for index, _ in enumerate(first):
            if index + 1 >= step:
                break
        state = first.state_dict() if step else {**first.state_dict(), "step": 0}
    with loader(numbered(18, cells=3), order) as second:
        second.load_state_dict(state)
        second.set_epoch(epoch)  # a trainer may call it again; it has no effect
        rest = [numbers(batch) for batch in second]
        expected = [indices.tolist() for indices in order.batch_indices(epoch=epoch)]
        assert rest == expected[step : order.steps]
        if epoch < 2:
            second.set_epoch(epoch + 1)
            assert [numbers(batch) for batch in second] == expected[order.steps : 2 * order.steps]


@settings(max_examples=24)
@given(left_after=st.integers(1, 4), together=st.integers(1, 3), epoch=st.integers(0, 1), asked=st.booleans())
def test_an_iteration_that_was_left_does_not_disturb_the_next_one(numbered, left_after, together, epoch, asked):
    """The first one may end at any time: a loop that an exception has left lives as long as the traceback."""
    order = SampleOrder(28, 4, epochs=2, seed=5)
    with loader(numbered(28, cells=3), order) as batches:
        first = iter(batches)
        found = [numbers(next(first)) for _ in range(left_after)]
        batches.set_epoch(epoch)
        second = iter(batches)
        after = [numbers(next(second)) for _ in range(min(together, order.steps - left_after))]
        if asked:
            with pytest.raises(ClosedError, match="a later iteration reads on from here"):
                next(first)
        del first
        after += [numbers(batch) for batch in second]
        expected = [indices.tolist() for indices in order.batch_indices(epoch=epoch)][: order.steps]
        assert after == expected if epoch else found + after == expected


def test_a_state_of_another_order_is_refused(numbered):
    with loader(numbered(20), SampleOrder(20, 4, seed=3)) as batches:
        state = batches.state_dict()
        assert state == {"epoch": 0, "step": 0, "seed": 3, "count": 20, "batch_size": 4}
        for name in ("seed", "count", "batch_size"):
            with pytest.raises(InputError, match=f"made with {name} 99, this run has {state[name]};"):
                batches.load_state_dict(state | {name: 99})


def test_the_next_epoch_is_read_between_epochs(numbered):
    data, order = numbered(20), SampleOrder(20, 5, epochs=2)
    with loader(data, order, memory_bytes=0, staging_bytes=8 * (data.nbytes + SAMPLE_OVERHEAD)) as batches:
        iterator = iter(batches)
        for _ in range(4):
            next(iterator)  # like Lightning, which never reaches StopIteration
        # One finished batch of the next epoch, and eight samples in the buffer.
        assert eventually(lambda: sum(data.reads.values()) == 20 + 5 + 8)
        time.sleep(0.05)
        assert sum(data.reads.values()) == 20 + 5 + 8
        batches.set_epoch(1)
        iterator = iter(batches)
        assert [numbers(batch) for batch in iterator] == [b.tolist() for b in order.batch_indices(epoch=1)]
        assert sum(data.reads.values()) == 40


def test_the_buffer_grows_while_samples_leave_it(numbered):
    data = numbered(200)
    one = data.nbytes + SAMPLE_OVERHEAD
    with loader(data, SampleOrder(200, 1), memory_bytes=0, staging_bytes=12 * one, threads=3) as batches:
        for step, _ in enumerate(batches, 1):
            # Another batch is being made. Three threads have six slots at first, and one more for every four samples.
            taken = step + 1
            expected = min(taken + min(6 + taken // 4, 12), 200)
            assert sum(data.reads.values()) <= expected
            if step % 10 == 1:
                assert eventually(lambda count=expected: sum(data.reads.values()) == count)


@pytest.mark.parametrize("batch_size", [1, 5])
def test_no_more_memory_is_used_than_for_the_buffer_and_one_sample(numbered, monkeypatch, batch_size):
    class Reused(numbered):
        """Reuses the memory of samples that the loader has released, as `ForecastDataset` does."""

        buffers = Buffers(max_free=100)

        def __getitem__(self, index):
            ensemble = torch.from_numpy(self.buffers.empty((2, 1, 1, self.cells)))
            return super().__getitem__(index)._replace(ensemble=ensemble.fill_(index))

    allocated = []

    def allocate(*arguments):
        allocated.append(arguments)
        return memory(*arguments)

    memory = sample_reader._Memory
    monkeypatch.setattr(sample_reader, "_Memory", allocate)
    data, order = Reused(120), SampleOrder(120, batch_size)
    monkeypatch.setattr(Collator, "_empty", lambda self, name, count, one: torch.empty((count, *one.shape)).to(one))
    with loader(data, order, memory_bytes=0, staging_bytes=9 * (data.nbytes + SAMPLE_OVERHEAD)) as batches:
        for batch, indices in zip(batches, order.batch_indices(), strict=True):
            assert batch.ensemble[:, 0, 0, 0, 0].tolist() == indices.tolist()
    assert 4 <= len(allocated) <= 9 + 1


def test_idle_threads_fill_the_tiers(numbered):
    data = numbered(60)
    one = data.nbytes + SAMPLE_OVERHEAD
    with loader(data, SampleOrder(60, 4, epochs=2), memory_bytes=50 * one, staging_bytes=one) as batches:
        iterator = iter(batches)
        next(iterator)
        assert eventually(lambda: sum(data.reads.values()) >= 50)
        assert max(data.reads.values()) == 1


def test_errors_of_threads_reach_the_loop_with_their_traceback(numbered, monkeypatch):
    data, order = numbered(20, broken={SampleOrder(20, 4).permutation(0)[9]}), SampleOrder(20, 4)
    batches = loader(data, order, threads=3)
    iterator = iter(batches)
    assert [numbers(next(iterator)) for _ in range(2)] == [indices.tolist() for indices in order.batch_indices()][:2]
    with pytest.raises(OSError, match="cannot be read") as caught:
        next(iterator)
    assert "__getitem__" in [frame.name for frame in traceback.extract_tb(caught.tb)]
    batches.close()
    batches = loader(numbered(20), SampleOrder(20, 4))
    monkeypatch.setattr(batches._tiers, "write_to_disk", lambda index, sample: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        list(batches)


def test_leaving_the_loop_early_stops_the_threads(numbered):
    data = numbered(10_000, seconds=0.001)
    batches = loader(data, SampleOrder(10_000, 4), memory_bytes=0)
    for step, _ in enumerate(batches):
        if step == 3:
            break
    assert eventually(lambda: not running_loaders())
    assert sum(data.reads.values()) < 1000


def test_threads_end_after_the_last_batch(numbered, monkeypatch):
    """Also if the only thread that fetches finds no more samples when the last batch is already in use."""
    written = threading.Event()
    batches = loader(numbered(6), SampleOrder(6, 1), memory_bytes=0, threads=1)
    monkeypatch.setattr(batches._tiers, "write_to_disk", lambda index, sample: index != last or written.wait())
    last = SampleOrder(6, 1).permutation(0)[-1]
    for step, _ in enumerate(batches, 1):
        if step < 4:
            time.sleep(0.02)  # The thread finds the buffer full, and no tier to fill.
    time.sleep(0.02)
    written.set()
    assert eventually(lambda: not running_loaders())


def test_closing_ends_a_waiting_loop(numbered):
    batches = loader(numbered(20, seconds=0.5), SampleOrder(20, 10), threads=1)
    threading.Timer(0.1, batches.close).start()
    with pytest.raises(ClosedError):  # and not a batch after the timeout
        next(iter(batches))


def test_without_shuffling_every_epoch_is_the_same(numbered):
    with loader(numbered(5), SampleOrder(5, 2, shuffle=False)) as batches:
        for epoch in (0, 1, 5):
            batches.set_epoch(epoch)
            assert [numbers(batch) for batch in batches] == [[0, 1], [2, 3], [4]]


def test_a_staging_buffer_smaller_than_a_sample_is_refused(numbered):
    data = numbered(5)
    with pytest.raises(InputError, match=r"staging_bytes gives 10 bytes to .* have \d+ bytes each; set it"):
        loader(data, SampleOrder(5, 2), staging_bytes=10)
    with pytest.raises(ValueError, match="the order is for 6 samples, the data set has 5"):
        Prefetcher(Tiers(data, Budget()), SampleOrder(6, 2))


def test_pinned_batches_are_in_pinned_memory(numbered, monkeypatch):
    pinned, empty = [], torch.empty

    def allocate(*shape, pin_memory=False, **options):
        if pin_memory:
            pinned.append(shape)
        return empty(*shape, **options)

    monkeypatch.setattr(torch, "empty", allocate)
    for pin in (False, True):
        with loader(numbered(10, cells=3), SampleOrder(10, 4), staging_bytes=10_000) as batches:
            batches.pin = pin
            assert sum(len(batch.target) for batch in batches) == 10
        assert bool(pinned) == pin
    assert len(pinned) == 6 * len(batches)
