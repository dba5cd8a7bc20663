"""Corrections for many tests against scipy, exact enumeration and simulation."""

import numpy as np
import pytest
from scipy import stats

from evaluation.significance.multiple_tests import discoveries, holm


def test_holm_rejects_step_by_step():
    """The procedure itself: compare the smallest with α/m, the next with α/(m - 1), until one is not rejected."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        p = rng.random(rng.integers(1, 9)) ** 3
        p[rng.random(len(p)) < 0.2] = p[0]
        rejected = np.zeros(len(p), bool)
        for step, k in enumerate(np.argsort(p, kind="stable")):
            if p[k] > 0.05 / (len(p) - step):
                break
            rejected[k] = True
        assert (np.array(holm(p)) <= 0.05).tolist() == rejected.tolist()


def test_holm_keeps_the_order_of_the_tests_and_stays_below_one():
    assert holm([0.9, 0.001, 0.5]) == pytest.approx([1.0, 0.003, 1.0])
    assert holm([]) == []


def test_discoveries_are_those_of_scipy():
    rng = np.random.default_rng(1)
    p = np.concatenate([rng.random(50) ** 6, rng.random(50)])
    np.testing.assert_array_equal(discoveries(p), stats.false_discovery_control(p) <= 0.05)
    p[::7] = np.nan
    known = np.isfinite(p)
    expected = np.zeros(100, bool)
    expected[known] = stats.false_discovery_control(p[known]) <= 0.05
    np.testing.assert_array_equal(discoveries(p.reshape(4, 25)).ravel(), expected)


def test_without_small_p_values_there_are_no_discoveries():
    assert not discoveries(np.linspace(0.06, 1, 40)).any()
    assert not discoveries(np.full((2, 3), np.nan)).any()


def test_all_equal_p_values_below_the_rate_are_discoveries():
    assert discoveries(np.full(9, 0.04)).all()
