"""Merged moments against those of all values, and against sums of squares, which lose digits."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from models.published.local_maps import PartialMoments

NUMBERS = st.floats(-1e4, 1e4, width=32) | st.just(np.nan)
VALUES = arrays(
    np.float32,
    st.tuples(st.integers(1, 40), st.integers(1, 3)),
    elements=NUMBERS,
)


def spread(values):
    return PartialMoments.of(values, np.isfinite(values))


@given(VALUES, st.lists(st.integers(0, 40), max_size=5))
def test_merged_parts_equal_all_values(values, cuts):
    parts = [spread(part) for part in np.split(values, sorted(min(cut, len(values)) for cut in cuts))]
    merged = PartialMoments.merge(parts)
    for cell in range(values.shape[1]):
        known = values[:, cell][np.isfinite(values[:, cell])].astype(np.float64)
        assert merged.number[cell] == len(known)
        if len(known):
            assert np.isclose(merged.mean_or_nan[cell], known.mean(), rtol=1e-12, atol=1e-9)
            assert np.isclose(merged.std[cell], known.std(), rtol=1e-9, atol=1e-6)
        else:
            assert np.isnan(merged.mean_or_nan[cell])
            assert np.isnan(merged.std[cell])


def test_a_small_spread_around_a_large_mean_keeps_its_precision():
    values = (54_000 + np.random.default_rng(0).normal(scale=0.1, size=(4000, 1))).astype(np.float32)
    naive = np.square(values).mean() - np.square(values.mean())  # may even be negative
    merged = PartialMoments.merge([spread(part) for part in np.split(values, 40)])
    assert np.isclose(merged.std[0], values.astype(np.float64).std(), rtol=1e-12)
    assert not np.isclose(naive, merged.std[0] ** 2, rtol=0.1)
