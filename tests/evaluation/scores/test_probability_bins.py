"""Bins of the forecast probability: scores equal those of the sorted probabilities, and climate is no skill."""

import numpy as np
import pytest
import torch
from scipy import stats
from score_cases import draws, make_case, score_of

from data_pipeline.variables.thresholds import Threshold
from evaluation.scores.binned_probability import BINS, EDGES, ProbabilityBins, bins_of
from evaluation.scores.brier import brier_parts
from evaluation.scores.economic_value import LARGEST_VALUE, VALUE_CURVE
from evaluation.scores.reliability import SHOWN_BINS
from evaluation.scores.roc import ROC_AREA
from evaluation.scores.score import Settings
from models.distribution import Ensemble, Normal


def sorted_scores(p, happens, weight):
    """ROC area (Mann & Whitney, ties count half) and largest H - F, from the sorted different probabilities."""
    _, place = np.unique(p, return_inverse=True)
    events, others = np.bincount(place, weight * happens), np.bincount(place, weight * (1 - happens))
    events, others = events / events.sum(), others / others.sum()
    above = np.cumsum((events - others)[::-1])
    return (events * (np.cumsum(others) - others / 2)).sum(), max(above.max(), 0)


def binned(p, *values):
    """The sums of the values in bins of the probability, one after the other."""
    return np.concatenate([np.bincount(bins_of(torch.from_numpy(p)), value, BINS) for value in values])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_probabilities_of_members_have_bins_of_their_own(dtype):
    """k/M by a mean, by 1 minus a mean and with an error of rounding."""
    for M in range(1, 53):
        k = np.arange(M + 1)
        exact = (k / M).astype(dtype)
        bins = bins_of(torch.from_numpy(exact)).numpy()
        assert len(set(bins)) == M + 1
        for other in (1 - exact[::-1], np.nextafter(exact, dtype(0)), np.nextafter(exact, dtype(1))):
            np.testing.assert_array_equal(bins_of(torch.from_numpy(other.astype(dtype))), bins)
        assert ((EDGES[bins] <= exact) & (exact <= EDGES[bins + 1])).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_compiled_search_finds_the_bins_of_other_devices(dtype):
    edges = torch.from_numpy(EDGES).to(dtype)
    values = torch.cat([torch.rand(10_000, dtype=dtype) ** 4, edges, 1 - torch.rand(10_000, dtype=dtype) ** 4])
    np.testing.assert_array_equal(bins_of(values), torch.bucketize(values, edges[1:-1], right=True))
    assert 0 <= bins_of(torch.tensor([torch.nan])).item() < BINS


@pytest.mark.parametrize(
    ("M", "base_rate"), [(2, 0.5), (7, 0.1), (10, 0.01), (23, 0.003), (50, 0.1), (51, 0.01)], ids=str
)
def test_scores_of_members_are_those_of_the_sorted_probabilities(M, base_rate):
    random = np.random.default_rng(M)
    truth = random.standard_normal(20_000)
    members = 0.6 * truth + 0.8 * random.standard_normal((M, 20_000))
    threshold = float(stats.norm.isf(base_rate))
    forecast, truth = (torch.from_numpy(one).reshape(*one.shape[:-1], 100, 1, 1, 200) for one in (members, truth))
    case = make_case(Ensemble(forecast), truth, ((Threshold(">", threshold),),))
    p, o = (members > threshold).mean(0), case.truth.numpy().ravel() > threshold
    area, value = sorted_scores(p, o, np.ones(o.size))
    np.testing.assert_allclose(score_of("roc_area", case), area, rtol=1e-12)
    np.testing.assert_allclose(score_of("economic_value", case), value, rtol=1e-10)
    parts = [score_of(f"brier_{part}", case) for part in ("reliability", "resolution", "uncertainty")]
    different = np.unique(p)
    frequency, share = (np.array([f(o[p == one]) for one in different]) for f in (np.mean, np.size))
    share = share / o.size
    exact = (share * (different - frequency) ** 2).sum(), (share * (frequency - o.mean()) ** 2).sum()
    np.testing.assert_allclose(np.ravel(parts), [*exact, o.mean() * (1 - o.mean())], rtol=1e-10)


@pytest.mark.parametrize("spread", [0.8, 1.0, 1.25])
@pytest.mark.parametrize("base_rate", [0.003, 0.01, 0.1, 0.5, 0.9, 0.997])
def test_scores_of_smooth_probabilities_are_exact_to_five_thousandths(base_rate, spread):
    """Normal forecasts with a correlation r of mean and truth, whose spread is right, too small or too large."""
    limit, signal = stats.norm.isf(base_rate), np.linspace(-8, 8, 40_001)
    weight = stats.norm.pdf(signal) / stats.norm.pdf(signal).sum()
    for r in (0.3, 0.6, 0.9, 0.99):
        error = np.sqrt(1 - r * r)
        happens, p = (stats.norm.sf((limit - r * signal) / (error * factor)) for factor in (1, spread))
        balanced = binned(p, weight * happens, weight * (1 - happens))
        found = ROC_AREA.value(balanced)[0], LARGEST_VALUE.value(balanced)[0]
        np.testing.assert_allclose(found, sorted_scores(p, happens, weight), atol=5e-3, err_msg=str(r))
        bins = ProbabilityBins.of_thresholds(binned(p, weight, weight * p, weight * happens))
        exact = (weight * (p - happens) ** 2).sum(), (weight * (happens - base_rate) ** 2).sum()
        scale = base_rate * (1 - base_rate)
        np.testing.assert_allclose(np.ravel(brier_parts(bins)[:2]) / scale, np.array(exact) / scale, atol=5e-3)


def test_the_drawn_curve_is_that_of_the_user_at_each_edge():
    """A user with the ratio x of cost to loss warns where p >= x; expenses are counted case by case."""
    random = np.random.default_rng(0)
    p = np.concatenate([random.integers(0, 11, 500) / 10, random.random(500) ** 3])
    o = random.random(1000) < p
    curve = VALUE_CURVE.value(
        Settings(None, 3, ((Threshold(">", 0.0),),)), 0, balanced_bins=binned(p, o / 1000, ~o / 1000)
    )["> 0"]
    np.testing.assert_array_equal(curve["x"], EDGES[1:-1])
    for x, found in zip(curve["x"], curve["as_forecast"], strict=True):
        expense, best, perfect = np.where(p >= x, x, o).mean(), min(x, o.mean()), x * o.mean()
        assert found == pytest.approx((best - expense) / (best - perfect), abs=1e-6)


def test_shown_bins_keep_few_members_apart():
    for M in range(1, SHOWN_BINS):
        share = np.bincount(bins_of(torch.arange(M + 1) / M), minlength=BINS) / (M + 1)
        shown = ProbabilityBins(share, share, share).merged(SHOWN_BINS).share
        np.testing.assert_allclose(np.sort(shown)[-M - 1 :], 1 / (M + 1))


PLACES, STARTS = 60, 1000


def places(r, M=None):
    """Normal forecasts, or their members, at places whose climates are far apart, and one climate for each place."""
    warmth = draws(PLACES, seed=5) * 2
    signal = r * draws(STARTS, 1, 1, PLACES, seed=6) + warmth
    error = torch.full_like(signal, (1 - r * r) ** 0.5)
    truth = signal + error * draws(STARTS, 1, 1, PLACES, seed=7)
    climate = Normal(warmth.expand_as(truth), torch.ones_like(truth))
    members = signal + error * draws(M or 1, STARTS, 1, 1, PLACES, seed=8)
    return Ensemble(members) if M else Normal(signal, error), truth, climate


@pytest.mark.parametrize(("r", "M"), [(0.3, None), (0.6, None), (0.9, None), (0.6, 10)])
def test_a_fixed_threshold_is_scored_within_each_climate(r, M):
    """The area is the mean over places, weighted by s(1 - s); the value that of users with their climate's ratio."""
    forecast, truth, climate = places(r, M)
    case = make_case(forecast, truth, ((Threshold(">", 0.0),),), climate=climate)
    p, c = ((1 - one.cdf(torch.zeros_like(truth))).reshape(STARTS, PLACES).numpy() for one in (forecast, climate))
    o = truth.reshape(STARTS, PLACES).numpy() > 0
    s = o.mean(0)
    some = np.flatnonzero((s > 0) & (s < 1))
    areas = [sorted_scores(p[:, k], o[:, k], np.ones(STARTS))[0] for k in some]
    np.testing.assert_allclose(score_of("roc_area", case), np.average(areas, weights=(s * (1 - s))[some]), atol=0.01)
    odds = np.log(np.maximum(p, 1e-9) / np.maximum(1 - p, 1e-9)) - np.log(c / (1 - c))
    saved = []
    for least in np.linspace(-4, 4, 161):
        expense = np.where(odds >= least, c, o).sum()
        saved.append((np.minimum(c.sum(), o.sum()) - expense) / (np.minimum(c.sum(), o.sum()) - (c * o).sum()))
    np.testing.assert_allclose(score_of("economic_value", case), max(saved), atol=0.02)
    pooled = score_of("roc_area", make_case(forecast, truth, ((Threshold(">", 0.0),),)))
    assert pooled > score_of("roc_area", case) + 0.03, "without climatology, places are pooled"


def test_climatology_has_no_skill_and_percentiles_do_not_change():
    forecast, truth, climate = places(0.6)
    fixed = make_case(climate, truth, ((Threshold(">", 0.0),),), climate=climate)
    assert score_of("roc_area", fixed) == 0.5
    assert score_of("economic_value", fixed) == 0
    percentile = make_case(forecast, truth, ((Threshold(">", 0.9, climatological=True),),), climate=climate)
    p = percentile.events[0].probability(forecast).numpy().ravel()
    o = percentile.events[0].outcome(truth).numpy().ravel()
    area, value = sorted_scores(p, o, np.ones(o.size))
    np.testing.assert_allclose(score_of("roc_area", percentile), area, atol=2e-3)
    np.testing.assert_allclose(score_of("economic_value", percentile), value, atol=5e-3)
