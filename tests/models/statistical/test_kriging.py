import numpy as np
import pytest

from data_pipeline.grids.points import Points
from models.statistical.kriging import Kriging, Smoothness, distances

RANDOM = np.random.default_rng(1)
KNOWN = Points(tuple(RANDOM.uniform(40, 50, 24)), tuple(RANDOM.uniform(5, 15, 24)))
NEW = Points((45.0, 49.0, 41.0), (10.0, 6.0, 14.0))
ALTITUDES = RANDOM.uniform(0, 2000, (24, 1))
NEW_ALTITUDES = np.array([[300.0], [900.0], [1700.0]])
KRIGING = Kriging(KNOWN, NEW, ALTITUDES, NEW_ALTITUDES)


def without(place):
    """The prediction of one known station from all others."""
    rest = np.arange(24) != place
    latitudes, longitudes = np.array(KNOWN.latitudes), np.array(KNOWN.longitudes)
    return rest, Kriging(
        Points(tuple(latitudes[rest]), tuple(longitudes[rest])),
        Points((latitudes[place],), (longitudes[place],)), ALTITUDES[rest], ALTITUDES[[place]],
    )  # fmt: skip


@pytest.mark.parametrize("smoothness", list(KRIGING.candidates()), ids=str)
def test_a_left_out_station_is_predicted_as_from_a_fit_without_it(smoothness):
    inside = np.argsort(ALTITUDES[:, 0])[1:-1]  # the highest and the lowest station would be extrapolated
    for place in inside[::5]:
        rest, other = without(place)
        np.testing.assert_allclose(
            KRIGING.leave_one_out(smoothness)[place, rest], other.weights(smoothness)[0], atol=1e-9
        )


def test_weights_reproduce_constants_the_trend_and_without_nugget_known_stations():
    for smoothness in KRIGING.candidates():
        weights = KRIGING.weights(smoothness)
        np.testing.assert_allclose(weights.sum(1), 1, atol=1e-9)
        if smoothness.trend:
            np.testing.assert_allclose(weights @ ALTITUDES, NEW_ALTITUDES, atol=1e-6)
    same = Kriging(KNOWN, KNOWN, ALTITUDES, ALTITUDES)
    np.testing.assert_allclose(same.weights(Smoothness(300.0, 0.0, 1)), np.eye(24), atol=1e-8)


def test_the_choice_follows_the_values():
    noise, trend = RANDOM.standard_normal(24), -0.0065 * ALTITUDES[:, 0]
    assert KRIGING.choose(noise[None]).length == 0
    assert KRIGING.choose((trend + 0.1 * noise)[None]).trend
    smooth = np.sin(np.array(KNOWN.latitudes) / 3) + np.cos(np.array(KNOWN.longitudes) / 3)
    assert KRIGING.choose(smooth[None]).length >= 300


def test_distances_are_those_of_the_sphere():
    one, other = Points((0.0,), (0.0,)), Points((0.0, 90.0), (1.0, 0.0))
    np.testing.assert_allclose(distances(one, other), [[111.19, 6371 * 2**0.5]], rtol=1e-4)
