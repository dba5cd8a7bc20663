"""Intervals against simulation, closed forms and scipy."""

import numpy as np
import pytest
from scipy import stats

from evaluation.aggregation import WeightedMean
from evaluation.significance import (
    BlockBootstrap,
    block_length,
    expanded_tail,
    jackknife,
    neighbouring_runs,
    ring_blocks,
)

DAY = 86_400


def regular_starts(days, count):
    return np.arange(count) * days * DAY


def paired_starts(count):
    """Starts of a sparse archive: pairs of neighbours with gaps of weeks."""
    return np.sort(np.concatenate([np.arange(count) * 45, np.arange(count) * 45 + 3.5])) * DAY


def mean_of(values):
    return WeightedMean(np.asarray(values, float), np.ones(len(values)))


def autoregressive(rng, count, correlation):
    series = rng.normal(size=count)
    for k in range(1, count):
        series[k] = correlation * series[k - 1] + np.sqrt(1 - correlation**2) * series[k]
    return series


@pytest.mark.parametrize(
    ("times", "correlation"),
    [
        (regular_starts(3.5, 100), 0.0),
        (regular_starts(3.5, 100), 0.3),
        (regular_starts(3.5, 100), 0.6),
        (regular_starts(3.5, 210), 0.5),
        (paired_starts(16), 0.8),
    ],
    ids=["independent", "weak", "strong", "two years", "pairs"],
)
def test_95_percent_intervals_contain_the_truth_in_95_percent_of_cases(times, correlation):
    hits, trials = 0, 300
    for trial in range(trials):
        rng = np.random.default_rng([trial, len(times)])
        series = autoregressive(rng, len(times), correlation)
        if len(times) == 32:
            series = np.concatenate([autoregressive(rng, 2, correlation) for _ in range(16)])
        low, high = BlockBootstrap(times, trial, replicates=500).interval(np.asarray, mean_of(series))
        hits += low <= 0 <= high
    assert 0.88 <= hits / trials <= 0.99


def test_independent_starts_far_apart_get_the_t_interval():
    series = np.random.default_rng(1).normal(size=60)
    low, high = BlockBootstrap(regular_starts(30, 60), replicates=20_000).interval(np.asarray, mean_of(series))
    expected = stats.t.interval(0.95, 59, series.mean(), stats.sem(series))
    assert (low, high) == pytest.approx(expected, abs=0.02)


def test_a_paired_interval_is_narrower_than_two_single_ones():
    rng = np.random.default_rng(2)
    weather = 1 + rng.gamma(4, size=80)
    raw, model = mean_of(weather), mean_of(0.9 * weather + 0.02 * rng.normal(size=80))
    bootstrap = BlockBootstrap(regular_starts(4, 80))
    low, high = bootstrap.interval(np.subtract, model, raw)
    singles = [np.diff(bootstrap.interval(np.asarray, mean))[0] for mean in (raw, model)]
    assert high - low < 0.25 * np.hypot(*singles)
    assert high < 0


def test_skill_of_a_model_against_itself_is_zero():
    mean = mean_of(np.random.default_rng(0).gamma(4, size=40))
    assert BlockBootstrap(regular_starts(4, 40)).interval(lambda a, b: 1 - a / b, mean, mean) == (0, 0)


def test_an_interval_depends_on_the_seed_and_on_nothing_else():
    mean = mean_of(np.random.default_rng(0).normal(size=40))
    first = BlockBootstrap(regular_starts(4, 40), seed=1).interval(np.asarray, mean)
    BlockBootstrap(regular_starts(9, 20), seed=7).interval(np.asarray, mean[:20])
    assert BlockBootstrap(regular_starts(4, 40), seed=1).interval(np.asarray, mean) == first
    assert BlockBootstrap(regular_starts(4, 40), seed=2).interval(np.asarray, mean) != first


def test_starts_without_weight_do_not_count():
    values, times = np.random.default_rng(3).normal(size=40), regular_starts(4, 40)
    weight = np.ones(40)
    weight[30:] = 0
    values[30:] = 1e9
    found = BlockBootstrap(times).interval(np.asarray, WeightedMean(values * weight, weight))
    assert found == BlockBootstrap(times[:30]).interval(np.asarray, mean_of(values[:30]))


@pytest.mark.parametrize("count", [1, 3, 6])
def test_too_few_blocks_give_no_interval(count):
    """Six starts in pairs are three blocks."""
    assert BlockBootstrap(paired_starts(3)[:count]).interval(np.asarray, mean_of(np.arange(count))) is None


def test_undefined_scores_have_no_interval():
    mean = mean_of(np.ones(40))
    assert BlockBootstrap(regular_starts(4, 40)).interval(lambda a: a * np.nan, mean) is None


def test_jackknife_of_a_mean_is_the_anomaly():
    values = np.random.default_rng(0).normal(size=12)
    np.testing.assert_allclose(jackknife(np.asarray, mean_of(values)), values - values.mean())


def test_runs_end_where_the_gap_is_long():
    assert neighbouring_runs(paired_starts(3)).tolist() == [0, 0, 1, 1, 2, 2]
    assert neighbouring_runs(regular_starts(3.5, 4)).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("length", [2, 3, 7])
def test_every_start_is_drawn_equally_often(length):
    runs = np.array([0, 0, 0, 0, 0, 1, 1, 2, 3, 3, 3])
    blocks, chance = ring_blocks(runs, length)
    assert chance.sum() == pytest.approx(1)
    np.testing.assert_allclose(chance @ blocks, (chance @ blocks)[0])
    for block in blocks:
        (members,) = np.nonzero(block)
        run = runs[members[0]]
        assert (runs[members] == run).all()
        assert len(members) == min(length, np.count_nonzero(runs == run))
    assert blocks[3].tolist()[:5] == {2: [0, 0, 0, 1, 1], 3: [1, 0, 0, 1, 1], 7: [1, 1, 1, 1, 1]}[length]


def test_blocks_grow_with_correlation():
    """The rule's own equation, solved by bisection over real numbers."""
    runs = np.zeros(210, dtype=int)
    for correlation in (0.3, 0.6, 0.9):
        series = autoregressive(np.random.default_rng(0), 210, correlation)
        anomaly = series - series.mean()
        estimate = (anomaly[1:] * anomaly[:-1]).mean() / anomaly.var()
        r = estimate + (1 + 4 * estimate) / 210
        low, high = 1.0, 210.0
        for _ in range(60):
            middle = (low + high) / 2
            inside = middle <= (210 - middle + 1) ** ((2 / 3) * (2 * r / (1 + r)))
            low, high = (middle, high) if inside else (low, middle)
        assert block_length(series, runs) == int(low)
    assert block_length(np.random.default_rng(0).normal(size=210), runs) == 2


@pytest.mark.parametrize(("count", "tolerance"), [(4, 0.15), (8, 0.01), (20, 1e-3), (200, 1e-6)])
def test_tails_are_those_of_students_t(count, tolerance):
    exact = stats.norm.cdf(np.sqrt(count / (count - 1)) * stats.t.ppf(0.025, count - 1))
    assert expanded_tail(0.025, count) == pytest.approx(exact, rel=tolerance)
