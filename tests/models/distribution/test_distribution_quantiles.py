"""A distribution of quantiles against the ensemble, weighted sums in numpy and pinball losses."""

import numpy as np
import pytest
import torch

from models.correction.options import QUANTILE_LEVELS
from models.distribution import Ensemble, Quantiles

CLOSE = {"rtol": 1e-9, "atol": 1e-12}
LEVELS = torch.tensor([0.05, 0.25, 0.4, 0.9], dtype=torch.float64)


def values(K, seed=0):
    drawn = torch.randn(K, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return drawn.sort(0).values


TRUTH = torch.tensor([-1.0, 0.2, 3.0], dtype=torch.float64)


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
