"""Scores equal those of published libraries on the same inputs, wherever both define the same quantity."""

import numpy as np
import properscoring
import pytest
import scoringrules
import torch
import xarray as xr
import xskillscore
from score_cases import diagram_of, draws, ensemble_case, members_and_truth, normal_case, score_of
from scores.continuous import quantile_interval_score, quantile_score
from scores.plotdata import relative_economic_value as published_value
from scores.probability import (
    brier_score,
    brier_score_for_ensemble,
    crps_for_ensemble,
    isotonic_fit,
    rank_histogram,
    roc_auc,
    tail_tw_crps_for_ensemble,
)
from sklearn.isotonic import IsotonicRegression
from sklearn.metrics import roc_auc_score

from evaluation.scores.binned_probability import outcomes, probabilities
from evaluation.scores.quantile_scores import INTERVALS, LEVELS, forecast_quantiles
from evaluation.scores.reliability import isotonic_regression
from evaluation.scores.threshold import Event
from evaluation.scores.weighted_crps import crps_beyond, crps_given
from models.distribution import Ensemble, energy_score

EXACT = {"rtol": 1e-10, "atol": 1e-12}


def arrays(case):
    """Members (M, N), truth (N,)."""
    return case.forecast.members.flatten(1).numpy(), case.truth.flatten().numpy()


def labelled(case):
    """Members and truth as xarray objects."""
    members, truth = arrays(case)
    return xr.DataArray(members, dims=("member", "case")), xr.DataArray(truth, dims="case")


CASE = ensemble_case()
NORMAL = normal_case()


def test_crps_of_members():
    (members, truth), (forecast, observed) = arrays(CASE), labelled(CASE)
    plain, fair = score_of("crps", CASE), score_of("crps_fair", CASE)
    np.testing.assert_allclose(
        plain, scoringrules.crps_ensemble(truth, members, m_axis=0, estimator="nrg").mean(), **EXACT
    )
    np.testing.assert_allclose(plain, properscoring.crps_ensemble(truth, members, axis=0).mean(), **EXACT)
    np.testing.assert_allclose(plain, xskillscore.crps_ensemble(observed, forecast), **EXACT)
    np.testing.assert_allclose(plain, crps_for_ensemble(forecast, observed, "member", method="ecdf"), **EXACT)
    np.testing.assert_allclose(
        fair, scoringrules.crps_ensemble(truth, members, m_axis=0, estimator="fair").mean(), **EXACT
    )
    np.testing.assert_allclose(fair, crps_for_ensemble(forecast, observed, "member", method="fair"), **EXACT)


def test_crps_and_log_score_of_a_normal_distribution():
    mu, sigma = (getattr(NORMAL.forecast, name).numpy() for name in ("mu", "sigma"))
    truth = NORMAL.truth.numpy()
    np.testing.assert_allclose(score_of("crps", NORMAL), properscoring.crps_gaussian(truth, mu, sigma).mean(), **EXACT)
    np.testing.assert_allclose(score_of("crps", NORMAL), scoringrules.crps_normal(truth, mu, sigma).mean(), **EXACT)
    np.testing.assert_allclose(
        score_of("log_score", NORMAL), scoringrules.logs_normal(truth, mu, sigma).mean(), **EXACT
    )


@pytest.mark.parametrize("case", [CASE, NORMAL], ids=["members", "normal"])
def test_brier_score(case):
    probability, outcome = case.once(probabilities).flatten(1).numpy(), case.once(outcomes).flatten(1).numpy()
    for k in range(2):
        found = score_of("brier", case)[k]
        np.testing.assert_allclose(found, scoringrules.brier_score(outcome[k], probability[k]).mean(), **EXACT)
        np.testing.assert_allclose(found, properscoring.brier_score(outcome[k], probability[k]).mean(), **EXACT)
        forecast, observed = (xr.DataArray(values[k], dims="case") for values in (probability, outcome))
        np.testing.assert_allclose(found, xskillscore.brier_score(observed, forecast), **EXACT)
        np.testing.assert_allclose(found, brier_score(forecast, observed), **EXACT)


def test_brier_score_of_members():
    """Also fair, and with the threshold applied by the library: the event is a value of at least the threshold."""
    forecast, observed = labelled(CASE)
    for fair, name in ((False, "brier"), (True, "brier_fair")):
        found = brier_score_for_ensemble(forecast, observed, "member", 0.3, fair_correction=fair)
        np.testing.assert_allclose(score_of(name, CASE)[0], float(found.squeeze()), **EXACT)
    members, truth = arrays(CASE)
    found = properscoring.threshold_brier_score(truth, members, 0.3, axis=0).mean()
    np.testing.assert_allclose(score_of("brier", CASE)[0], found, **EXACT)


def test_area_below_the_roc_curve_of_members():
    probability, outcome = CASE.once(probabilities).flatten(1).numpy(), CASE.once(outcomes).flatten(1).numpy()
    for k in range(2):
        np.testing.assert_allclose(score_of("roc_area", CASE)[k], roc_auc_score(outcome[k], probability[k]), **EXACT)
        forecast, observed = (xr.DataArray(values[k], dims="case") for values in (probability, outcome))
        np.testing.assert_allclose(score_of("roc_area", CASE)[k], roc_auc(forecast, observed), **EXACT)
        edges = np.concatenate([np.arange(8) / 7 - 1e-9, [1.1]])
        area = xskillscore.roc(observed.astype(bool), forecast, edges, return_results="area")
        np.testing.assert_allclose(score_of("roc_area", CASE)[k], float(area), **EXACT)


def test_economic_value():
    """The library warns where the probability is at least a threshold, and takes the best of all thresholds."""
    curve = diagram_of("economic_value", CASE)["> 0.3"]
    probability, outcome = (values[0].flatten().numpy() for values in (CASE.once(probabilities), CASE.once(outcomes)))
    forecast, observed = xr.DataArray(probability, dims="case"), xr.DataArray(outcome, dims="case")
    thresholds = [0.0, *(np.arange(1, 8) / 7 - 1e-9), 1.0]
    found = published_value(
        forecast, observed, cost_loss_ratios=list(curve["x"]), probability_thresholds=thresholds,
        generate_maximum_rev=True,
    )  # fmt: skip
    # The library has no user who never warns: a forecast of probability 1 is always a warning.
    np.testing.assert_allclose(curve["y"], np.maximum(found["maximum"], 0), rtol=1e-10, atol=1e-10)
    assert (found["maximum"] < 0).any()


def test_quantile_and_interval_scores():
    levels = torch.tensor(LEVELS, dtype=torch.float64)
    quantiles, truth = NORMAL.forecast.quantile(levels).flatten(1).numpy(), NORMAL.truth.flatten().numpy()
    observed = xr.DataArray(truth, dims="case")
    for k, level in enumerate(LEVELS):
        found = score_of("quantile_score", NORMAL)[k]
        np.testing.assert_allclose(found, scoringrules.quantile_score(truth, quantiles[k], level).mean(), **EXACT)
        forecast = xr.DataArray(quantiles[k], dims="case")
        np.testing.assert_allclose(found, quantile_score(forecast, observed, level), **EXACT)
    for k, (low, high) in enumerate(INTERVALS.values()):
        found = score_of("interval_score", NORMAL)[k]
        ends = quantiles[low], quantiles[high]
        alpha = 2 * LEVELS[low]
        np.testing.assert_allclose(found, scoringrules.interval_score(truth, *ends, alpha).mean(), **EXACT)
        lower, upper = (xr.DataArray(end, dims="case") for end in ends)
        other = quantile_interval_score(lower, upper, observed, LEVELS[low], LEVELS[high])
        np.testing.assert_allclose(found, float(other["total"]), **EXACT)


def test_quantiles_of_members_have_the_levels_of_weibull():
    members, _ = arrays(CASE)
    levels = torch.tensor(LEVELS[1:4], dtype=torch.float64)
    found = forecast_quantiles(Ensemble(torch.from_numpy(members)), levels)
    np.testing.assert_allclose(found, np.quantile(members, LEVELS[1:4], axis=0, method="weibull"), **EXACT)
    hazen = forecast_quantiles(Ensemble(torch.from_numpy(members)), levels, drawn=False)
    np.testing.assert_allclose(hazen, np.quantile(members, LEVELS[1:4], axis=0, method="hazen"), **EXACT)


def test_threshold_weighted_crps():
    (members, truth), (forecast, observed) = arrays(CASE), labelled(CASE)
    for k, (tail, threshold, chain) in enumerate(
        (("upper", 0.3, lambda x: np.maximum(x, 0.3)), ("lower", -0.5, lambda x: np.minimum(x, -0.5)))
    ):
        found = score_of("threshold_crps", CASE)[k]
        own = scoringrules.twcrps_ensemble(truth, members, v_func=chain, m_axis=0, estimator="nrg").mean()
        np.testing.assert_allclose(found, own, **EXACT)
        for method, name in (("ecdf", "threshold_crps"), ("fair", "threshold_crps_fair")):
            other = tail_tw_crps_for_ensemble(forecast, observed, "member", threshold, method=method, tail=tail)
            np.testing.assert_allclose(score_of(name, CASE)[k], float(other), **EXACT)


def test_threshold_weighted_crps_of_a_normal_distribution():
    """The CRPS beyond a threshold is that of the distribution censored there."""
    mu, sigma = (getattr(NORMAL.forecast, name).numpy() for name in ("mu", "sigma"))
    event = Event(torch.full((1, 1, 1), 0.3, dtype=torch.float64), torch.ones(1, 1, 1, dtype=torch.bool))
    found = crps_beyond(NORMAL.forecast, NORMAL.truth, event).numpy()
    expected = scoringrules.crps_cnormal(np.maximum(NORMAL.truth.numpy(), 0.3), mu, sigma, lower=0.3)
    known = np.isfinite(expected)  # the library divides by the probability above the threshold
    np.testing.assert_allclose(found[known], expected[known], **EXACT)
    assert known.mean() > 0.95


@pytest.mark.parametrize(("above", "limit"), [(True, 0.3), (False, -0.5)])
def test_outcome_weighted_crps_of_members(above, limit):
    """The library divides by the number of members in the event, which is 0 in some cases: there, it has no score."""

    def weight(values):
        return 1.0 * ((values > limit) == above)

    members, truth = members_and_truth()
    event = Event(torch.full((1, 1, 1), limit, dtype=torch.float64), torch.full((1, 1, 1), above))
    found = crps_given(Ensemble(members), truth, event).flatten().numpy()
    x, y = members.flatten(1).numpy(), truth.flatten().numpy()
    some = weight(x).any(0)
    expected = scoringrules.owcrps_ensemble(y[some], x[:, some], m_axis=0, w_func=weight)
    np.testing.assert_allclose(found[some], expected, **EXACT)
    np.testing.assert_allclose(found[~some], (np.abs(y - limit) * weight(y))[~some], **EXACT)
    assert (weight(y)[~some] == 1).any(), "in some case no member foresaw the event"


def test_outcome_weighted_crps_of_a_normal_distribution():
    """Given the event, a normal distribution is a truncated normal distribution."""
    mu, sigma = (getattr(NORMAL.forecast, name).numpy() for name in ("mu", "sigma"))
    y, limit = NORMAL.truth.numpy(), np.full_like(mu, 0.3)
    happened = y > 0.3
    expected = scoringrules.crps_tnormal(
        y[happened], mu[happened], sigma[happened], limit[happened], np.full(happened.sum(), np.inf)
    )
    event = Event(torch.full((1, 1, 1), 0.3, dtype=torch.float64), torch.ones(1, 1, 1, dtype=torch.bool))
    found = crps_given(NORMAL.forecast, NORMAL.truth, event)[torch.from_numpy(happened)]
    np.testing.assert_allclose(found, expected, rtol=1e-5)  # the library loses digits in far tails


def test_energy_score():
    members, truth = draws(6, 30, 3), draws(30, 3, seed=5)
    for fair, estimator in ((False, "nrg"), (True, "fair")):
        expected = scoringrules.es_ensemble(truth.numpy(), members.numpy(), m_axis=0, estimator=estimator)
        np.testing.assert_allclose(energy_score(members, truth, dim=1, fair=fair), expected, **EXACT)


def test_rank_histogram():
    forecast, observed = labelled(CASE)
    found = diagram_of("rank_histogram", CASE)[""]["y"]
    counts = xskillscore.rank_histogram(observed, forecast, dim="case", member_dim="member")
    np.testing.assert_allclose(found, counts / counts.sum(), **EXACT)
    np.testing.assert_allclose(found, rank_histogram(forecast, observed, "member"), **EXACT)


def test_isotonic_regression():
    rng = np.random.default_rng(0)
    for _ in range(50):
        values, weights = rng.random(20), rng.random(20) + 0.01
        expected = IsotonicRegression().fit(np.arange(20), values, weights).predict(np.arange(20))
        np.testing.assert_allclose(isotonic_regression(values, weights), expected, **EXACT)
        both = isotonic_regression(np.stack([values, 1 - values]), weights)
        np.testing.assert_allclose(both[0], expected, **EXACT)


def test_reliability_curve_of_members_equals_isotonic_regression_of_all_cases():
    probability, outcome = (values[0].flatten().numpy() for values in (CASE.once(probabilities), CASE.once(outcomes)))
    curve = diagram_of("reliability", CASE)["> 0.3"]
    np.testing.assert_allclose(curve["x"], np.unique(probability), **EXACT)
    np.testing.assert_allclose(curve["y"], [outcome[probability == p].mean() for p in np.unique(probability)], **EXACT)
    fitted = IsotonicRegression().fit(probability, outcome)
    np.testing.assert_allclose(curve["calibrated"], fitted.predict(np.unique(probability)), **EXACT)
    other = isotonic_fit(xr.DataArray(probability, dims="case"), xr.DataArray(outcome, dims="case"), functional="mean")
    np.testing.assert_allclose(curve["calibrated"], other["regression_func"](np.unique(probability)), **EXACT)
    found = xskillscore.reliability(
        xr.DataArray(outcome, dims="case").astype(bool), xr.DataArray(probability, dims="case"),
        probability_bin_edges=np.append(np.arange(8) / 7 - 1e-9, 1.1),
    )  # fmt: skip
    np.testing.assert_allclose(curve["y"], found, **EXACT)


def test_miscalibration_and_discrimination_add_up_to_the_brier_score():
    for name, case in (("members", CASE), ("normal", NORMAL)):
        parts = [score_of(f"brier_{part}", case) for part in ("miscalibration", "discrimination", "uncertainty")]
        total = parts[0] - parts[1] + parts[2]
        tolerance = 1e-10 if name == "members" else 2e-3  # probabilities within a bin differ
        np.testing.assert_allclose(total, score_of("brier", case), rtol=tolerance)


def test_both_tails_of_the_threshold_weighted_crps_add_up():
    limit = torch.full((1, 1, 1), 0.1, dtype=torch.float64)
    for case in (CASE, NORMAL):
        above, below = (
            crps_beyond(case.forecast, case.truth, Event(limit, torch.full((1, 1, 1), side))) for side in (True, False)
        )
        torch.testing.assert_close(above + below, case.crps)
