"""Parts of samples: buffers whose memory is reused when no array refers to it any more, and pseudo-members."""

import gc
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from data_pipeline.samples.pseudo_members import pseudo_members
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
    assert buffers.empty((2, 2)).shape == (2, 2), "memory of another size is not taken"
    other = pickle.loads(pickle.dumps(buffers))
    assert (other._max_free, len(other._free)) == (3, 0)


# Pseudo-members: their mean and standard deviation are those of the ensemble

SIZES = st.integers(1, 4)
ENSEMBLES = st.tuples(st.integers(1, 12), SIZES, SIZES, SIZES).flatmap(
    lambda shape: arrays(np.float64, shape, elements=st.floats(-1e6, 1e6))
)


@given(ENSEMBLES)
def test_pseudo_members_have_the_moments_of_the_ensemble(ensemble):
    pair = pseudo_members(ensemble)
    size = abs(ensemble).max()
    spread = ensemble.std(0, ddof=1) if len(ensemble) > 1 else np.zeros(ensemble.shape[1:])
    np.testing.assert_allclose(pair.mean(0), ensemble.mean(0), rtol=0, atol=1e-14 * size)
    np.testing.assert_allclose(pair.std(0, ddof=1), spread, rtol=0, atol=1e-13 * size)


@given(ENSEMBLES, st.data())
def test_a_band_of_rows_has_the_same_moments(ensemble, data):
    """The result for a row does not depend on the other rows."""
    ensemble = ensemble.astype(np.float32)
    first = data.draw(st.integers(0, ensemble.shape[2] - 1))
    whole, part = pseudo_members(ensemble), pseudo_members(np.ascontiguousarray(ensemble[:, :, first:]))
    assert whole[:, :, first:].tobytes() == part.tobytes()


def test_single_precision_uses_double_for_sums():
    """A mean of ten pressures of 100 kPa that differ by a tenth: summing in single precision would lose it."""
    ensemble = (100_000 + 0.1 * np.arange(10)).astype(np.float32).reshape(10, 1, 1, 1)
    pair = pseudo_members(ensemble)
    assert pair.dtype == np.float32
    exact = ensemble.astype(np.float64)
    assert pair.mean(dtype=np.float64) == pytest.approx(exact.mean(), abs=0.008)
    assert np.ptp(pair) / np.sqrt(2) == pytest.approx(exact.std(ddof=1), abs=0.008)


FLOATS = st.one_of(st.floats(width=32), st.sampled_from([np.nan, np.inf, -np.inf, 3.4028235e38, -3.4028235e38]))


@pytest.mark.filterwarnings("ignore:overflow|invalid value:RuntimeWarning")
@given(arrays(np.float32, st.tuples(st.integers(1, 4), st.just(1), st.just(1), st.integers(1, 4)), elements=FLOATS))
def test_both_pseudo_members_are_finite_or_neither(ensemble):
    """One of them has the mask of a sample."""
    lower, upper = np.isfinite(pseudo_members(ensemble))
    np.testing.assert_array_equal(lower, upper)
    assert not lower[~np.isfinite(ensemble).all(0)].any()
