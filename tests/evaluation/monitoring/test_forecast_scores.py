"""Scores of regions against brute force and published packages."""

import numpy as np
import properscoring
import pytest
from scipy import stats

from evaluation.monitoring.forecast_scores import (
    RegionScores,
    daily_statistics,
    member_levels,
    pit_shares,
    score_regions,
    shares_below,
)
from evaluation.monitoring.monitor_state import MonitoredForecast, MonitorState, VerifiedForecast
from evaluation.monitoring.verification import ShareHistory
from models.members.conformal import tracked_scores

DAY = 86_400


def hazen(M):
    return (np.arange(M) + 0.5) / M


def test_scores_of_regions():
    rng = np.random.default_rng(1)
    members, truth = np.sort(rng.normal(size=(7, 4, 5)), axis=0), rng.normal(size=(4, 5))
    truth[1, 2], members[-1, 0, 0] = np.nan, np.nan
    area = rng.uniform(1, 2, (4, 5))
    half = area * (np.arange(5) < 2)
    known = np.isfinite(truth) & np.isfinite(members[-1])
    scores = score_regions(members, truth, {"all": area, "half": half, "none": np.where(known, 0, area)}, hazen(7))
    assert list(scores) == ["all", "half"]
    for name, weight in (("all", area), ("half", half)):
        own = scores[name]
        weight = np.where(known, weight, 0)
        mean = lambda field, weight=weight: float((np.where(known, field, 0) * weight).sum() / weight.sum())  # noqa: E731
        crps = properscoring.crps_ensemble(truth, np.moveaxis(members, 0, -1))
        pairs = abs(members[:, None] - members[None]).mean((0, 1)) / 2
        assert own.crps == pytest.approx(mean(crps))
        assert own.expected == pytest.approx(mean(pairs))
        assert own.error == pytest.approx(mean(members.mean(0) - truth))
        assert own.squared_error == pytest.approx(mean((members.mean(0) - truth) ** 2))
        assert own.variance == pytest.approx(mean(members.var(0)))
        assert own.pit.sum() == pytest.approx(1)
    assert scores["all"].area == pytest.approx(area[known].sum() / area.sum())
    read = RegionScores.from_json(scores["all"].to_json())
    np.testing.assert_allclose(read.to_json(), scores["all"].to_json())


@pytest.mark.parametrize("M", [2, 5, 10, 51])
@pytest.mark.parametrize("name", ["hazen", "weibull"])
def test_members_that_are_quantiles_have_a_flat_pit(M, name):
    levels = {"hazen": (np.arange(M) + 0.5) / M, "weibull": (np.arange(M) + 1) / (M + 1)}[name]
    members = stats.norm.ppf(levels)[:, None] * np.ones(40_000)
    truth = np.random.default_rng(2).normal(size=40_000)
    np.testing.assert_allclose(pit_shares(members, truth, member_levels(M, name)).mean(1), 0.1, atol=0.008)


def test_the_pit_of_single_analyses():
    members = np.array([1.0, 2.0, 2.0, 3.0, 4.0])[:, None]  # levels 0.1, 0.3, 0.5, 0.7, 0.9
    below, between, equal = (pit_shares(members, np.array([value]), hazen(5))[:, 0] for value in (0.0, 3.5, 2.0))
    np.testing.assert_allclose(below, [1] + 9 * [0], atol=1e-12)
    np.testing.assert_allclose(between, [0, 0, 0, 0, 0, 0, 0, 0.5, 0.5, 0], atol=1e-12)
    np.testing.assert_allclose(equal, [0, 1 / 6, 1 / 6, 1 / 6, 1 / 6, 1 / 6, 1 / 6, 0, 0, 0], atol=1e-12)


def test_shares_below_levels_are_those_of_the_members():
    """Five members are the quantiles at 0.1, 0.3, 0.5, 0.7 and 0.9."""
    rng = np.random.default_rng(3)
    members, truth = np.sort(rng.normal(size=(5, 20, 30)), axis=0), rng.normal(size=(20, 30))
    area = rng.uniform(1, 2, (20, 30)) * (np.arange(30) < 20)
    scores = (stats.norm.ppf([0.1, 0.5, 0.9]),) * 2
    found = shares_below(members, truth, scores, area, hazen(5))
    expected = [(area * (truth <= members[k])).sum() / area.sum() for k in (0, 2, 4)]
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert shares_below(members, np.full((20, 30), np.nan), scores, area, hazen(5)) is None


def test_statistics_are_zero_or_nominal_for_calibrated_forecasts():
    rng = np.random.default_rng(4)
    M, cells = 50, (200, 200)
    members = stats.norm.ppf((np.arange(M) + 0.5) / M)[:, None, None] * np.ones(cells)
    scores = score_regions(members, rng.normal(size=cells), {"all": np.ones(cells)}, hazen(M))["all"]
    found = daily_statistics(vars(scores))
    assert found["crps"] == pytest.approx(0, abs=0.03)
    assert found["bias"] == pytest.approx(0, abs=0.02)
    assert found["spread"] == pytest.approx(0, abs=0.03)
    assert found["pit"] == pytest.approx(0.8, abs=0.01)


@pytest.mark.parametrize("lead", [24, 72])
@pytest.mark.parametrize("ordered", [True, False])
def test_scores_are_those_of_the_forecasts_that_were_valid(lead, ordered):
    """The layer at a start uses the forecasts that were valid by then, in whatever order they came."""
    rng = np.random.default_rng(1)
    shares = {MonitoredForecast("2t", day * DAY, lead): rng.uniform(size=3) for day in range(30)}
    others = {MonitoredForecast("2t", day * DAY, lead + 24): rng.uniform(size=3) for day in range(30)}
    every = list((shares | others).items())
    if not ordered:
        rng.shuffle(every)
    known = dict(every[:20])
    state = MonitorState({}, {key: VerifiedForecast("", False, {}, {"all": one}) for key, one in known.items()})
    history = ShareHistory(0.8, 0.1, state)
    for key, one in every[20:]:
        history.add(key, VerifiedForecast("", False, {}, {"all": one}))
    for key in shares:
        before = np.array([one for other, one in shares.items() if other.start + lead * 3600 <= key.start])
        np.testing.assert_allclose(history.scores_at(key, "all"), tracked_scores(0.8, 0.1, before), atol=1e-12)
    nominal = history.scores_at(MonitoredForecast("2t", 40 * DAY, lead), "tropics")
    assert np.ptp(nominal) > 2, "of another region nothing is known"
