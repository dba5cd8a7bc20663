"""Distributions of past values, of quantiles and of Bernstein polynomials, against numpy, scipy and the ensemble."""

import math

import numpy as np
import pytest
import scipy.integrate
import scipy.interpolate
import torch

from models.distribution import (
    Bernstein,
    Empirical,
    Ensemble,
    PowerTransformed,
    Quantiles,
    empirical_quantiles,
    power_transformed,
)
from models.members.options import QUANTILE_LEVELS

CLOSE = {"rtol": 1e-9, "atol": 1e-12}
LEVELS = torch.tensor([0.05, 0.25, 0.4, 0.9], dtype=torch.float64)


TRUTH = torch.tensor([-1.0, 0.2, 3.0], dtype=torch.float64)


def values(K=7, seed=0):
    drawn = torch.randn(K, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return drawn.sort(0).values


def test_scores_are_those_of_an_ensemble_of_the_values():
    past = values()
    for fair in (False, True):
        torch.testing.assert_close(Empirical(past).crps(TRUTH, fair), Ensemble(past).crps(TRUTH))
    np.testing.assert_allclose(Empirical(past).std, past.numpy().std(0))


def test_quantiles_are_those_of_hazen():
    past, levels = values(), torch.tensor([0.0, 0.05, 0.5, 0.93, 1.0])
    expected = np.quantile(past.numpy(), levels, axis=0, method="hazen")
    np.testing.assert_allclose(Empirical(past).quantile(levels), expected, rtol=1e-6)


def test_the_distribution_function_inverts_quantiles_and_has_mass_where_values_are_equal():
    past = Empirical(torch.tensor([[0.0], [0.0], [0.0], [2.0], [5.0]], dtype=torch.float64))
    levels = torch.tensor([0.6, 0.61, 0.65, 0.7, 0.8, 0.85], dtype=torch.float64)
    for level in levels:
        assert float(past.cdf(past.quantile(level[None])[0])) == pytest.approx(float(level))
    at = {-0.1: 0.0, 0.0: 0.6, 1e-12: 0.6, 1.0: 0.65, 2.0: 0.7, 4.999999: 0.9, 5.0: 1.0, 6.0: 1.0}
    for value, level in at.items():
        assert float(past.cdf(torch.tensor([value], dtype=torch.float64))) == pytest.approx(level, abs=1e-6)


def test_between_two_repeated_values_there_is_no_probability():
    past = Empirical(torch.tensor([[0.0], [0.0], [3.0], [3.0], [4.0]], dtype=torch.float64))
    found = past.quantile(torch.tensor([0.0, 0.39, 0.41, 0.79, 0.85, 1.0], dtype=torch.float64))[:, 0]
    assert found.tolist() == pytest.approx([0, 0, 3, 3, 3.5, 4])
    for value, level in {0.0: 0.4, 2.0: 0.4, 3.0: 0.8, 3.5: 0.85}.items():
        assert float(past.cdf(torch.tensor([value], dtype=torch.float64))) == pytest.approx(level)


def test_powers_of_past_values_are_past_values():
    past = Empirical(values())
    squared = power_transformed(past, 0.5, torch.zeros(3, dtype=torch.float64))
    assert not isinstance(squared, PowerTransformed)
    torch.testing.assert_close(squared.values, past.values.clamp(min=0).square())


@pytest.mark.parametrize("count", [1, 4, 25, 60])
def test_quantiles_of_cases_leave_out_missing_ones(count):
    cases = torch.randn(30, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    cases[5:9, 1], cases[1:, 2], cases[:, 3] = torch.nan, torch.nan, torch.nan
    found = empirical_quantiles(cases, count)
    levels = (np.arange(count) + 0.5) / count
    for column in range(3):
        known = cases[:, column][cases[:, column].isfinite()].numpy()
        np.testing.assert_allclose(found[:, column], np.quantile(known, levels, method="hazen"), atol=1e-12)
    assert found[:, 3].isnan().all()
    assert torch.equal(empirical_quantiles(cases[:, :1], 30), cases[:, :1].sort(0).values)


@pytest.mark.parametrize("K", [2, 7, 50])
def test_at_the_levels_of_hazen_all_numbers_are_those_of_an_ensemble(K):
    levels = QUANTILE_LEVELS["hazen"](torch.arange(1, K + 1, dtype=torch.float64), K)
    found, members = Quantiles(values(K), levels), Ensemble(values(K))
    for fair in (False, True):
        torch.testing.assert_close(found.crps(TRUTH, fair), members.crps(TRUTH), **CLOSE)
    torch.testing.assert_close(found.mean, members.mean, **CLOSE)
    torch.testing.assert_close(found.std, members.std, **CLOSE)


def test_scores_and_moments_equal_weighted_sums():
    p = np.array([0.15, 0.175, 0.325, 0.35])  # ends half-way: 0, .15, .325, .65, 1
    x, found = values(4).numpy(), Quantiles(values(4), LEVELS)
    np.testing.assert_allclose(found.probabilities, p, rtol=1e-12)
    pairs = np.einsum("i,j,ijs->s", p, p, abs(x[:, None] - x[None]))
    np.testing.assert_allclose(found.crps(TRUTH), p @ abs(x - TRUTH.numpy()) - pairs / 2, rtol=1e-12)
    np.testing.assert_allclose(found.mean, p @ x, rtol=1e-12)
    np.testing.assert_allclose(found.std, np.sqrt(p @ (x - p @ x) ** 2 / (1 - p @ p)), rtol=1e-12)


def test_quantiles_and_cdf_interpolate_between_the_levels():
    x = values(4)
    found = Quantiles(x, LEVELS)
    wanted = torch.tensor([0.01, 0.05, 0.3, 0.65, 0.9, 0.99], dtype=torch.float64)
    for cell in range(3):
        expected = np.interp(wanted, LEVELS, x[:, cell])
        np.testing.assert_allclose(found.quantile(wanted)[:, cell], expected, rtol=1e-12)
    inside = wanted[1:4]
    for level in inside:
        torch.testing.assert_close(found.cdf(found.quantile(level[None])[0]), level.expand(3), **CLOSE)
    assert found.cdf(x[0] - 1e-9).tolist() == [0, 0, 0]
    assert found.cdf(x[-1]).tolist() == [1, 1, 1]


def test_crossing_quantiles_are_sorted():
    x = values(4)
    torch.testing.assert_close(Quantiles(x.flip(0), LEVELS).crps(TRUTH), Quantiles(x, LEVELS).crps(TRUTH))


def ascending(seed, *shape):
    steps = torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) ** 2 + 0.01
    return steps.cumsum(0) - 2


def polynomial(coefficients):
    return scipy.interpolate.BPoly(np.asarray(coefficients, dtype=float)[:, None], [0, 1])


@pytest.mark.parametrize("degree", [1, 2, 5, 12, 30])
def test_quantiles_and_moments_equal_scipy(degree):
    coefficients = ascending(0, degree + 1)
    ours, theirs = Bernstein(coefficients), polynomial(coefficients)
    level = torch.linspace(0, 1, 21, dtype=torch.float64)
    np.testing.assert_allclose(ours.quantile(level), theirs(level), rtol=1e-12)
    mean = float(theirs.integrate(0, 1))
    square = scipy.integrate.quad(lambda t: (theirs(t) - mean) ** 2, 0, 1)[0]
    assert float(ours.mean) == pytest.approx(mean, rel=1e-12)
    assert float(ours.std) == pytest.approx(math.sqrt(square), rel=1e-10)
    for p, value in zip(level[1:-1], ours.quantile(level[1:-1]), strict=True):
        assert float(ours.cdf(value)) == pytest.approx(float(p), abs=1e-12)
        assert float(ours.log_prob(value)) == pytest.approx(-math.log(theirs.derivative()(p)), abs=1e-9)
    assert ours.log_prob(coefficients[-1] + 1e-9) == ours.log_prob(coefficients[0] - 1e-9) == -math.inf
    assert ours.log_prob(torch.tensor(torch.nan)).isnan()  # also where the density does not depend on the level


@pytest.mark.parametrize("degree", [1, 3, 12])
@pytest.mark.parametrize("position", [-0.5, 0.0, 0.01, 0.4, 0.97, 1.0, 1.5])
def test_crps_is_the_integral_of_the_quantile_score(degree, position):
    coefficients = ascending(1, degree + 1)
    ours, theirs = Bernstein(coefficients), polynomial(coefficients)
    y = coefficients[0] + position * (coefficients[-1] - coefficients[0])

    def quantile_score(level):
        return 2 * ((theirs(level) >= float(y)) - level) * (theirs(level) - float(y))

    turn = float(ours.cdf(y))
    expected = sum(scipy.integrate.quad(quantile_score, *edges)[0] for edges in ((0, turn), (turn, 1)))
    assert float(ours.crps(y)) == pytest.approx(expected, abs=1e-12)


def test_a_distribution_far_from_zero_keeps_its_digits_in_float32():
    coefficients, y = ascending(5, 13) + 280, torch.tensor(279.0)
    exact = Bernstein(coefficients.float().double()).crps(y.double())
    assert float(Bernstein(coefficients.float()).crps(y)) == pytest.approx(float(exact), rel=1e-5)


def test_smaller_coefficients_are_raised_and_one_alone_is_an_error():
    assert Bernstein(torch.tensor([0.0, 2.0, 1.0, 3.0])).coefficients.tolist() == [0, 2, 2, 3]
    with pytest.raises(ValueError, match="needs at least two coefficients"):
        Bernstein(torch.zeros(1, 3))
