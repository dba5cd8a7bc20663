"""Thresholds: texts, events against plain numbers, and the weighted CRPS against sums over distribution functions."""

from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from score_cases import changed, draws

from data_pipeline.common.errors import InputError
from data_pipeline.task import Task
from data_pipeline.variables.thresholds import Threshold, parse_thresholds, without_climatology
from evaluation.scores.threshold import Event, climate_quantile, make_events
from evaluation.scores.weighted_crps import crps_beyond, crps_given
from models.distribution import (
    Bernstein,
    CensoredNormal,
    CensoredShiftedGamma,
    Empirical,
    Ensemble,
    Logistic,
    Normal,
    Patched,
    PowerTransformed,
    TruncatedNormal,
)

T2M, RAIN = Task("t2m", ["2t"], ["2t"], [24]), Task("rain", ["tp:24h"], ["tp:24h"], [24])
JOINT = Task("joint", ["z@500", "2t"], ["z@500", "2t"], [24])
SIDES = (">", ">=", "<", "<=")


def one(text, task=T2M):
    ((found,),) = parse_thresholds([text], task)
    return found


@pytest.mark.parametrize(
    ("text", "task", "value", "label"),
    [
        ("> 0 degC", T2M, 273.15, "> 0 degC"),
        ("<=-40 degF", T2M, 233.15, "<= -40 degF"),
        (">= 2.731e2", T2M, 273.1, ">= 273.1 K"),
        ("2t > 273.15 K", T2M, 273.15, "> 273.15 K"),
        (">= 10 mm", RAIN, 0.01, ">= 10 mm"),
        ("> 0", RAIN, 0.0, "> 0 m"),
        ("> 54 km/h", Task("wind", ["10u"], ["10u"], [24]), 15, "> 54 km/h"),
        ("tp:24h > 0.001", RAIN, 0.001, "> 0.001 m"),
        ("< 10 %", T2M, 0.1, "< 10 %"),
        (">99.5%", T2M, 0.995, "> 99.5 %"),
    ],
)
def test_a_text_is_read_in_the_units_of_the_target(text, task, value, label):
    found = one(text, task)
    assert (found.label, found.climatological) == (label, "%" in text)
    assert found.value == pytest.approx(value, rel=1e-12)
    assert found.side == label.split()[0]


def test_a_threshold_is_for_the_targets_whose_units_fit():
    def labels(found):
        return [[one.label for one in of_target] for of_target in found]

    found = parse_thresholds(["> 0 degC", "< 10 %", "z@500 > 55000"], JOINT)
    assert labels(found) == [["< 10 %", "> 55000 m² s⁻²"], ["> 0 degC", "< 10 %"]]
    assert labels(without_climatology(found)) == [["> 55000 m² s⁻²"], ["> 0 degC"]]


@pytest.mark.parametrize(
    ("option", "task", "sentence"),
    [
        ("> 0 degC", T2M, "thresholds must be a list, got '> 0 degC'"),
        (["warm"], T2M, "cannot read 'warm'; write one such as"),
        (["> degC"], T2M, "cannot read '> degC'"),
        (["> 3 mm"], T2M, r"'mm' of '> 3 mm' cannot be converted to the units of 2t \(K\)"),
        (["tp > 3 mm"], T2M, "is about tp, which is not a target of the task t2m; its targets are 2t"),
        (["> 3"], JOINT, "has no units, and the task joint has several targets; begin with .* z@500, 2t"),
        (["> 0 %"], T2M, "0 % is not a percentile of the climatology"),
        (["> 0"], T2M, "'> 0' is 0 K, and 2t has no values beyond 0"),
        (["> -1 mm"], RAIN, "'> -1 mm' is -0.001 m, and tp:24h has no values beyond 0"),
        (["> 1 mm", "> 1 mm"], RAIN, "'> 1 mm' is given twice"),
    ],
)
def test_refused(option, task, sentence):
    with pytest.raises(InputError, match=sentence):
        parse_thresholds(option, task)


@given(st.lists(st.sampled_from([-1.0, 0.0, 0.25, 1.0]), min_size=1, max_size=6), st.sampled_from(SIDES))
def test_events_of_values_at_the_threshold(values, side):
    """All sides, also for values that equal the number."""
    compare = {">": np.greater, ">=": np.greater_equal, "<": np.less, "<=": np.less_equal}[side]
    for dtype in (torch.float32, torch.float64):
        truth = torch.tensor(values, dtype=dtype).view(1, 1, 1, -1)
        (event,) = make_events([[Threshold(side, 0.25)]], None, truth)
        assert event.outcome(truth).flatten().tolist() == (1.0 * compare(values, 0.25)).tolist()
        members = torch.tensor(values, dtype=dtype).view(-1, 1, 1, 1, 1)
        assert float(event.probability(Ensemble(members))) == pytest.approx(np.mean(compare(values, 0.25)))


def test_the_probability_of_a_distribution_is_its_distribution_function():
    forecast = Normal(draws(2, 1, 2, 3), torch.ones(2, 1, 2, 3).double())
    above, below = make_events([[Threshold(">", 0.5), Threshold("<=", 0.5)]], None, forecast.mu)
    torch.testing.assert_close(below.probability(forecast), forecast.cdf(torch.tensor(0.5)))
    torch.testing.assert_close(
        above.probability(forecast) + below.probability(forecast), torch.ones(2, 1, 2, 3).double()
    )


def test_percentiles_are_those_of_climatology_in_every_cell():
    climate = Normal(draws(2, 2, 2, 3), draws(2, 2, 2, 3, seed=1).exp())
    thresholds = parse_thresholds(["< 10 %", "2t > 0 degC"], JOINT)
    first, second = make_events(thresholds, climate, climate.mu)
    expected = climate.mu + climate.sigma * -1.2815515655446004
    torch.testing.assert_close(first.limit, expected)
    assert second.limit[0].isnan().all(), "the first target has one threshold"
    assert float(second.limit[1].squeeze()) == 273.15
    assert second.outcome(climate.mu)[:, 0].isnan().all()
    assert first.outcome(torch.full_like(climate.mu, torch.nan)).isnan().all(), "missing truth has no outcome"
    with pytest.raises(ValueError, match="needs a climatology"):
        make_events(thresholds, None, climate.mu)


def test_past_values_resolve_some_percentiles_only():
    values = torch.arange(25.0).view(25, 1, 1, 1, 1)
    assert climate_quantile(Empirical(values), 0.98).isfinite().all()
    assert climate_quantile(Empirical(values), 0.99).isnan().all()
    mixed = Patched(torch.tensor(True), Empirical(values), Normal(values[0], values[0] + 1))
    assert climate_quantile(mixed, 0.99).isnan().all()


ONES = torch.ones(1, 1, 1, 4, dtype=torch.float64)
MU = torch.tensor([0.5, 1.0, 2.0, 3.0], dtype=torch.float64).view(1, 1, 1, 4)
TRUTH = torch.tensor([0.0, 2.5, 1.2, 6.0], dtype=torch.float64).view(1, 1, 1, 4)
POINTS = torch.linspace(-10, 30, 8001, dtype=torch.float64)
KINDS = {
    "normal": Normal(MU, ONES),
    "logistic": Logistic(MU, ONES),
    "censored": CensoredNormal(MU, ONES, 0 * ONES),
    "truncated": TruncatedNormal(MU, ONES, 0 * ONES),
    "gamma": CensoredShiftedGamma(2 * ONES, MU, -0.3 * ONES, 0 * ONES),
    "bernstein": Bernstein(draws(7, 1, 1, 1, 4).sort(0).values * 3 + 1),
    "square": PowerTransformed(Normal(MU, 0.6 * ONES), 0.5, 0 * ONES),
    "members": Ensemble(draws(6, 1, 1, 1, 4) + MU),
    "past": Empirical((draws(9, 1, 1, 1, 4) + MU).clamp(min=0).sort(0).values),
    "both": Patched(MU > 1.5, Normal(MU, ONES), TruncatedNormal(MU, ONES, 0 * ONES)),
}


def event(above, limit=1.1):
    return Event(torch.full((1, 1, 1), limit, dtype=torch.float64), torch.full((1, 1, 1), above), torch.tensor(True))


@cache
def distribution_functions(kind):
    """F at every point, (points, 4), and at 1.1; an empirical distribution is a step function for its CRPS."""
    forecast = KINDS[kind]
    forecast = Ensemble(forecast.values) if isinstance(forecast, Empirical) else forecast
    many = changed(forecast, lambda tensor: tensor.expand(*tensor.shape[:-4], len(POINTS), 1, 1, 4))
    at_points = many.cdf(POINTS.view(-1, 1, 1, 1).expand(-1, 1, 1, 4))
    return at_points.reshape(-1, 4), forecast.cdf(torch.full_like(MU, 1.1)).flatten()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("above", [True, False])
def test_weighted_scores_are_integrals_of_the_distribution_function(kind, above):
    """In double precision, and the same in single precision."""
    forecast, points = KINDS[kind], POINTS
    step, (F, edge) = float(points[1] - points[0]), distribution_functions(kind)
    inside = ((points > 1.1) == above)[:, None]
    truth = TRUTH.flatten()
    square = (F - (points[:, None] >= truth).double()).square()
    expected = (square * inside).sum(0) * step
    found = crps_beyond(forecast, TRUTH, event(above)).flatten()
    torch.testing.assert_close(found, expected, rtol=5e-3, atol=step)
    # Given the event: F restricted to it, from 0 to 1.
    conditional = (((F - edge) / (1 - edge)) if above else F / edge).clamp(0, 1)
    square = (conditional - (points[:, None] >= truth).double()).square()
    expected = (square * inside).sum(0) * step * ((truth > 1.1) == above)
    found = crps_given(forecast, TRUTH, event(above)).flatten()
    known = (1 - edge if above else edge) > 0
    torch.testing.assert_close(found[known], expected[known], rtol=5e-3, atol=2 * step)
    assert (found > 0).any()
    if kind != "square":
        for score in (crps_beyond, crps_given):
            single = changed(forecast, lambda tensor: tensor.float() if tensor.is_floating_point() else tensor)
            fast = score(single, TRUTH, event(above)).double()
            expected = score(forecast, TRUTH, event(above))
            torch.testing.assert_close(fast, expected, rtol=2e-4, atol=2e-5, msg=score.__name__)


def test_a_forecast_without_probability_of_the_event_is_at_its_edge():
    sure = Normal(torch.full_like(MU, -50), 0.1 * ONES)
    found = crps_given(sure, TRUTH, event(True)).flatten()
    torch.testing.assert_close(found, (TRUTH - 1.1).clamp(min=0).flatten())
