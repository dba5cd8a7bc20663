"""Scores equal those of published libraries on the same inputs, wherever both define the same quantity."""

import numpy as np
import pytest
import scoringrules
import torch
import xarray as xr
import xskillscore
from scipy.stats import norm
from score_cases import diagram_of, draws, ensemble_case, make_case, members_and_truth, normal_case, score_of
from scores.categorical import seeps as published_seeps
from scores.plotdata import relative_economic_value as published_value
from scores.probability import brier_score_for_ensemble, crps_for_ensemble, rank_histogram, tail_tw_crps_for_ensemble
from sklearn.isotonic import IsotonicRegression
from sklearn.metrics import roc_auc_score

from evaluation.kernels.isotonic import isotonic_regression
from evaluation.scores.binned_probability import outcomes, probabilities
from evaluation.scores.quantile_scores import INTERVALS, LEVELS, forecast_quantiles
from evaluation.scores.seeps import seeps
from evaluation.scores.threshold import Event
from evaluation.scores.weighted_crps import crps_given
from models.distribution import Ensemble, Normal

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
    found = {
        "crps": [
            scoringrules.crps_ensemble(truth, members, m_axis=0, estimator="nrg").mean(),
            crps_for_ensemble(forecast, observed, "member", method="ecdf"),
        ],
        "crps_fair": [
            scoringrules.crps_ensemble(truth, members, m_axis=0, estimator="fair").mean(),
            crps_for_ensemble(forecast, observed, "member", method="fair"),
        ],
    }
    for name, values in found.items():
        np.testing.assert_allclose([float(value) for value in values], score_of(name, CASE), **EXACT)


def test_parts_of_the_crps_of_members():
    forecast, observed = labelled(CASE)
    found = crps_for_ensemble(forecast, observed, "member", include_components=True)
    parts = [found.sel(component=name) for name in ("overforecast_penalty", "spread", "underforecast_penalty")]
    np.testing.assert_allclose(score_of("crps_parts", CASE), parts, **EXACT)
    forecast, observed = labelled(
        make_case(Ensemble(NORMAL.forecast.quantile(torch.rand(20, *NORMAL.truth.shape))), NORMAL.truth)
    )
    median = np.median(forecast, axis=0)
    sampled = make_case(Ensemble(torch.from_numpy(forecast.values).view(20, *NORMAL.truth.shape)), NORMAL.truth)
    np.testing.assert_allclose(score_of("mae", sampled), np.mean(abs(median - observed.values)), **EXACT)


def test_ranked_probability_score_of_members():
    """In units of the climate, which differs between cells, the library has the same limits in all cells."""
    (members, truth), mean = arrays(CASE), draws(*CASE.truth.shape, seed=5)
    climate = Normal(mean, torch.full_like(mean, 2.0))
    case = make_case(CASE.forecast, CASE.truth, climate=climate)
    forecast = xr.DataArray((members - mean.flatten().numpy()) / 2, dims=("member", "case"))
    observed = xr.DataArray((truth - mean.flatten().numpy()) / 2, dims="case")
    for k, count in enumerate((3, 5)):
        levels = np.arange(1, count) / count
        edges = xr.DataArray(norm.ppf(levels), dims="category_edge")
        climatology = ((xr.DataArray(levels, dims="category_edge") - (observed <= edges)) ** 2).sum("category_edge")
        for ending, fair in (("", False), ("_fair", True)):
            found = float(xskillscore.rps(observed, forecast, edges, fair=fair, member_dim="member"))
            np.testing.assert_allclose(score_of("rps" + ending, case)[k], found, **EXACT)
            skill = 1 - found / float(climatology.mean())
            np.testing.assert_allclose(score_of("rpss" + ending, case)[k], skill, **EXACT)


def test_seeps_of_amounts():
    rng = np.random.default_rng(0)
    forecast, truth, heavy = rng.gamma(0.4, 0.004, (3, 500))
    forecast[::3], truth[::4] = 0, 0
    dry, heavy = rng.uniform(0.1, 0.85, 500), heavy + 4e-4
    found = seeps(*(torch.from_numpy(values) for values in (forecast, truth, dry, heavy)))
    arrays = (xr.DataArray(values, dims="case") for values in (forecast, truth, dry, heavy))
    expected = published_seeps(*arrays, dry_light_threshold=2e-4, preserve_dims="all")
    np.testing.assert_allclose(found, expected, **EXACT)
    assert len(np.unique(np.round(found.numpy() * dry, 9))) > 100


def test_crps_and_log_score_of_a_normal_distribution():
    mu, sigma = (getattr(NORMAL.forecast, name).numpy() for name in ("mu", "sigma"))
    truth = NORMAL.truth.numpy()
    np.testing.assert_allclose(score_of("crps", NORMAL), scoringrules.crps_normal(truth, mu, sigma).mean(), **EXACT)
    np.testing.assert_allclose(
        score_of("log_score", NORMAL), scoringrules.logs_normal(truth, mu, sigma).mean(), **EXACT
    )


def events_of(case):
    """Probabilities and outcomes (threshold, case), as arrays and as xarray objects of each threshold."""
    values = [case.once(function).flatten(1).numpy() for function in (probabilities, outcomes)]
    return *values, [[xr.DataArray(one, dims="case") for one in pair] for pair in zip(*values, strict=True)]


@pytest.mark.parametrize("case", [CASE, NORMAL], ids=["members", "normal"])
def test_brier_score(case):
    probability, outcome, _ = events_of(case)
    found = score_of("brier", case)
    np.testing.assert_allclose(found, scoringrules.brier_score(outcome, probability).mean(1), **EXACT)


def test_fair_brier_score_of_members():
    """With the threshold applied by the library: the event is a value of at least the threshold."""
    forecast, observed = labelled(CASE)
    for fair, name in ((False, "brier"), (True, "brier_fair")):
        found = brier_score_for_ensemble(forecast, observed, "member", 0.3, fair_correction=fair)
        np.testing.assert_allclose(score_of(name, CASE)[0], float(found.squeeze()), **EXACT)


def test_area_below_the_roc_curve_of_members():
    probability, outcome, _ = events_of(CASE)
    for found, p, y in zip(score_of("roc_area", CASE), probability, outcome, strict=True):
        np.testing.assert_allclose(found, roc_auc_score(y, p), **EXACT)


def test_the_drawn_roc_curve_encloses_the_area_and_repeats_no_point():
    for case in (CASE, NORMAL):
        for curve, area in zip(diagram_of("roc", case).values(), score_of("roc_area", case), strict=True):
            x, y = curve["x"], curve["y"]
            np.testing.assert_allclose(((y[1:] + y[:-1]) / 2 * -np.diff(x)).sum(), area, **EXACT)
            assert ((np.diff(x) != 0) | (np.diff(y) != 0)).all()


def test_economic_value():
    """The library warns where the probability is at least a threshold, and takes the best of all thresholds."""
    curve = diagram_of("economic_value", CASE)["> 0.3"]
    forecast, observed = events_of(CASE)[2][0]
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
    for k, level in enumerate(LEVELS):
        found = score_of("quantile_score", NORMAL)[k]
        np.testing.assert_allclose(found, scoringrules.quantile_score(truth, quantiles[k], level).mean(), **EXACT)
    for k, (low, high) in enumerate(INTERVALS.values()):
        found = score_of("interval_score", NORMAL)[k]
        ends = quantiles[low], quantiles[high]
        alpha = 2 * LEVELS[low]
        np.testing.assert_allclose(found, scoringrules.interval_score(truth, *ends, alpha).mean(), **EXACT)


def test_quantiles_of_members_have_the_levels_of_weibull():
    members, _ = arrays(CASE)
    levels = torch.tensor(LEVELS[1:4], dtype=torch.float64)
    found = forecast_quantiles(Ensemble(torch.from_numpy(members)), levels)
    np.testing.assert_allclose(found, np.quantile(members, LEVELS[1:4], axis=0, method="weibull"), **EXACT)
    hazen = forecast_quantiles(Ensemble(torch.from_numpy(members)), levels, drawn=False)
    np.testing.assert_allclose(hazen, np.quantile(members, LEVELS[1:4], axis=0, method="hazen"), **EXACT)


def test_threshold_weighted_crps():
    forecast, observed = labelled(CASE)
    for k, (tail, threshold) in enumerate((("upper", 0.3), ("lower", -0.5))):
        for method, name in (("ecdf", "threshold_crps"), ("fair", "threshold_crps_fair")):
            other = tail_tw_crps_for_ensemble(forecast, observed, "member", threshold, method=method, tail=tail)
            np.testing.assert_allclose(score_of(name, CASE)[k], float(other), **EXACT)


@pytest.mark.parametrize(("above", "limit"), [(True, 0.3), (False, -0.5)])
def test_outcome_weighted_crps_of_members(above, limit):
    """The library divides by the number of members in the event, which is 0 in some cases: there, it has no score."""

    def weight(values):
        return 1.0 * ((values > limit) == above)

    members, truth = members_and_truth()
    event = Event(torch.full((1, 1, 1), limit, dtype=torch.float64), torch.full((1, 1, 1), above), torch.tensor(True))
    found = crps_given(Ensemble(members), truth, event).flatten().numpy()
    x, y = members.flatten(1).numpy(), truth.flatten().numpy()
    some = weight(x).any(0)
    expected = scoringrules.owcrps_ensemble(y[some], x[:, some], m_axis=0, w_func=weight)
    np.testing.assert_allclose(found[some], expected, **EXACT)
    np.testing.assert_allclose(found[~some], (np.abs(y - limit) * weight(y))[~some], **EXACT)
    assert (weight(y)[~some] == 1).any(), "in some case no member foresaw the event"


def test_rank_histogram():
    forecast, observed = labelled(CASE)
    found = diagram_of("rank_histogram", CASE)[""]["y"]
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
    (probability, *_), (outcome, *_), _ = events_of(CASE)
    curve = diagram_of("reliability", CASE)["> 0.3"]
    np.testing.assert_allclose(curve["x"], np.unique(probability), **EXACT)
    np.testing.assert_allclose(curve["y"], [outcome[probability == p].mean() for p in np.unique(probability)], **EXACT)
    fitted = IsotonicRegression().fit(probability, outcome)
    np.testing.assert_allclose(curve["calibrated"], fitted.predict(np.unique(probability)), **EXACT)


def test_parts_add_up_to_the_brier_score():
    for name, case in (("members", CASE), ("normal", NORMAL)):
        tolerance = 1e-10 if name == "members" else 2e-3  # probabilities within a bin differ
        for first, second in (("reliability", "resolution"), ("miscalibration", "discrimination")):
            worse, better, rest = (score_of(f"brier_{part}", case) for part in (first, second, "uncertainty"))
            np.testing.assert_allclose(worse - better + rest, score_of("brier", case), rtol=tolerance)
