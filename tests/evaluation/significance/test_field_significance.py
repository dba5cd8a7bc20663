"""Significance on maps: block means against scipy, and the rate of false discoveries in simulations."""

import numpy as np
import pytest
from scipy import stats

from evaluation.scoring.aggregation import WeightedMean
from evaluation.significance.field_significance import (
    date_blocks,
    field_p_values,
    longest_lead_blocks,
    significant_cells,
)

DAY = 86_400


def sums_in_blocks(values, blocks, weight=None):
    weight = np.ones(values.shape) if weight is None else weight
    total, counts = (np.zeros((blocks.max() + 1, *values.shape[1:])) for _ in range(2))
    np.add.at(total, blocks, np.where(weight > 0, values, 0))
    np.add.at(counts, blocks, weight)
    return WeightedMean(total, counts)


def smooth(rng, shape):
    """Fields with correlated neighbours, of variance 1."""
    white = np.pad(rng.normal(size=shape), [(0, 0), (2, 2), (2, 2)], mode="wrap")
    _, height, width = shape
    sums = sum(white[:, i : i + height, j : j + width] for i in range(5) for j in range(5))
    return sums / 5


def weather(rng, count, correlation, shape):
    fields = smooth(rng, (count, *shape))
    for k in range(1, count):
        fields[k] = correlation * fields[k - 1] + np.sqrt(1 - correlation**2) * fields[k]
    return fields


def test_p_values_are_those_of_a_t_test_on_block_means():
    """Blocks of alternating sign have no positive correlation, which would lower the degrees of freedom.

    The average over three runs of a model has three times the weights of raw, which do not matter.
    """
    rng = np.random.default_rng(0)
    means = rng.normal(size=(8, 3, 4)) + np.where(np.arange(8) % 2, 1, -1)[:, None, None]
    weight = np.broadcast_to(rng.integers(1, 5, (3, 4)) * 1.0, means.shape)
    raw = WeightedMean(2 * weight, weight)
    for runs in (1, 3):
        model = WeightedMean(runs * weight * (means + 2), runs * weight)
        np.testing.assert_allclose(field_p_values(model, raw), stats.ttest_1samp(means, 0).pvalue, rtol=1e-10)
    assert (field_p_values(raw, raw) == 1).all()
    assert not significant_cells(raw, raw).any()


def test_cells_with_few_blocks_are_not_tested():
    rng = np.random.default_rng(2)
    weight = np.ones((8, 2, 2))
    weight[3:, 0, 0] = 0
    weight[5:, 0, 1] = 0
    total = np.where(weight > 0, 5 + rng.normal(size=weight.shape) / 9, 0)
    p_values = field_p_values(WeightedMean(total, weight), WeightedMean(0 * total, weight))
    assert np.isnan(p_values).tolist() == [[True, False], [False, False]]
    found = significant_cells(WeightedMean(total, weight), WeightedMean(0 * total, weight))
    assert found.tolist() == [[False, True], [True, True]]


@pytest.mark.parametrize(("step", "count", "correlation"), [(3.5, 104, 0.0), (3.5, 104, 0.7), (1, 365, 0.9)])
@pytest.mark.parametrize("share", [0.0, 0.3])
def test_at_most_5_percent_of_the_discoveries_are_false(step, count, correlation, share):
    """On maps without any true difference, and on maps with differences in 30 % of the cells."""
    shape, trials = (12, 20), 200
    truth = np.zeros(shape)
    truth[:, : round(share * shape[1])] = 1.0
    blocks = date_blocks(step * DAY * np.arange(count))
    rates, found_share = [], []
    for trial in range(trials):
        values = truth + weather(np.random.default_rng([7, trial, count]), count, correlation, shape)
        sums = sums_in_blocks(values, blocks)
        found = significant_cells(sums, WeightedMean(0 * sums.total, sums.weight))
        rates.append((found & (truth == 0)).sum() / max(found.sum(), 1))
        found_share.append(found[truth > 0].mean() if share else 1.0)
    assert np.mean(rates) <= 0.05
    assert np.mean(found_share) > 0.5


def test_blocks_are_parts_of_equal_length():
    counts = np.bincount(date_blocks(DAY * np.arange(125)))
    assert (len(counts), counts.min(), counts.max()) == (12, 10, 11)
    sparse = DAY * np.array([0, 1, 100, 130, 199, 200, 260, 300])
    assert date_blocks(sparse).tolist() == [0, 0, 3, 5, 7, 7, 10, 11]
    assert len(np.unique(date_blocks(DAY * np.arange(51)))) == 5, "blocks are at least ten days long"
    assert date_blocks(DAY * np.arange(49)) is None
    assert date_blocks(DAY * np.array([0, 1, 2, 300, 301])) is None


def test_only_the_longest_lead_time_has_blocks():
    times, leads = np.repeat(DAY * 10 * np.arange(9), 2), np.tile([24, 48], 9)
    blocks = longest_lead_blocks(times, leads)
    assert (blocks[::2] == -1).all()
    np.testing.assert_array_equal(blocks[1::2], date_blocks(DAY * 10 * np.arange(9)))
    assert longest_lead_blocks(times[:6], leads[:6]) is None
