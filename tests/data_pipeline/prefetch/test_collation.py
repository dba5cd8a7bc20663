"""Batches equal those of torch's default_collate, and their memory is reused only when no tensor refers to it."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch.utils.data import default_collate

from data_pipeline.prefetch.staging import KEPT_BATCHES, Collator
from data_pipeline.sample import Sample


def samples(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    normal = lambda *shape: torch.randn(shape, generator=generator)  # noqa: E731
    static = normal(2, 5, 6)
    return [
        Sample(
            normal(3, 4, 5, 6), normal(4, 5, 6) > 0, static, normal(1, 5, 6), torch.tensor(1000 * k), torch.tensor(24)
        )
        for k in range(count)
    ]


def test_batches_are_those_of_default_collate():
    collator = Collator()
    for count in (1, 4, 3):
        one = samples(count, count)
        for name, ours, theirs in zip(Sample._fields, collator(one, count), default_collate(one), strict=True):
            assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), name
            assert torch.equal(ours, theirs), name
            ours.zero_()  # shares no memory with the samples
        assert all(map(torch.equal, default_collate(one), default_collate(samples(count, count))))


def test_batches_in_use_keep_their_memory():
    collator, parts = Collator(), [samples(2, k) for k in range(2 * KEPT_BATCHES)]
    batches = [collator(part, 2) for part in parts]
    addresses = {batch.ensemble.data_ptr() for batch in batches}
    assert len(addresses) == len(batches)
    for batch, part in zip(batches, parts, strict=True):
        assert torch.equal(batch.ensemble, default_collate(part).ensemble)
    view = batches[0].ensemble[1, 0]
    expected = view.clone()
    del batches, batch
    later = [collator(samples(2, 9), 2) for _ in range(2 * KEPT_BATCHES)]
    assert torch.equal(view, expected)
    assert addresses & {batch.ensemble.data_ptr() for batch in later}


def test_samples_of_several_shapes_are_refused():
    small, large = samples(1)[0], samples(1)[0]
    large = large._replace(target=large.target.expand(2, -1, -1))
    for pair in ([small, large], [large, small]):
        with pytest.raises(ValueError, match="a sample has a field"):
            Collator()(pair, 2)


def test_a_copy_starts_no_threads():
    def new_threads(work):
        """Return how many threads `work` starts in a new thread, which has no threads of PyTorch yet."""

        def count():
            before = set(Path("/proc/self/task").iterdir())
            work()
            return len(set(Path("/proc/self/task").iterdir()) - before)

        with ThreadPoolExecutor(1) as pool:
            return pool.submit(count).result()

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        large = samples(1)[0]._replace(ensemble=torch.ones(2, 3, 361, 720))
        assert new_threads(lambda: torch.stack([large.ensemble])) == 1
        assert new_threads(lambda: Collator()([large], 1)) == 0
    finally:
        torch.set_num_threads(before)
