"""The explanation of a forecast against a linear model of known parts; places in words and the largest cells."""

import numpy as np
import pytest
from explained_forecast import CHANNELS, GRID, WEIGHTS, make_climate, make_forecast, predict_linear

from data_pipeline.grid import Grid
from data_pipeline.grids.points import Points
from evaluation.explanation.forecast_explanation import bias_share, explain_forecast, without_inputs
from evaluation.explanation.places import APART, largest_cells, region_name
from evaluation.report.shown_data import place_name

FINE = Grid.regular(19, 36)
AREA = np.broadcast_to(np.asarray(GRID.weights)[:, None], GRID.shape)


@pytest.fixture(scope="module")
def case():
    climate = make_climate()
    usual = 0.3 * np.cos(np.arange(GRID.shape[1])) + np.zeros(GRID.shape)
    return climate, make_forecast(climate), usual


@pytest.fixture(scope="module")
def explained(case):
    climate, forecast, usual = case
    return explain_forecast(predict_linear(climate, usual), forecast, GRID, CHANNELS, (0,), climate)


def test_the_usual_correction_and_the_parts_sum_to_the_correction(case, explained):
    climate, forecast, usual = case
    found, known = explained.isel(target=0), forecast.mask[0]
    np.testing.assert_allclose(found.usual_change.values[known], usual[known], atol=1e-3)
    terms = WEIGHTS[:, None, None] * (forecast.ensemble.astype(float).mean(0) - climate.location)
    change = (found.corrected_mean - found.raw_mean).values
    np.testing.assert_allclose(change[known], (usual + terms.sum(0))[known], atol=1e-4)
    assert np.isnan(change[0, 0])
    sizes = [np.sqrt(np.average(term[1:] ** 2, weights=AREA[1:])) for term in terms]
    assert found.strongest == np.argmax(sizes) == 1
    assert list(found.input) == list(CHANNELS)
    np.testing.assert_allclose(found.strongest_part[1:], terms[1][1:], atol=1e-3)
    assert np.isnan(found.strongest_departure[0, 0])


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
    assert not {"input", "strongest", "usual_change"} & {*found.variables}
    assert (found.cell >= 0).sum() == 8


def test_the_share_of_bias_is_by_the_wasserstein_distance():
    """Against the distance of two samples: the mean squared difference of their sorted values."""
    draw = np.random.default_rng(3)
    normal = np.sort(draw.standard_normal(200_000))
    normal = (normal - normal.mean()) / normal.std()
    one, two = 2 + 1.0 * normal, 2.6 + 1.8 * normal
    fields = [np.full((1, 2), value) for value in (2.0, 2.6, 1.0, 1.8)]
    whole = np.mean((one - two) ** 2)
    assert bias_share(fields[1] - fields[0], fields[3] - fields[2], np.ones((1, 2))) == pytest.approx(
        0.6**2 / whole, rel=1e-6
    )


def test_a_single_member_has_no_raw_spread(case):
    climate, _, usual = case
    forecast = make_forecast(climate, members=1)
    with np.errstate(invalid="ignore"), pytest.warns(RuntimeWarning):
        found = explain_forecast(predict_linear(climate, usual), forecast, GRID, CHANNELS, (0,), climate)
    change, spread = (found[f"corrected_{name}"] - found[f"raw_{name}"] for name in ("mean", "spread"))
    assert np.isnan(spread).all()
    assert bias_share(change[0].values, spread[0].values, AREA) == 1


def distance(first, second):
    """Degrees between two cells, by their unit vectors."""
    vectors = []
    for row, column in (first, second):
        phi, lam = np.radians(FINE.latitudes[row]), np.radians(FINE.longitudes[column])
        vectors.append([np.cos(phi) * np.cos(lam), np.cos(phi) * np.sin(lam), np.sin(phi)])
    one, two = np.array(vectors)
    return np.degrees(np.arctan2(np.linalg.norm(np.cross(one, two)), one @ two))


def test_largest_cells_are_those_of_a_greedy_search():
    field = np.random.default_rng(5).normal(size=FINE.shape)
    field[3, 4] = np.nan
    found = []
    ordered = sorted(np.ndindex(field.shape), key=lambda cell: -abs(np.nan_to_num(field[cell])))
    for cell in ordered:
        if all(distance(cell, other) >= APART - 1e-9 for other in found) and len(found) < 6:
            found.append(cell)
    assert largest_cells(field, FINE, 6) == found
    assert largest_cells(np.full(FINE.shape, np.nan), FINE, 6) == []


def test_stations_may_be_near_each_other():
    stations = Points((50.0, 50.01, -3.0), (8.0, 8.01, 20.0), ids=("a", "b", "c"))
    field = np.array([[1.0], [-2.0], [0.5]])
    assert largest_cells(field, stations, 3) == [(1, 0), (0, 0), (2, 0)]
    assert place_name(stations, (2, 0)) == "c, 3°S 20°E"


@pytest.mark.parametrize(
    ("latitude", "longitude", "planet", "expected"),
    [
        (52.0, 13.0, {"earth": True}, "land, Europe"),
        (50.0, 350.0, {"earth": True}, "sea, Europe"),
        (0.0, 25.0, {"earth": True}, "land, tropics"),
        (-80.0, 90.0, {"earth": True}, "land, south of the tropics"),
        (52.0, 13.0, {"earth": False}, "north of the tropics"),
        (52.0, 13.0, {"earth": False, "land": np.zeros((1, 1))}, "sea, north of the tropics"),
    ],
)
def test_regions_of_known_places(latitude, longitude, planet, expected):
    """Another planet has its own land and no Europe."""
    assert region_name(Grid((latitude,), (longitude,)), (0, 0), **planet) == expected
