"""Significance on maps: p-values against scipy, and the rate of false discoveries in simulations."""

import numpy as np
import pytest
from scipy import stats

from evaluation.scoring.aggregation import WeightedMean
from evaluation.significance.field_significance import (
    BLOCKS,
    block_times,
    date_blocks,
    field_p_values,
    longest_lead_blocks,
)
from evaluation.significance.model_comparison import discoveries

DAY = 86_400
MONTHS = 30 * DAY * np.arange(8)


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


def weather(rng, days, memory, shape):
    """Fields at `days` whose correlation in time is exp(-days/memory); `memory` may differ between the cells."""
    fields = smooth(rng, (len(days), *shape))
    for k, gap in enumerate(np.diff(days), 1):
        kept = np.exp(-gap / np.maximum(memory, 1e-9))
        fields[k] = kept * fields[k - 1] + np.sqrt(1 - kept**2) * fields[k]
    return fields


def test_p_values_are_those_of_a_t_test_on_block_means():
    """Blocks of alternating sign have no positive correlation, which would raise the variance.

    The average over three runs of a model has three times the weights of raw, which do not matter.
    """
    rng = np.random.default_rng(0)
    means = rng.normal(size=(8, 3, 4)) + np.where(np.arange(8) % 2, 3, -3)[:, None, None]
    weight = np.broadcast_to(rng.integers(1, 5, (3, 4)) * 1.0, means.shape)
    raw = WeightedMean(2 * weight, weight)
    for runs in (1, 3):
        model = WeightedMean(runs * weight * (means + 2), runs * weight)
        found = field_p_values(model, raw, MONTHS)
        np.testing.assert_allclose(found, stats.ttest_1samp(means, 0).pvalue, rtol=1e-10)
    assert (field_p_values(raw, raw, MONTHS) == 1).all()
    assert not discoveries(field_p_values(raw, raw, MONTHS)).any()


def test_cells_with_few_blocks_are_not_tested():
    rng = np.random.default_rng(2)
    weight = np.ones((8, 2, 2))
    weight[3:, 0, 0] = 0
    weight[5:, 0, 1] = 0
    total = np.where(weight > 0, 5 + rng.normal(size=weight.shape) / 9, 0)
    p_values = field_p_values(WeightedMean(total, weight), WeightedMean(0 * total, weight), MONTHS)
    assert np.isnan(p_values).tolist() == [[True, False], [False, False]]
    found = discoveries(field_p_values(WeightedMean(total, weight), WeightedMean(0 * total, weight), MONTHS))
    assert found.tolist() == [[False, True], [True, True]]


SHAPE = (12, 20)
EAST = np.where(np.arange(20) < 10, 2.0, 20.0)
"""Memory in days: 2 in the west, 20 in the east."""


MAPS = {
    "independent": (3.5 * np.arange(104), 0.0, 240),
    "two memories": (3.5 * np.arange(104), EAST, 240),
    "daily": (np.arange(365.0), 10.0, 240),
    "daily, in blocks": (np.arange(365.0), 10.0, 10**7),
    "pairs": (np.sort([*46 * np.arange(16), *46 * np.arange(16) + 3]), 5.0, 240),
}


@pytest.mark.parametrize(("name", "share"), [*((name, 0.0) for name in MAPS), ("two memories", 0.3)])
def test_at_most_5_percent_of_the_discoveries_are_false(name, share):
    """On maps without any true difference, and on maps with differences in 30 % of the cells."""
    (days, memory, cells), truth, trials = MAPS[name], np.zeros(SHAPE), 100
    truth[:, : round(share * SHAPE[1])] = 1.0
    times = (DAY * days).astype(int)
    blocks = date_blocks(times, cells)
    rates, found_share = [], []
    for trial in range(trials):
        values = truth + weather(np.random.default_rng([7, trial, len(days)]), days, memory, SHAPE)
        sums = sums_in_blocks(values, blocks)
        found = discoveries(field_p_values(sums, WeightedMean(0 * sums.total, sums.weight), block_times(blocks, times)))
        rates.append((found & (truth == 0)).sum() / max(found.sum(), 1))
        found_share.append(found[truth > 0].mean() if share else 1.0)
    assert np.mean(rates) <= 0.05
    assert np.mean(found_share) > 0.5


def test_a_map_finds_at_least_what_a_t_test_on_independent_pairs_of_starts_finds():
    days, truth, ours, theirs = np.sort([*46 * np.arange(16), *46 * np.arange(16) + 3]), np.zeros(SHAPE), [], []
    truth[:, ::2] = 0.6
    for trial in range(40):
        values = truth + weather(np.random.default_rng([8, trial]), days, 5.0, SHAPE)
        sums = WeightedMean(values, np.ones(values.shape))
        ours.append(discoveries(field_p_values(sums, WeightedMean(0 * values, sums.weight), DAY * days))[:, ::2].mean())
        p_values = stats.ttest_1samp(values.reshape(16, 2, *SHAPE).mean(1), 0).pvalue
        theirs.append((stats.false_discovery_control(p_values.ravel()) <= 0.05).reshape(SHAPE)[:, ::2].mean())
    assert np.mean(ours) > 0.9 * np.mean(theirs) > 0.3


def test_every_start_is_a_block_where_memory_allows_and_else_blocks_have_equal_lengths():
    assert date_blocks(DAY * np.arange(125), 1000).tolist() == list(range(125))
    counts = np.bincount(date_blocks(DAY * np.arange(245), 10**7))
    assert (len(counts), counts.min(), counts.max()) == (BLOCKS, 10, 11)
    sparse = DAY * np.array([*range(100), 300, 301, 400])
    assert date_blocks(sparse, 10**7)[[0, 99, -3, -2, -1]].tolist() == [0, 5, 6, 7, 8], "parts of 16 or 17 days"
    assert date_blocks(DAY * np.arange(49), 10) is not None
    assert date_blocks(DAY * np.arange(40), 10) is None, "starts in fewer than five parts of ten days"
    assert date_blocks(DAY * np.array([0, 1, 2, 300, 301]), 10) is None


def test_only_the_longest_lead_time_has_blocks():
    times, leads = np.repeat(DAY * 10 * np.arange(9), 2), np.tile([24, 48], 9)
    blocks = longest_lead_blocks(times, leads, 10)
    assert (blocks[::2] == -1).all()
    np.testing.assert_array_equal(blocks[1::2], np.arange(9))
    np.testing.assert_array_equal(block_times(blocks, times), times[::2])
    np.testing.assert_array_equal(block_times(np.array([0, 0, -1, 1]), np.array([1, 2, 9, 5])), [1.5, 5])
    assert longest_lead_blocks(times[:6], leads[:6], 10) is None
