"""Intervals over dates and training seeds against simulation, recomputation without each start, formulas and scipy."""

import tracemalloc

import numpy as np
import pytest
from scipy import stats

from evaluation.scoring.aggregation import WeightedMean
from evaluation.significance.intervals import FEWEST_STARTS, count_apart, estimates, interval, jackknife
from evaluation.significance.run_means import RunMean, run_variances

DAY = 86_400


def regular_starts(days, count):
    return np.arange(count) * days * DAY


def paired_starts(count):
    """Starts of a sparse archive: pairs of neighbours with gaps of months."""
    return np.sort(np.concatenate([np.arange(count) * 60, np.arange(count) * 60 + 3.5])) * DAY


APART = 60 * DAY * np.arange(40)


def mean_of(values):
    return WeightedMean(np.asarray(values, float), np.ones((len(values), 1) if np.ndim(values) > 1 else len(values)))


def test_starts_far_apart_get_the_t_test():
    series = 0.2 + np.random.default_rng(1).normal(size=60)
    (estimate,) = estimates(np.asarray, [mean_of(series)], regular_starts(60, 60))
    assert estimate.interval == pytest.approx(stats.t.interval(0.95, 59, series.mean(), stats.sem(series)))
    assert estimate.p_value() == pytest.approx(stats.ttest_1samp(series, 0).pvalue)
    assert estimate.p_value(0.3) == pytest.approx(stats.ttest_1samp(series, 0.3).pvalue)


def test_a_detectable_difference_is_found_in_80_percent_of_cases():
    times = regular_starts(60, 25)
    series = np.random.default_rng(3).normal(size=(25, 2000))
    found = estimates(np.asarray, [WeightedMean(series, np.ones((25, 1)))], times)
    difference = np.mean([estimate.detectable() for estimate in found[:200]])
    shifted = estimates(np.asarray, [WeightedMean(series + difference, np.ones((25, 1)))], times)
    assert np.mean([estimate.p_value() < 0.05 for estimate in shifted]) == pytest.approx(0.8, abs=0.03)


def test_years_that_differ_by_the_year_share_make_a_difference_insignificant():
    """Two years of independent starts, whose scores have the variance 4: the variance of the mean grows by ρ 4/2."""
    times = np.concatenate([50 * DAY * np.arange(7), 50 * DAY * np.arange(7) + 365 * DAY])
    values = 2 * stats.zscore(np.random.default_rng(1).normal(size=14), ddof=1) + 3
    (found,) = estimates(np.asarray, [mean_of(values)], times)
    wider = np.sqrt(4 / 14 + found.year_share() * 4 / 2)
    assert found.value - stats.t.ppf(0.975, 13) * wider == pytest.approx(0, abs=1e-9)
    (chance,) = estimates(np.asarray, [mean_of(values - 3)], times)
    assert chance.year_share() is None
    (one,) = estimates(np.asarray, [mean_of(values[:7])], times[:7])
    assert (found.years, one.years) == (pytest.approx(2), pytest.approx(1))


def test_many_years_that_differ_have_the_interval_of_their_means():
    """Eight years of twelve independent starts: a t test on the means of the years, where they differ."""
    rng, times = np.random.default_rng(5), (DAY * (20 + 365.25 * np.arange(8)[:, None] + 28 * np.arange(12))).ravel()
    equal = rng.normal(size=96)
    differing = equal + 3 * np.repeat(rng.normal(size=8), 12)
    (found,) = estimates(np.asarray, [mean_of(differing)], times)
    means = differing.reshape(8, 12).mean(1)
    assert found.interval == pytest.approx(stats.t.interval(0.95, 7, means.mean(), stats.sem(means)))
    (found,) = estimates(np.asarray, [mean_of(equal - np.repeat(equal.reshape(8, 12).mean(1), 12))], times)
    assert found.freedom > 20


def test_jackknife_is_the_recomputation_without_each_start():
    """Of a ratio of averages with weights, among them histograms whose bins share one weight."""
    rng = np.random.default_rng(0)
    total, weight = rng.random((12, 3)), 0.5 + rng.random((12, 1))
    other = rng.random(12)

    def score(histogram, average):
        return histogram[..., 1:] / average[..., None]

    means = WeightedMean(total, weight), WeightedMean(other * weight[:, 0], weight[:, 0])
    whole = score(total.sum(0) / weight.sum(), np.average(other, weights=weight[:, 0]))
    for k, contribution in enumerate(jackknife(score, *means)):
        keep = np.arange(12) != k
        left = weight[keep].sum()
        without = score(total[keep].sum(0) / left, np.average(other[keep], weights=weight[keep, 0]))
        np.testing.assert_allclose(contribution, (left / weight[k, 0]) * (whole - without), rtol=1e-9)


def test_each_number_of_a_score_has_the_interval_that_it_has_alone():
    values = np.random.default_rng(4).normal(size=(40, 3))
    values[:, 1] = np.nan
    together = estimates(np.asarray, [WeightedMean(values, np.ones((40, 1)))], regular_starts(4, 40))
    assert together[1].interval is None
    assert together[1].p_value() is None
    assert together[1].detectable() is None
    for k in (0, 2):
        assert together[k].interval == pytest.approx(
            interval(np.asarray, [mean_of(values[:, k])], regular_starts(4, 40))
        )


def test_starts_without_weight_do_not_count():
    values, times = np.random.default_rng(3).normal(size=40), regular_starts(4, 40)
    weight = np.ones(40)
    weight[30:] = 0
    values[30:] = 1e9
    found = interval(np.asarray, [WeightedMean(values * weight, weight)], times)
    assert found == interval(np.asarray, [mean_of(values[:30])], times[:30])
    tiny = interval(np.asarray, [mean_of(1e-9 * values[:30])], times[:30])
    np.testing.assert_allclose(tiny, 1e-9 * np.array(found))


def test_too_few_starts_and_undefined_scores_give_no_interval():
    """Neighbours count in pairs: six starts in pairs count as three."""
    for count in (0, 1, 3, 6):
        assert interval(np.asarray, [mean_of(np.arange(count))], paired_starts(3)[:count]) is None
    assert interval(np.asarray, [mean_of(np.arange(2 * FEWEST_STARTS))], paired_starts(FEWEST_STARTS)) is not None
    assert [count_apart(paired_starts(3)[:count]) for count in range(7)] == [0, 1, 1, 2, 2, 3, 3]
    assert [count_apart(regular_starts(3.5, count)) for count in (1, 2, 3, 8)] == [1, 1, 2, 4]
    assert [count_apart(regular_starts(days, 5)) for days in (30, 45, 46)] == [3, 3, 5]
    assert interval(lambda a: a * np.nan, [mean_of(np.ones(40))], regular_starts(4, 40)) is None


def test_thousands_of_starts_need_little_memory():
    """A matrix over pairs of starts would have 426 MB."""
    count = 7300
    values = np.random.default_rng(0).normal(size=count)
    tracemalloc.start()
    found = interval(np.asarray, [mean_of(values)], regular_starts(1, count))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found[0] < values.mean() < found[1]
    assert peak < 20e6


def simulate(rng, runs, seeds, noise, trials=1):
    """Scores (start, trial) of each run: weather of the date, a deviation of the seed, and noise of both."""
    weather = rng.normal(size=(len(APART), trials))
    return [
        weather + seeds * rng.normal(size=trials) + noise * rng.normal(size=(len(APART), trials)) for _ in range(runs)
    ]


def test_the_variance_is_that_of_dates_and_seeds():
    """For independent dates: s²(dates)/n + s²(seeds)/S, with the degrees of freedom of Welch and Satterthwaite."""
    runs = [values[:, 0] for values in simulate(np.random.default_rng(0), 3, 0.2, 0.5)]
    (found,) = estimates(np.asarray, [RunMean.over("net", [mean_of(run) for run in runs])], APART)
    dates = np.mean(runs, axis=0).var(ddof=1) / 40
    seeds = np.var([run.mean() for run in runs], ddof=1) / 3
    freedom = (dates + seeds) ** 2 / (dates**2 / 39 + seeds**2 / 2)
    assert found.value == pytest.approx(np.mean(runs))
    assert found.error**2 == pytest.approx(dates + seeds)
    assert found.freedom == pytest.approx(freedom)
    assert found.quantile == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-5)


def test_all_averages_of_a_model_are_of_the_same_run():
    """The ratio of two averages of each run is 2, whatever the run: its seeds cause no variance."""
    runs = [values[:, 0] ** 2 for values in simulate(np.random.default_rng(0), 3, 0.5, 0.5)]
    numerator = RunMean.over("net", [mean_of(2 * run) for run in runs])
    denominator = RunMean.over("net", [mean_of(run) for run in runs])
    ((variance, freedom),) = run_variances(np.divide, [numerator, denominator])
    assert freedom == 2
    assert variance == pytest.approx(0, abs=1e-20)
    other = RunMean.over("other", [mean_of(run) for run in runs])
    assert [len(found) for found in run_variances(np.divide, [numerator, other])] == [2, 2]


def test_an_index_applies_to_all_runs():
    runs = [values[:, 0] for values in simulate(np.random.default_rng(0), 3, 0.2, 0.5)]
    some = RunMean.over("net", [mean_of(run) for run in runs])[5:25]
    expected = interval(np.asarray, [RunMean.over("net", [mean_of(run[5:25]) for run in runs])], APART[5:25])
    assert interval(np.asarray, [some], APART[5:25]) == expected
