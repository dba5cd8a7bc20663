"""The explanation of a forecast, compared with a linear model whose every part is known in closed form."""

import numpy as np
import pytest
from explained_forecast import CHANNELS, GRID, SCALE, WEIGHTS, make_climate, make_forecast, predict_linear

from evaluation.explanation.forecast_explanation import Change, bias_share, explain_forecast, without_inputs

AREA = np.broadcast_to(np.asarray(GRID.weights)[:, None], GRID.shape)
ROUNDING = 4 * 1e5 * np.finfo(np.float32).eps
"""Rounding of the largest values, of the pressure."""


@pytest.fixture(scope="module")
def case():
    climate = make_climate()
    usual = 0.3 * np.cos(np.arange(GRID.shape[1])) + np.zeros(GRID.shape)
    return climate, make_forecast(climate), usual


@pytest.fixture(scope="module")
def explained(case):
    climate, forecast, usual = case
    return explain_forecast(predict_linear(climate, usual), forecast, GRID, CHANNELS, (0,), climate)


def mean_square(field):
    """The mean over the area by a loop over cells."""
    total = weight = 0.0
    for cell in np.ndindex(field.shape):
        if np.isfinite(field[cell]):
            total += AREA[cell] * field[cell] ** 2
            weight += AREA[cell]
    return total / weight


def test_parts_of_a_linear_model_are_its_terms(case, explained):
    climate, forecast, _ = case
    departure = forecast.ensemble.astype(float).mean(0) - climate.location
    departure[~forecast.mask] = np.nan
    for channel, part in enumerate(explained.inputs):
        term = WEIGHTS[channel] * departure[channel]
        assert part.name == CHANNELS[channel]
        assert part.mean_part[0] == pytest.approx(
            np.sqrt(mean_square(term)), abs=ROUNDING * abs(WEIGHTS[channel]) + 1e-4
        )
        assert part.departure == pytest.approx(np.sqrt(mean_square(departure[channel] / SCALE[channel])), rel=1e-6)
        cells = explained.changes[0].cells
        assert part.at_cells[0] == pytest.approx([term[cell] for cell in cells], abs=1e-3)
        assert abs(part.largest) == pytest.approx(np.nanmax(abs(departure[channel])) / SCALE[channel], rel=1e-6)
        assert part.spread_part[0] == pytest.approx(0, abs=1e-4)


def test_the_usual_correction_and_the_parts_sum_to_the_correction(case, explained):
    climate, forecast, usual = case
    (change,), known = explained.changes, forecast.mask[0]
    np.testing.assert_allclose(change.usual[known], usual[known], atol=1e-3)
    terms = WEIGHTS[:, None, None] * (forecast.ensemble.astype(float).mean(0) - climate.location)
    np.testing.assert_allclose(change.of_mean[known], (usual + terms.sum(0))[known], atol=1e-4)
    assert np.isnan(change.of_mean[0, 0])
    sizes = [np.sqrt(np.average(term[1:] ** 2, weights=AREA[1:])) for term in terms]
    (strongest,) = explained.strongest
    assert strongest.name == CHANNELS[int(np.argmax(sizes))] == "t@850"
    np.testing.assert_allclose(strongest.part[1:], terms[1][1:], atol=1e-3)
    assert np.isnan(strongest.departure[0, 0])


def test_occlusion_keeps_the_members_apart(case):
    """A target moves its raw members, too."""
    climate, forecast, _ = case
    other = without_inputs(forecast, [1], (0,), climate)
    np.testing.assert_allclose(other.ensemble[:, 1].mean(0), climate.location[1], rtol=1e-6)
    steps = (np.diff(one.ensemble[:, 1], axis=0) for one in (other, forecast))
    np.testing.assert_allclose(*steps, atol=1e-3)
    np.testing.assert_array_equal(other.ensemble[:, [0, 2]], forecast.ensemble[:, [0, 2]])
    np.testing.assert_array_equal(other.raw, forecast.raw)
    other = without_inputs(forecast, [0], (0,), climate)
    assert np.isnan(other.raw[:, 0, 0, 0]).all()
    np.testing.assert_allclose(other.raw[:, 0].mean(0)[1:], climate.location[0][1:], rtol=1e-6)
    assert np.isfinite(forecast.raw[:, 0, 1:]).all()


def test_without_a_climate_only_the_changes_are_explained(case):
    climate, forecast, usual = case
    found = explain_forecast(predict_linear(climate, usual), forecast, GRID, CHANNELS, (0,), None)
    assert found.inputs == found.strongest == ()
    assert found.changes[0].usual is None
    assert len(found.changes[0].cells) == 8


def test_the_share_of_bias_is_by_the_wasserstein_distance():
    """Against the distance of two samples: the mean squared difference of their sorted values."""
    draw = np.random.default_rng(3)
    normal = np.sort(draw.standard_normal(200_000))
    normal = (normal - normal.mean()) / normal.std()
    one, two = 2 + 1.0 * normal, 2.6 + 1.8 * normal
    fields = [np.full((1, 2), value) for value in (2.0, 2.6, 1.0, 1.8)]
    change = Change(fields[0], fields[1], fields[2], fields[3], ())
    whole = np.mean((one - two) ** 2)
    assert bias_share(change, np.ones((1, 2))) == pytest.approx(0.6**2 / whole, rel=1e-6)


def test_a_single_member_has_no_raw_spread(case):
    climate, _, usual = case
    forecast = make_forecast(climate, members=1)
    with np.errstate(invalid="ignore"), pytest.warns(RuntimeWarning):
        (change,) = explain_forecast(predict_linear(climate, usual), forecast, GRID, CHANNELS, (0,), climate).changes
    assert np.isnan(change.raw_std).all()
    assert bias_share(change, AREA) == 1
