"""Student's t distribution against scipy."""

import numpy as np
import pytest
from scipy import stats

from evaluation.significance.student import t_quantile, two_sided_p

FREEDOM = np.array([0.7, 1.0, 1.5, 2.0, 3.3, 9.0, 39.9, 40.1, 731.5, 7300.0])[:, None]
T = np.array([0.0, 1e-6, 1e-3, 0.1, 0.5, 0.99, 1.0, 1.7, 2.0, 3.0, 5.0, 10.0, 40.0, 1e4])


def test_p_values_are_those_of_scipy():
    exact = 2 * stats.t.sf(T, FREEDOM)
    np.testing.assert_allclose(two_sided_p(T, FREEDOM), exact, rtol=1e-9, atol=1e-200)


def test_the_sign_of_t_does_not_matter():
    np.testing.assert_array_equal(two_sided_p(-T, FREEDOM), two_sided_p(T, FREEDOM))


@pytest.mark.parametrize("p", [0.6, 0.8, 0.975, 0.995, 0.9999])
def test_quantiles_are_those_of_scipy(p):
    np.testing.assert_allclose(t_quantile(p, FREEDOM), stats.t.ppf(p, FREEDOM), rtol=1e-9)


def test_extreme_and_missing_values():
    assert two_sided_p(1e200, 5.0) == 0
    assert np.isnan(two_sided_p(np.nan, 5.0))
