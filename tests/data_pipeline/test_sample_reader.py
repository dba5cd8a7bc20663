"""Buffers: memory is reused when no array refers to it any more, and not before."""

import gc
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from data_pipeline.samples.sample_reader import Buffers

SHAPE = (3, 4, 5)


def address(array):
    return array.__array_interface__["data"][0]


@pytest.mark.parametrize(
    "hold",
    [
        lambda array: array[1:],
        lambda array: memoryview(array),
        lambda array: torch.from_numpy(array)[1].numpy()[1:],
        lambda array: torch.from_numpy(array[1])[None].expand(4, -1, -1),
    ],
)
def test_memory_with_a_view_is_not_reused(hold):
    buffers = Buffers()
    held = hold(buffers.empty(SHAPE))
    gc.collect()
    others = [buffers.empty(SHAPE) for _ in range(3)]
    assert not any(np.shares_memory(np.asarray(held), other) for other in others)
    del others, held
    gc.collect()
    assert len(buffers._free) == 2


def test_threads_never_share_memory():
    buffers = Buffers()

    def fill(value):
        array = buffers.empty((50, 50))
        array[:] = value
        return bool((array == value).all()) and float(torch.from_numpy(array).sum()) == 2500.0 * value

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(fill, range(2000)))


def test_buffers_keep_few_arrays_and_are_pickled_without_them():
    buffers = Buffers(max_free=3)
    arrays = [buffers.empty(SHAPE) for _ in range(5)]
    del arrays
    assert len(buffers._free) == 3
    other = pickle.loads(pickle.dumps(buffers))
    assert (other._max_free, len(other._free)) == (3, 0)
