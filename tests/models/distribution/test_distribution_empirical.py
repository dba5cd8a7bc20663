"""The empirical distribution of past values against numpy and the ensemble."""

import numpy as np
import pytest
import torch

from models.distribution import Empirical, Ensemble, PowerTransformed, empirical_quantiles, power_transformed


def values(K=7, seed=0):
    drawn = torch.randn(K, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return drawn.sort(0).values


def test_scores_are_those_of_an_ensemble_of_the_values():
    past, y = values(), torch.tensor([-1.0, 0.2, 3.0], dtype=torch.float64)
    for fair in (False, True):
        torch.testing.assert_close(Empirical(past).crps(y, fair), Ensemble(past).crps(y))
    np.testing.assert_allclose(Empirical(past).std, past.numpy().std(0))


@pytest.mark.parametrize("level", [0.0, 0.05, 0.5, 0.93, 1.0])
def test_quantiles_are_those_of_hazen(level):
    past = values()
    expected = np.quantile(past.numpy(), level, axis=0, method="hazen")
    np.testing.assert_allclose(Empirical(past).quantile(torch.tensor([level]))[0], expected)
    own = torch.full((1, 3), level)
    np.testing.assert_allclose(Empirical(past).quantile(own)[0], expected)


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
