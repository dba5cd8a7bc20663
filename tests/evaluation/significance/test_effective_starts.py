"""Tables of effective starts against full covariance matrices and simulation."""

import numpy as np
import pytest

from evaluation.significance.effective_starts import CORRELATIONS, ELEMENTS, EffectiveStarts, _moments

DAY = 86_400
UNEVEN = DAY * np.array([0, 3, 7, 10, 14, 60, 63, 67, 200, 204])


def matrices(steps):
    """All correlations of the chain, as an n x n matrix."""
    n = len(steps) + 1
    full = np.eye(n)
    for i in range(n):
        for j in range(i):
            full[i, j] = full[j, i] = np.prod(steps[j:i])
    return full


@pytest.mark.parametrize("r", [-0.4, 0.0, 0.3, 0.9])
def test_moments_are_those_of_quadratic_forms(r):
    """s² = x'Ax and p = x'Bx of normal x with covariance R have covariance 2 tr(ARBR)."""
    rng = np.random.default_rng(0)
    n = len(UNEVEN)
    steps = np.sign(r) * np.abs(r) ** (np.diff(UNEVEN) / (3.5 * DAY))
    weights, pairs = rng.random(n), rng.random(n - 1)
    weights, pairs = weights / weights.sum(), pairs / pairs.sum()
    R, A, B = matrices(steps), np.diag(weights), np.diag(pairs, 1) / 2 + np.diag(pairs, -1) / 2
    center = np.eye(n) - weights
    C = center @ R @ center.T
    var_square, var_product, covariance = (2 * np.trace(X @ R @ Y @ R) for X, Y in ((A, A), (B, B), (A, B)))
    mean = np.trace(B @ R)
    expected = [
        mean,
        np.trace(B @ C) / np.trace(A @ C) - covariance + mean * var_square,
        weights @ R @ weights,
        var_square,
        var_product,
        covariance,
    ]
    np.testing.assert_allclose(_moments(steps[None], weights, pairs)[:, 0], expected, rtol=1e-10, atol=1e-14)


def test_the_tables_of_ar1_series_are_those_of_textbooks():
    """n' = n(1 - r)/(1 + r), Kendall's bias -(1 + 3r)/n, and 1/ν = 1/n + 2/n', for long series."""
    n = 4000
    found, r = EffectiveStarts.at(DAY * np.arange(n), np.ones(n)), CORRELATIONS
    near = np.abs(r) < 0.9
    count = n * (1 - r) / (1 + r)
    np.testing.assert_allclose((1 / found.share)[near], count[near], rtol=3e-3)
    np.testing.assert_allclose((n * (found.observed - r))[near], -(1 + 3 * r)[near], atol=0.05)
    np.testing.assert_allclose(found.freedom[near][1:], (1 / (1 / n + 2 / count))[near][1:], rtol=0.02)


def test_starts_on_both_sides_of_a_gap_are_no_neighbours():
    """Gaps of 46 and 133 days are left out of the observed correlation; a pair weighs as the product of its starts."""
    weights = np.arange(1.0, 11)
    near = np.array([True] * 4 + [False] + [True] * 2 + [False, True])
    expected = np.where(near, np.sqrt(weights[1:] * weights[:-1]), 0)
    np.testing.assert_allclose(EffectiveStarts.at(UNEVEN, weights).pairs, expected / expected.sum())


def test_a_table_does_not_depend_on_the_size_of_its_parts(monkeypatch):
    monkeypatch.setattr("evaluation.significance.effective_starts.ELEMENTS", 30)
    parts = EffectiveStarts.at(UNEVEN, np.arange(1.0, 11))
    monkeypatch.setattr("evaluation.significance.effective_starts.ELEMENTS", ELEMENTS)
    whole = EffectiveStarts.at(UNEVEN, 3 * np.arange(1.0, 11))
    np.testing.assert_allclose(parts.share, whole.share, rtol=1e-13)
    np.testing.assert_allclose(parts.freedom, whole.freedom, rtol=1e-10)


def test_equal_contributions_have_no_variance():
    variance, *_ = EffectiveStarts.at(DAY * np.arange(9), np.ones(9)).look_up(np.zeros(9))
    assert variance == 0
