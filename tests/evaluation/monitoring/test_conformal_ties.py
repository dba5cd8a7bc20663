"""The conformal layer where forecasts have a point mass at a bound, such as 0 mm of rain."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from data_pipeline.task import Variable
from evaluation.monitoring.forecast_scores import shares_below
from models.members.conformal import ConformalLayer, interval_levels, normal_scores, ordered

LEVELS = interval_levels(0.8)
NOMINAL = normal_scores(LEVELS)
M, CELLS = 20, (6, 8)
HAZEN = (np.arange(M) + 0.5) / M
RAIN = Variable.parse("tp:24h")
AREA = {"all": np.ones(CELLS)}


class Clipped:
    """Normal distributions whose values beyond bounds lie on the bound; a `Prediction`."""

    unchanged = members = None

    def __init__(self, location, spread, low=0.0, high=np.inf, members=False):
        self._location, self._spread, self._bounds = location, spread, (low, high)
        self.members = self.quantiles(HAZEN) if members else None

    def quantiles(self, levels):
        return (self._location + stats.norm.ppf(levels)[:, None, None, None] * self._spread).clip(*self._bounds)

    def std(self):
        return self.quantiles(HAZEN).std(0)


def members(location, spread):
    """The prediction of a model that forecasts members."""
    return Clipped(location, spread, members=True)


def corrected(predicted, scores, target=RAIN):
    layer = ConformalLayer("x", 0.8, 0.1, {(str(target), 24): {"all": scores}}, {(str(target), 24): 1})
    return layer.apply(predicted, [target], 24, AREA)


def crps(fields, analysis):
    k = np.arange(1, len(fields) + 1)[:, None, None]
    spread = ((2 * k - len(fields) - 1) * np.sort(fields, 0)).sum(0) / len(fields) ** 2
    return (abs(fields - analysis).mean(0) - spread).mean()


@cache
def cycled(predict, bias, spread, location=-1.2, applied=True, step=0.1, count=160):
    """Days of forecasts that go into the layer; CRPS without and with it, PIT of the later half, moved scores.

    Ties of the PIT are split at random. Three of four analyses are dry at the default `location`.
    """
    random, history, pit, scores = np.random.default_rng(0), [NOMINAL], [], []
    for _ in range(count):
        place = random.normal(location, 1.5 if location > -9 else 0.1, (1, *CELLS))
        analysis = (place + random.standard_normal(place.shape)).clip(0)[0]
        plain, tracked = predict(place + bias, spread), history[-2:][0]
        moved = corrected(plain, tracked).quantiles(HAZEN)[:, 0]
        raw = plain.quantiles(HAZEN)[:, 0]
        assert moved.min() >= 0
        assert (np.diff(moved, axis=0) >= 0).all()
        values, issued = (moved, NOMINAL) if applied else (raw, ordered(tracked))
        shares = shares_below(values, analysis, (NOMINAL, issued), AREA["all"], HAZEN, (0.0, np.inf))
        history.append(history[-1] + step * (LEVELS - shares))
        low, high = (moved < analysis).sum(0), (moved <= analysis).sum(0)
        untied = low == high
        pit.append((low - untied / 2 + random.random(CELLS) * (high - low + untied)) / M)
        scores.append((crps(raw, analysis), crps(moved, analysis)))
    before, after = np.mean(scores[count // 2 :], axis=0)
    return before, after, np.array(pit[count // 2 :]), history[-1] - NOMINAL


@pytest.mark.parametrize(
    ("predict", "location", "applied"),
    [(Clipped, -1.2, False), (members, -1.2, True), (Clipped, 2, True), (members, -9, False)],
)
def test_a_calibrated_forecast_stays_as_it_is(predict, location, applied):
    """Also where three of four analyses are dry, or all of them."""
    before, after, _, moves = cycled(predict, 0, 1, location, applied)
    assert np.abs(moves).max() < (0.08 if location > -9 else 1e-9)
    assert after == pytest.approx(before, rel=0.005, abs=1e-6)


@pytest.mark.parametrize(("bias", "spread", "applied"), [(-0.5, 1, False), (0, 0.5, True)])
def test_the_layer_repairs_bias_and_spread(bias, spread, applied):
    before, after, pit, _ = cycled(Clipped, bias, spread, applied=applied, step=0.2)
    best, *_ = cycled(Clipped, 0, 1)
    assert after - best < 0.2 * (before - best)
    np.testing.assert_allclose([(pit <= level).mean() for level in LEVELS], LEVELS, atol=0.035)


@given(st.lists(st.integers(0, 3), min_size=5, max_size=12), st.integers(0, 3))
def test_a_tie_counts_by_its_expectation_when_it_is_split_at_random(amounts, analysis):
    """Whatever the level: the share of numbers v in (0, 1) with PIT (below + v equal)/M at most the level."""
    values, count = np.sort(amounts), len(amounts)
    below, equal = (values < analysis).sum(), (values == analysis).sum()
    if not equal:
        return
    levels = (np.arange(count) + 0.5) / count
    fields, truth = values[:, None, None].astype(float), np.full((1, 1), float(analysis))
    found = shares_below(fields, truth, (NOMINAL, NOMINAL), np.ones((1, 1)), levels)
    drawn = (below + (np.arange(4000) + 0.5) / 4000 * equal) / count
    np.testing.assert_allclose(found, [(drawn <= level).mean() for level in LEVELS], atol=1e-3)


def test_certain_and_nearly_dry_analyses_move_nothing():
    """Amounts up to the trace of rain equal 0 mm."""
    dry, area = np.zeros((M, *CELLS)), AREA["all"]
    limits = RAIN.trace, np.inf
    for analysis in (np.zeros(CELLS), np.full(CELLS, 0.9e-4)):
        for issued in (NOMINAL, NOMINAL + 0.3):
            np.testing.assert_allclose(
                shares_below(dry, analysis, (NOMINAL, issued), area, HAZEN, limits), LEVELS, atol=1e-12
            )
    np.testing.assert_array_equal(shares_below(dry, area, (NOMINAL, NOMINAL), area, HAZEN, limits), 0)


@pytest.mark.parametrize("scores", [NOMINAL, NOMINAL + 0.4, 1.5 * NOMINAL - 0.3])
def test_both_bounds_are_alike(scores):
    """The moves of 1 - cloud cover are those of cloud cover, turned round; no value is beyond a bound."""
    cover, place = Variable("tcc"), np.random.default_rng(1).normal(0.5, 1, (1, *CELLS))

    def moved(sign):
        forecast = Clipped(place if sign > 0 else 1 - place, 0.4, high=1.0)
        return corrected(forecast, scores if sign > 0 else -scores[::-1], cover)

    there, back = moved(1), moved(-1)
    found = there.quantiles(HAZEN)
    np.testing.assert_allclose(found, 1 - back.quantiles(HAZEN)[::-1], atol=1e-9)
    assert found.min() == 0
    assert found.max() == 1
    np.testing.assert_allclose(there.mean(), 1 - back.mean(), atol=1e-9)
    assert there.cdf(np.full((1, 1, 1, 1), -1e-30)).max() == 0
    assert there.cdf(np.ones((1, 1, 1, 1))).min() == 1


@pytest.mark.parametrize(("shift", "stretch"), [(0, 1), (0.4, 1), (-0.3, 1.5)])
def test_a_moved_clipped_normal_is_the_clipped_moved_normal(shift, stretch):
    place = np.random.default_rng(2).normal(0, 1, (1, *CELLS))
    found = corrected(Clipped(place, 0.5), stretch * NOMINAL + shift)
    expected = Clipped(place + 0.5 * shift, 0.5 * stretch)
    dry = place + 1.5 * 0.5 < 0  # there the line to the bound begins at scores that are rarely reached
    np.testing.assert_allclose(found.quantiles(HAZEN)[:, ~dry], expected.quantiles(HAZEN)[:, ~dry], atol=5e-3)
    probability = stats.norm.cdf(-(place + 0.5 * shift) / (0.5 * stretch))
    np.testing.assert_allclose(found.cdf(np.zeros((1, 1, 1, 1)))[0, ~dry], probability[~dry], atol=1e-3)


@pytest.mark.parametrize("predict", [Clipped, members])
def test_cells_that_keep_their_raw_members_are_not_moved(predict):
    """Their products are those of the raw ensemble, as their members are."""
    predicted = predict(np.full((1, *CELLS), 1.0), 1.0)
    predicted.unchanged = np.zeros((1, *CELLS), bool)
    predicted.unchanged[0, 0] = True
    found, plain = corrected(predicted, NOMINAL + 1).quantiles(HAZEN), predicted.quantiles(HAZEN)
    np.testing.assert_allclose(found[:, :, 0], plain[:, :, 0], atol=0.02)
    assert (found[-5:, :, 1:] > plain[-5:, :, 1:] + 0.5).all()
