"""Distributions of past values and of quantiles, against numpy, the ensemble and pinball losses."""

import numpy as np
import pytest
import torch

from models.correction.options import QUANTILE_LEVELS
from models.distribution import (
    Empirical,
    Ensemble,
    PowerTransformed,
    Quantiles,
    empirical_quantiles,
    power_transformed,
)

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


def test_the_score_is_twice_the_weighted_pinball_loss_where_levels_are_evenly_spaced():
    levels = torch.arange(1, 10, dtype=torch.float64) / 9 - 1 / 18
    x, tau, y = values(9).numpy(), levels.numpy()[:, None], TRUTH.numpy()
    pinball = np.maximum(tau * (y - x), (tau - 1) * (y - x))
    np.testing.assert_allclose(Quantiles(values(9), levels).crps(TRUTH), 2 * pinball.mean(0), rtol=1e-12)


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
