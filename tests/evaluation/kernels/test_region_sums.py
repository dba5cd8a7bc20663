"""Sums over overlapping regions, compared with a loop over regions and cells."""

import numpy as np
import pytest

from evaluation.kernels.region_sums import RegionSums, add_known, count_missing

SHAPE = (6, 9)


def regions(count=40, seed=0):
    """Overlapping boxes and masks with weights by area, of 1, and of their own."""
    random = np.random.default_rng(seed)
    area = np.broadcast_to(np.cos(np.linspace(-1.5, 1.5, SHAPE[0]))[:, None], SHAPE)
    masks = random.random((count, *SHAPE)) < random.random((count, 1, 1))
    weights = [area, np.ones(SHAPE), area * np.linspace(0, 1, 9)]
    weights += [mask * (area if k % 2 else 1.0) for k, mask in enumerate(masks)]
    return np.stack([field for field in weights if field.any()])


def fields(dtype="f4", seed=1):
    random = np.random.default_rng(seed)
    values, truth = random.normal(size=(2, 3, 2, *SHAPE)).astype(dtype)
    truth[0, 1, 2, 3:5] = truth[2, 0] = np.nan
    values[0, 1, 2, 3] = np.nan
    return values, truth


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_sums_are_those_of_each_region(dtype):
    weights, (values, truth) = regions(), fields(dtype)
    found = RegionSums(weights).sum(values, truth)
    for place in np.ndindex(3, 2):
        known = ~np.isnan(truth[place])
        expected = [(field[known] * values[place][known].astype(float)).sum() for field in weights]
        np.testing.assert_allclose(found[place], expected, rtol=1e-12, atol=1e-12)


def test_sums_over_bins_are_those_of_each_bin():
    weights, (values, truth) = regions(), fields()
    index = np.random.default_rng(2).integers(0, 4, values.shape)
    found = RegionSums(weights).sum_bins(index, values, truth, 4)
    assert found.shape == (3, 2, len(weights), 4)
    for *place, bin_ in np.ndindex(3, 2, 4):
        inside = ~np.isnan(truth[tuple(place)]) & (index[tuple(place)] == bin_)
        expected = [(field[inside] * values[tuple(place)][inside].astype(float)).sum() for field in weights]
        np.testing.assert_allclose(found[(*place, slice(None), bin_)], expected, rtol=1e-12, atol=1e-12)


def test_a_missing_value_reaches_only_the_regions_around_it():
    weights, (values, truth) = regions(), fields()
    values[1, 1, 4, 4] = np.nan
    found = RegionSums(weights).sum(values, truth)
    np.testing.assert_array_equal(np.isnan(found[1, 1]), weights[:, 4, 4] != 0)
    assert np.isfinite(found[0]).all()


def test_many_regions_have_their_own_atoms():
    """More regions than bits of an integer: every cell is a region."""
    weights = np.eye(54).reshape(54, *SHAPE)
    values, truth = fields()
    found = RegionSums(weights).sum(values, truth)[1, 0]
    np.testing.assert_allclose(found, values[1, 0].ravel())


def test_values_and_missing_forecasts_are_counted_where_the_truth_is_known():
    truth = np.array([1.0, np.nan, 2.0, 3.0, 4.0])
    total = np.ones(5)
    add_known(np.array([1.0, np.nan, 2.0, 3.0, 4.0], np.float32), truth, total)
    assert total.tolist() == [2, 1, 3, 4, 5]
    values, others = np.array([np.nan, np.nan, np.inf, 0, 0]), np.array([0, 0, 0, -np.inf, 0])
    pair = [np.stack([field, np.zeros(5)])[:, None] for field in (values, others)]
    assert count_missing(*pair, np.stack([truth, truth])[:, None]).tolist() == [3, 0]
