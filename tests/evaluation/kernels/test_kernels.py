"""Compiled scores and sums against exact fractions over all pairs of members, and loops over regions and cells."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from data_pipeline.common.threads import BUDGET
from evaluation.kernels import ensemble_scores as module
from evaluation.kernels.ensemble_scores import ensemble_scores, sorting_network
from evaluation.kernels.region_sums import RegionSums, add_known, count_missing

SIZES = [1, 2, 3, 8, 16, 17, 51]


def brute_force(members, truth):
    """CRPS plain and fair, error, variance and counts of one cell from their definitions, as exact fractions."""
    x, y, M = [Fraction(float(value)) for value in members], Fraction(float(truth)), len(members)
    pairs = sum(abs(a - b) for a, b in product(x, x))
    absolute, mean = sum(abs(a - y) for a in x) / M, sum(x) / M
    plain = absolute - pairs / (2 * M * M)
    fair = absolute - pairs / (2 * M * (M - 1)) if M > 1 else absolute
    variance = sum((a - mean) ** 2 for a in x) / (M - 1) if M > 1 else np.nan
    numbers = [float(number) for number in (plain, fair, mean - y, variance)]
    return [*numbers, sum(a < y for a in x), sum(a == y for a in x)]


def ensemble(M, shape, dtype, seed=0):
    """Temperatures in K, in steps of 1/4 so that ties occur."""
    random = np.random.default_rng(seed)
    members = np.round(random.normal(280, 3, (M, *shape)) * 4) / 4
    return members.astype(dtype), (np.round(random.normal(280, 3, shape) * 4) / 4).astype(dtype)


@pytest.mark.parametrize("M", SIZES)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_scores_of_each_cell_are_their_definitions(M, dtype):
    members, truth = ensemble(M, (2, 12), dtype)
    expected = np.array([[brute_force(members[:, i, j], truth[i, j]) for j in range(12)] for i in range(2)])
    scores = ensemble_scores(members, truth)
    np.testing.assert_allclose(np.stack(scores, -1), expected, rtol=1e-12, atol=1e-12)
    assert scores.crps.dtype == np.float64


def test_values_without_ties_and_with_large_offset():
    """Differences from the truth are taken first: a mean of 1e5 must not cost digits of a CRPS near 1."""
    random = np.random.default_rng(1)
    members, truth = (1e5 + random.normal(0, 1, (10, 30))).astype("f4"), (1e5 + random.normal(0, 1, 30)).astype("f4")
    expected = np.array([brute_force(members[:, k], truth[k]) for k in range(30)])
    np.testing.assert_allclose(np.stack(ensemble_scores(members, truth), -1), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("M", [1, 2, 9, 50])
def test_missing_truth_and_missing_members_give_nan_in_their_cell_only(M):
    members, truth = ensemble(M, (600,), "f4")
    clean = ensemble_scores(members, truth)
    members[M // 2, 7], truth[400] = np.nan, np.nan
    scores, bad = ensemble_scores(members, truth), np.isin(np.arange(600), (7, 400))
    for name in ("crps", "crps_fair", "error") if M == 1 else ("crps", "crps_fair", "error", "variance"):
        assert np.isnan(getattr(scores, name)[bad]).all()
        np.testing.assert_array_equal(getattr(scores, name)[~bad], getattr(clean, name)[~bad])


def test_any_layout_of_members_is_read():
    members, truth = ensemble(6, (2, 3, 8, 9), "f4")
    expected = ensemble_scores(members, truth)
    batch_first = np.ascontiguousarray(members.swapaxes(0, 1)).swapaxes(0, 1)
    members_last = np.ascontiguousarray(np.moveaxis(members, 0, -1))
    wide = np.repeat(members, 2, -1)[..., ::2]
    for layout in (batch_first, np.moveaxis(members_last, -1, 0), wide, np.asfortranarray(members), members[::-1]):
        for one, other in zip(ensemble_scores(layout, truth), expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-13, atol=1e-13)
    some = ensemble_scores(members[:4], truth)
    np.testing.assert_array_equal(some.crps, ensemble_scores(members[:4].copy(), truth).crps)
    assert ensemble_scores(members[..., :0], truth[..., :0]).crps.shape == (2, 3, 8, 0)
    single = ensemble_scores(np.ascontiguousarray(members[:, 0, 0, 0, 0]), truth[0, 0, 0, 0])
    assert single.crps == expected.crps[0, 0, 0, 0]


def test_threads_give_the_same_numbers(monkeypatch):
    members, truth = ensemble(5, (4, 5000), "f4")
    expected = ensemble_scores(members, truth)
    monkeypatch.setattr(module, "_PART", 700)
    monkeypatch.setattr(BUDGET, "_total", 4)
    for one, other in zip(ensemble_scores(members, truth), expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_shapes_and_types_that_do_not_fit_are_refused():
    members, truth = ensemble(3, (4,), "f4")
    for wrong in (truth[:3], truth.astype("f8"), truth.astype("i4")):
        with pytest.raises(ValueError, match="truth"):
            ensemble_scores(members, wrong)


@pytest.mark.parametrize("count", range(1, 17))
def test_network_sorts_all_zeros_and_ones(count):
    """A network that sorts every sequence of zeros and ones sorts everything (Knuth, volume 3, theorem Z)."""
    values = np.array(list(product([0, 1], repeat=count)), np.int8).T
    for i, j in sorting_network(count):
        assert i < j
        values[i], values[j] = np.minimum(values[i], values[j]), np.maximum(values[i], values[j])
    assert (np.diff(values, axis=0) >= 0).all()


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
