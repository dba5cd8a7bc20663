"""Intervals over dates and training seeds, against formulas and simulation."""

import numpy as np
import pytest
from scipy import stats

from evaluation.aggregation import WeightedMean
from evaluation.significance.intervals import estimates, interval
from evaluation.significance.run_means import RunMean, run_variances

TIMES = 30 * 86_400 * np.arange(40)


def mean_of(values):
    return WeightedMean(values, np.ones((len(values), 1) if np.ndim(values) > 1 else len(values)))


def simulate(rng, runs, seeds, noise, trials=1):
    """Scores (start, trial) of each run: weather of the date, a deviation of the seed, and noise of both."""
    weather = rng.normal(size=(len(TIMES), trials))
    return [
        weather + seeds * rng.normal(size=trials) + noise * rng.normal(size=(len(TIMES), trials)) for _ in range(runs)
    ]


def test_the_variance_is_that_of_dates_and_seeds():
    """For independent dates: s²(dates)/n + s²(seeds)/S, with the degrees of freedom of Welch and Satterthwaite."""
    runs = [values[:, 0] for values in simulate(np.random.default_rng(0), 3, 0.2, 0.5)]
    (found,) = estimates(np.asarray, [RunMean.over("net", [mean_of(run) for run in runs])], TIMES)
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


@pytest.mark.parametrize(("runs", "seeds"), [(3, 0.0), (3, 0.3), (5, 0.3), (5, 1.0)])
def test_intervals_contain_the_mean_over_dates_and_seeds(runs, seeds):
    """Without the seeds' variance, 60 to 90 % of the intervals would."""
    found = simulate(np.random.default_rng(1), runs, seeds, 0.5, trials=3000)
    intervals = [
        one.interval for one in estimates(np.asarray, [RunMean.over("net", [mean_of(f) for f in found])], TIMES)
    ]
    assert 0.94 <= np.mean([low <= 0 <= high for low, high in intervals]) <= 0.98


def test_an_index_applies_to_all_runs():
    runs = [values[:, 0] for values in simulate(np.random.default_rng(0), 3, 0.2, 0.5)]
    some = RunMean.over("net", [mean_of(run) for run in runs])[5:25]
    expected = interval(np.asarray, [RunMean.over("net", [mean_of(run[5:25]) for run in runs])], TIMES[5:25])
    assert interval(np.asarray, [some], TIMES[5:25]) == expected
