"""Memory is lent again when nobody can see it any more, and not before."""

import gc
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from data_pipeline.sample_reader import Buffers

SHAPE = (3, 4, 5)


def address(array):
    return array.__array_interface__["data"][0]


def test_memory_is_lent_again():
    buffers = Buffers()
    first = buffers.empty(SHAPE)
    assert first.shape == SHAPE
    assert first.dtype == np.float32
    assert first.flags.c_contiguous
    place = address(first)
    del first
    again = buffers.empty((60,))
    assert address(again) == place
    other = buffers.empty((60,))
    assert not np.shares_memory(again, other)


@pytest.mark.parametrize(
    "hold",
    [
        lambda array: array[1:],
        lambda array: array[0].T.reshape(-1)[::2],
        lambda array: array.view(np.uint8),
        lambda array: memoryview(array),
        lambda array: torch.from_numpy(array),
        lambda array: torch.from_numpy(array)[1, 2],
        lambda array: torch.from_numpy(array)[1].numpy()[1:],
        lambda array: torch.from_numpy(array[1])[None].expand(4, -1, -1),
    ],
)
def test_what_is_held_by_any_view_is_not_lent_again(hold):
    buffers = Buffers()
    held = hold(buffers.empty(SHAPE))
    gc.collect()
    others = [buffers.empty(SHAPE) for _ in range(3)]
    assert not any(np.shares_memory(np.asarray(held), other) for other in others)
    del others, held
    gc.collect()
    assert len(buffers._free) == 2


def test_no_more_is_kept_than_was_said():
    buffers = Buffers(idle=1)
    arrays = [buffers.empty(SHAPE) for _ in range(4)]
    del arrays
    assert len(buffers._free) == 1


def test_another_size_is_fresh_memory():
    buffers = Buffers()
    buffers.empty(SHAPE)
    assert buffers.empty((7, 2)).shape == (7, 2)


def test_threads_never_share_memory():
    buffers = Buffers()

    def fill(value):
        array = buffers.empty((50, 50))
        array[:] = value
        return bool((array == value).all()) and float(torch.from_numpy(array).sum()) == 2500.0 * value

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(fill, range(2000)))


def test_it_travels_without_its_memory():
    buffers = Buffers(idle=3)
    buffers.empty(SHAPE)
    assert len(buffers._free) == 1
    other = pickle.loads(pickle.dumps(buffers))
    assert (other._idle, len(other._free)) == (3, 0)
