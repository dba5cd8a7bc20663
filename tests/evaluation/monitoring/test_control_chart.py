"""Control charts: false alarms of autocorrelated series, delays after a shift, parts against closed forms."""

import math

import numpy as np
import pytest
from score_cases import autoregressive

from benchmarks.control_charts import run_length
from evaluation.monitoring.control_chart import (
    SMOOTHING,
    autocorrelation,
    chance_of_chart,
    control_chart,
    control_limits,
    moving_average,
    round_up,
)

REFERENCE, HORIZON, TRIALS = 90, 365, 600


def averages(series):
    own = series[:REFERENCE]
    return moving_average((series[REFERENCE:] - own.mean(0)) / own.std(0, ddof=1))


@pytest.mark.parametrize("r", [0.0, 0.6, 0.9])
def test_false_alarms_are_as_rare_as_promised_and_a_shift_is_found(r):
    """Every series has a reference of its own, from which mean, deviation and correlation are estimated."""
    series = autoregressive(REFERENCE + HORIZON, r, 7, TRIALS)
    days = np.arange(REFERENCE).astype("datetime64[D]")
    found = [round_up(autocorrelation(days, column)) for column in series[:REFERENCE].T]
    for charts in (1, 10):
        chance = chance_of_chart(charts)
        limits = [control_limits(one, REFERENCE, HORIZON, chance)[1] for one in found]
        alarms = (run_length(averages(series), limits) <= HORIZON).mean()
        error = math.sqrt(chance * (1 - chance) / TRIALS)
        assert alarms < chance + 3 * error
        if charts == 1:
            assert alarms > 0.4 * chance
            lengths = run_length(averages(series), limits)
            # Series without an alarm count with the days that they were watched, which is too few.
            assert lengths.mean() > 0.5 * HORIZON
    shifted = series.copy()
    shifted[REFERENCE:] += 4 if r == 0.9 else 2
    assert np.median(run_length(averages(shifted), limits)) < 40


def test_limits_of_a_long_reference_are_those_of_known_parameters():
    """Lucas & Saccucci 1990, table 3: EWMA with weight 0.1 and the limit 2.814 has the average run length 500."""
    chance = -math.expm1(-1.0)  # of a run below the mean, if run lengths are exponential
    limit = control_limits(0.0, 4_000, 500, chance)[1] / math.sqrt(SMOOTHING / (2 - SMOOTHING))
    assert limit == pytest.approx(2.814, rel=0.03)


def test_the_correlation_of_short_series_is_not_biased():
    days = np.arange(60).astype("datetime64[D]")
    for r in (0.3, 0.7):
        found = [autocorrelation(days, column) for column in autoregressive(60, r, 9, 800).T]
        assert np.mean(found) == pytest.approx(r, abs=0.02)


def test_gaps_do_not_count_as_neighbours():
    values = np.tile([1.0, 1.0, -1.0, -1.0], 20)
    near = np.arange(80).astype("datetime64[D]")
    apart = (np.arange(80) + 30 * (np.arange(80) // 2)).astype("datetime64[D]")
    assert autocorrelation(near, values) < 0.1
    assert autocorrelation(apart, values) > 0.9


def test_an_alarm_begins_on_the_first_day_beyond_the_limit_and_ends_with_its_cause():
    values = np.random.default_rng(2).normal(size=160)
    values[120:] += 5
    days = np.arange(220).astype("datetime64[D]")

    def chart(values, two_sided=False):
        return control_chart(days[: len(values)], values, 90, 0.1, 365, two_sided=two_sided)

    one = chart(values)
    beyond = np.flatnonzero(one.average > one.limit)
    assert one.alarm
    assert one.since == days[beyond[0]]
    assert 120 <= beyond[0] <= 126
    assert one.recent == one.average[-1] / one.limit > 1
    assert not chart(-values).alarm
    assert chart(-values, two_sided=True).alarm
    back = chart(np.r_[values, values[:60]])
    assert back.exceeded[125:160].all()
    assert not back.alarm
    assert back.since is None
    assert chart(np.ones(100)) is None, "without variation there is no chart"
    assert chart(np.arange(90.0)) is None, "without later days there is no chart"
