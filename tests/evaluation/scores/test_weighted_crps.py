"""The weighted CRPS of every kind of distribution against sums over its distribution function."""

from dataclasses import fields, is_dataclass, replace

import pytest
import torch
from score_cases import draws

from evaluation.scores.threshold import Event
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
    return Event(torch.full((1, 1, 1), limit, dtype=torch.float64), torch.full((1, 1, 1), above))


def changed(value, function):
    """The distribution with all its tensors and distributions changed by a function."""
    if not is_dataclass(value):
        return value
    return replace(value, **{field.name: function(getattr(value, field.name)) for field in fields(value)})


def widened(value):
    """The distribution with a copy for every point, (points, 1, 1, 4)."""
    if isinstance(value, torch.Tensor):
        return value.expand(*value.shape[:-4], len(POINTS), 1, 1, 4)
    return changed(value, widened)


def distribution_functions(forecast):
    """F at every point, (points, 4), and at 1.1; an empirical distribution is a step function for its CRPS."""
    forecast = Ensemble(forecast.values) if isinstance(forecast, Empirical) else forecast
    at_points = widened(forecast).cdf(POINTS.view(-1, 1, 1, 1).expand(-1, 1, 1, 4))
    return at_points.reshape(-1, 4), forecast.cdf(torch.full_like(MU, 1.1)).flatten()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("above", [True, False])
def test_weighted_scores_are_integrals_of_the_distribution_function(kind, above):
    forecast, points = KINDS[kind], POINTS
    step, (F, edge) = float(points[1] - points[0]), distribution_functions(KINDS[kind])
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


@pytest.mark.parametrize("kind", KINDS)
def test_the_scores_in_single_precision_are_those_in_double(kind):
    def single(value):
        if isinstance(value, torch.Tensor):
            return value.float() if value.is_floating_point() else value
        return changed(value, single)

    for score in (crps_beyond, crps_given):
        for above in (True, False):
            fast = score(single(KINDS[kind]) if kind != "square" else KINDS[kind], TRUTH, event(above))
            torch.testing.assert_close(
                fast.double(), score(KINDS[kind], TRUTH, event(above)), rtol=2e-4, atol=2e-5, msg=f"{score.__name__}"
            )


def test_a_forecast_without_probability_of_the_event_is_at_its_edge():
    sure = Normal(torch.full_like(MU, -50), 0.1 * ONES)
    found = crps_given(sure, TRUTH, event(True)).flatten()
    torch.testing.assert_close(found, (TRUTH - 1.1).clamp(min=0).flatten())
