"""Student's t distribution and corrections for many tests against scipy and exact enumeration."""

import numpy as np
import pytest
from scipy import stats

from evaluation.significance.multiple_tests import discoveries, holm
from evaluation.significance.student import t_of_95, t_quantile, two_sided_p

FREEDOM = np.array([0.7, 1.0, 1.5, 2.0, 3.3, 9.0, 39.9, 40.1, 731.5, 7300.0])[:, None]
T = np.array([0.0, 1e-6, 1e-3, 0.1, 0.5, 0.99, 1.0, 1.7, 2.0, 3.0, 5.0, 10.0, 40.0, 1e4])


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
    for none in (np.linspace(0.06, 1, 40), np.full((2, 3), np.nan)):
        assert not discoveries(none).any()
    assert discoveries(np.full(9, 0.04)).all()


def test_p_values_are_those_of_scipy():
    exact = 2 * stats.t.sf(T, FREEDOM)
    for sign in (1, -1):
        np.testing.assert_allclose(two_sided_p(sign * T, FREEDOM), exact, rtol=1e-9, atol=1e-200)
    assert two_sided_p(1e200, 5.0) == 0
    assert np.isnan(two_sided_p(np.nan, 5.0))


@pytest.mark.parametrize("p", [0.6, 0.8, 0.975, 0.995, 0.9999])
def test_quantiles_are_those_of_scipy(p):
    np.testing.assert_allclose(t_quantile(p, FREEDOM), stats.t.ppf(p, FREEDOM), rtol=1e-9)


def test_the_table_of_quantiles_is_exact_to_six_digits():
    freedom = np.concatenate([np.linspace(1, 60, 300), [1e3, 3456.7, 1e8]])
    np.testing.assert_allclose(t_of_95(freedom), stats.t.ppf(0.975, freedom), rtol=1e-6)
