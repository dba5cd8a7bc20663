"""Scores of forecasts whose score is known in closed form, and propriety."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from score_cases import diagram_of, draws, make_case, score_of

from data_pipeline.statistics.efi import extreme_forecast_index
from data_pipeline.variables.thresholds import Threshold
from evaluation.scores import ratios
from evaluation.scores.extremes import INDEX_LEVELS, crossing_point, diagonal_score, index_of
from models.distribution import CensoredNormal, Ensemble, Normal

N = 200_000


def standard(starts=1, cells=N):
    """Standard normal forecasts of truth drawn from them."""
    truth = draws(starts, 1, 1, cells, seed=3)
    return Normal(torch.zeros_like(truth), torch.ones_like(truth)), truth


def test_the_true_distribution_has_the_nominal_coverage():
    case = make_case(*standard())
    np.testing.assert_allclose(score_of("coverage", case), [0.5, 0.8], atol=5e-3)
    np.testing.assert_allclose(score_of("interval_width", case), [2 * 0.6744897501960817, 2 * 1.2815515655446004])


@pytest.mark.parametrize("M", [9, 19])
def test_central_intervals_of_members_have_their_nominal_coverage(M):
    case = make_case(Ensemble(draws(M, 1, 1, 1, N // 4)), draws(1, 1, 1, N // 4, seed=1))
    # Between two members the distribution function of the truth is not linear: 0.508 for 9 members.
    np.testing.assert_allclose(score_of("coverage", case), [0.5, 0.8], atol=0.012)
    few = score_of("coverage", make_case(Ensemble(draws(5, 1, 1, 1, 10)), draws(1, 1, 1, 10)))
    assert np.isfinite(few).tolist() == [True, False], "five members have no outer quantiles"


def reliable(starts, cells, seed=0):
    """Probabilities that are right: a normal forecast of variance 0.5 around a signal of variance 0.5."""
    signal = draws(starts, 1, 1, cells, seed=seed) * math.sqrt(0.5)
    truth = signal + draws(starts, 1, 1, cells, seed=seed + 1) * math.sqrt(0.5)
    return make_case(Normal(signal, torch.full_like(signal, math.sqrt(0.5))), truth)


def test_a_reliable_forecast_lies_on_the_diagonal():
    case = reliable(100, 2000)
    curve = diagram_of("reliability", case)["> 0.3"]
    np.testing.assert_allclose(curve["y"], curve["x"], atol=0.02)
    assert score_of("brier_reliability", case)[0] < 2e-4
    assert score_of("brier_miscalibration", case)[0] < 2e-4
    inside = [(c["low"] <= c["y"]) & (c["y"] <= c["high"]) for c in map(curve_of_seed, range(8))]
    assert 0.8 <= np.concatenate(inside).mean() <= 0.97, "consistency bars hold 90 %"


def curve_of_seed(seed):
    return diagram_of("reliability", reliable(60, 50, 10 * seed + 100))["> 0.3"]


def test_bars_are_wider_for_equal_cells():
    """A hundred copies of a cell are no further cases."""
    few = reliable(200, 1)
    copies = make_case(
        Normal(few.forecast.mu.expand(-1, -1, -1, 100), few.forecast.sigma.expand(-1, -1, -1, 100)),
        few.truth.expand(-1, -1, -1, 100).contiguous(),
    )
    one, many = (diagram_of("reliability", case)["> 0.3"] for case in (few, copies))
    np.testing.assert_allclose(many["y"], one["y"])
    np.testing.assert_allclose(many["high"] - many["low"], one["high"] - one["low"], atol=1e-9)


def test_an_event_that_never_happens_has_no_roc():
    case = make_case(Ensemble(draws(4, 2, 1, 1, 5)), draws(2, 1, 1, 5), ((Threshold(">", 99.0),),))
    for name in ("roc_area", "economic_value"):
        assert np.isnan(score_of(name, case)).all()
    assert score_of("brier", case) == [0]


def test_the_index_of_a_model_equals_that_of_its_members():
    climate = Normal(draws(1, 4), draws(1, 4, seed=1).exp())
    members = draws(6, 1, 4, seed=2)
    quantiles = climate.quantile(torch.from_numpy(INDEX_LEVELS).clamp(1e-6, 1 - 1e-6))
    for eps in (-np.inf, 0.5):
        expected = extreme_forecast_index(members.numpy(), quantiles.numpy(), eps=eps, probabilities=INDEX_LEVELS)
        np.testing.assert_allclose(index_of(Ensemble(members), climate, eps), expected, atol=1e-12)


def normal(mean, spread):
    """Normal distributions of all pairs of means and spreads, in a line."""
    pairs = torch.cartesian_prod(*(torch.tensor(values, dtype=torch.float64) for values in (mean, spread)))
    return Normal(*pairs.T)


def test_the_index_of_a_normal_forecast_is_the_integral():
    """2/π ∫ (p - F(p)) / √(p (1 - p)) dp = 4/π ∫ (sin² a - F(sin² a)) da, in a standard normal climate."""
    angle = (np.arange(20_000) + 0.5) / 20_000 * np.pi / 2
    p = np.sin(angle)[:, None] ** 2
    forecast = normal([-3, -2.5, -1, 0.5, 2, 3.5], [0.1, 0.3, 1, 1.5])
    expected = 2 * np.mean(p - stats.norm.cdf(stats.norm.ppf(p), forecast.mu, forecast.sigma), axis=0)
    climate = Normal(torch.zeros_like(forecast.mu), torch.ones_like(forecast.mu))
    np.testing.assert_allclose(index_of(forecast, climate), expected, atol=0.01)


def test_crossing_point_of_normal_distributions():
    """Quantiles μ + σ z and z are equal at z = μ/(1 - σ); a forecast wider than the climate never falls below it."""
    forecast = normal([-3, -1, -0.3, 0.3, 1, 3], [0.3, 0.6, 1.5])
    climate = normal([0.0], [1.0])
    found = crossing_point(forecast, Normal(*(one.expand_as(forecast.mu) for one in (climate.mu, climate.sigma))))
    above = forecast.mu > 0
    expected = np.where(forecast.sigma < 1, stats.norm.cdf(forecast.mu / (1 - forecast.sigma)), above)
    np.testing.assert_allclose(found, expected, atol=3e-3)


@given(st.floats(0, 1), st.floats(0, 1))
def test_diagonal_score_is_the_integral_over_all_users(crossing, truth):
    tau = (np.arange(20_000) + 0.5) / 20_000
    protected, happened = tau <= crossing, tau < truth
    expected = np.mean((protected & ~happened) * (1 - tau) + (~protected & happened) * tau)
    assert float(diagonal_score(torch.tensor(crossing), torch.tensor(truth))) == pytest.approx(expected, abs=1e-4)


def test_reliability_and_potential_of_the_crps_by_the_definition():
    """Bin by bin as in Hersbach (2000); an ensemble that is too narrow is less reliable than a calibrated one."""
    M, N, found = 5, 400, []
    truth = draws(1, 1, 1, N, seed=1)
    for spread in (1.0, 0.3):
        case = make_case(Ensemble(spread * draws(M, 1, 1, 1, N)), truth, bins=M + 1)
        x, y = np.sort(case.forecast.members.flatten(1).numpy(), 0), truth.flatten().numpy()
        alpha, beta = np.zeros((2, M + 1, N))
        for i, n in np.ndindex(M + 1, N):
            low, high = x[i - 1, n] if i else -np.inf, x[i, n] if i < M else np.inf
            if y[n] > low and i:
                alpha[i, n] = min(y[n], high) - low
            if y[n] < high and i < M:
                beta[i, n] = high - max(y[n], low)
        g, o = (alpha + beta).mean(1), beta.mean(1) / (alpha + beta).mean(1)
        o[0], o[M] = np.mean(y < x[0]), np.mean(y < x[-1])
        g[0], g[M] = beta[0].mean() / o[0], alpha[M].mean() / (1 - o[M])
        reliability, potential = (score_of(f"crps_{name}", case) for name in ("reliability", "potential"))
        assert reliability == pytest.approx(np.sum(g * (o - np.arange(M + 1) / M) ** 2), rel=1e-9)
        assert potential == pytest.approx(np.sum(g * o * (1 - o)), rel=1e-9)
        assert reliability + potential == pytest.approx(score_of("crps", case), rel=1e-9)
        found.append(reliability)
    assert found[1] > 2 * found[0]


def test_parts_of_the_crps_of_distributions():
    """½ E|X - X'| is the integral of (2τ - 1) Q(τ), and E max(X - y, 0) the mean over quantiles."""
    levels = (torch.arange(100_000, dtype=torch.float64) + 0.5) / 100_000
    mean, scale, truth = (draws(1, 1, 1, 6, seed=seed) for seed in (1, 2, 3))
    for forecast in (Normal(mean, scale.exp()), CensoredNormal(mean, scale.exp(), 0 * mean)):
        y = truth.clamp(min=0) if forecast.bound is not None else truth
        values = forecast.quantile(levels)
        spread = ((2 * levels - 1).view(-1, 1, 1, 1, 1) * values).mean(0)
        expected = [(values - y).clamp(min=0).mean(), spread.mean(), (y - values).clamp(min=0).mean()]
        np.testing.assert_allclose(score_of("crps_parts", make_case(forecast, y)), expected, atol=1e-4)


def test_anomaly_correlation_counts_all_cells_together():
    case = reliable(8, 5)
    climate = Normal(draws(*case.truth.shape, seed=4), torch.ones_like(case.truth))
    f, y = case.forecast.mu - climate.mu, case.truth - climate.mu
    expected = (f * y).sum() / (f.square().sum() * y.square().sum()).sqrt()
    assert score_of("acc", make_case(case.forecast, case.truth, climate=climate)) == pytest.approx(float(expected))


def test_indices_of_extremes_tell_extreme_cases_from_others():
    case = reliable(20, 500)
    climate = Normal(torch.zeros_like(case.truth), torch.ones_like(case.truth))
    for name in ("efi_roc_area", "sot_roc_area"):
        sharp = score_of(name, make_case(case.forecast, case.truth, climate=climate))
        assert (sharp > 0.8).all()
        np.testing.assert_allclose(score_of(name, make_case(climate, case.truth, climate=climate)), 0.5, atol=1e-12)


def test_eecrps_is_the_mean_over_the_known_cells():
    truth = draws(2, 1, 1, 6)
    extremeness = draws(2, 1, 1, 6, seed=1).clamp(-1, 1)
    extremeness[0, 0, 0, :3] = torch.nan
    case = make_case(Ensemble(draws(5, 2, 1, 1, 6, seed=2)), truth, extremeness=extremeness)
    for name, crps in (("eecrps", case.crps), ("eecrps_fair", case.crps_fair)):
        products = (extremeness.abs() * crps).flatten()
        expected = products[products.isfinite()].mean()
        assert score_of(name, case) == pytest.approx(float(expected), rel=1e-12)


def test_ratios_of_scores():
    """The skill is relative to a reference; `captured` counts from raw to oracle. Nothing is divided by zero."""
    raw, oracle = np.array(2.0), np.array(1.0)
    assert [float(ratios.captured(crps, raw, oracle)) for crps in (raw, oracle, np.array(1.25))] == [0, 1, 0.75]
    assert np.isnan(ratios.captured(raw, raw, raw))
    assert [float(ratios.skill(np.array(crps), np.array(1.0))) for crps in (0.75, 2.0)] == [0.25, -1]
    assert np.isnan(ratios.skill(np.array(1.0), np.array(0.0)))
