"""Scores from averages: identities and cases with a known result."""

import numpy as np
import pytest

from evaluation import metrics
from evaluation.aggregation import WeightedMean


def mean_of(values):
    return WeightedMean(np.asarray(values, float).sum(), np.array(float(len(values))))


def test_roots_are_taken_after_averaging():
    means = {name: mean_of([0.0, 0.0]) for name in ("crps", "crps_fair", "error")}
    means |= {"squared_error": mean_of([9.0, 23.0]), "expected_squared_error": mean_of([1.0, 7.0])}
    found = metrics.scores(means)
    assert (found["rmse"], found["spread"], found["spread_skill"]) == (4.0, 2.0, 0.5)


def test_spread_skill_of_a_calibrated_ensemble_is_one():
    rng = np.random.default_rng(0)
    centre, width = rng.normal(size=50_000) * 10, rng.uniform(0.5, 2, size=50_000)
    values = centre + width * rng.normal(size=(6, 50_000))
    members, truth = values[1:], values[0]
    zero = mean_of([0.0])
    found = metrics.scores(
        {
            "crps": zero, "crps_fair": zero, "error": mean_of(members.mean(0) - truth),
            "squared_error": mean_of((members.mean(0) - truth) ** 2),
            "expected_squared_error": mean_of(members.var(0, ddof=1) * 6 / 5),
        }
    )  # fmt: skip
    assert found["spread_skill"] == pytest.approx(1, abs=0.01)
    assert found["bias"] == pytest.approx(0, abs=0.02)


def test_captured_counts_from_raw_to_oracle():
    raw, oracle = np.array(2.0), np.array(1.0)
    assert metrics.captured(raw, raw, oracle) == 0
    assert metrics.captured(oracle, raw, oracle) == 1
    assert metrics.captured(np.array(1.25), raw, oracle) == 0.75
    assert np.isnan(metrics.captured(raw, raw, raw))


def test_skill_is_relative_to_the_reference():
    assert metrics.skill(np.array(0.75), np.array(1.0)) == 0.25
    assert metrics.skill(np.array(2.0), np.array(1.0)) == -1
    assert np.isnan(metrics.skill(np.array(1.0), np.array(0.0)))
