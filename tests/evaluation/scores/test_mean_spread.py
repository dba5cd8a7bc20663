"""Scores of mean and spread, and ratios of scores: identities and cases with a known result."""

import numpy as np
import pytest

from evaluation.scores import ratios
from evaluation.scores.mean_spread import BIAS, RMSE, SPREAD, SPREAD_SKILL


def test_roots_are_taken_after_averaging():
    squared, expected = np.array([16.0, 25.0]), np.array([4.0, 100.0])
    assert RMSE.value(squared).tolist() == [4, 5]
    assert SPREAD.value(expected).tolist() == [2, 10]
    assert SPREAD_SKILL.value(squared, expected).tolist() == [0.5, 2]


def test_spread_skill_of_a_calibrated_ensemble_is_one():
    rng = np.random.default_rng(0)
    centre, width = rng.normal(size=50_000) * 10, rng.uniform(0.5, 2, size=50_000)
    values = centre + width * rng.normal(size=(6, 50_000))
    members, truth = values[1:], values[0]
    error, variance = members.mean(0) - truth, members.var(0, ddof=1) * 6 / 5
    assert SPREAD_SKILL.value((error**2).mean(), variance.mean()) == pytest.approx(1, abs=0.01)
    assert BIAS.value(error.mean()) == pytest.approx(0, abs=0.02)


def test_captured_counts_from_raw_to_oracle():
    raw, oracle = np.array(2.0), np.array(1.0)
    assert ratios.captured(raw, raw, oracle) == 0
    assert ratios.captured(oracle, raw, oracle) == 1
    assert ratios.captured(np.array(1.25), raw, oracle) == 0.75
    assert np.isnan(ratios.captured(raw, raw, raw))


def test_skill_is_relative_to_the_reference():
    assert ratios.skill(np.array(0.75), np.array(1.0)) == 0.25
    assert ratios.skill(np.array(2.0), np.array(1.0)) == -1
    assert np.isnan(ratios.skill(np.array(1.0), np.array(0.0)))
