"""Inverse projections against values of PROJ 9.5, against geometry, and against their own forward formula."""

import numpy as np
import pytest

from data_pipeline.formats.cf.projection import from_lambert_equal_area, from_rotated_pole

UK = {
    "latitude_of_projection_origin": 54.9, "longitude_of_projection_origin": -2.5, "false_easting": 1000.0,
    "false_northing": -2000.0, "semi_major_axis": 6378137.0, "semi_minor_axis": 6356752.314140356,
}  # fmt: skip


def test_lambert_equal_area_equals_proj():
    for x, y, longitude, latitude in (
        (-1158000, -1036000, -17.134170248695213, 44.53300151905458),
        (1000, -2000, -2.5, 54.9),
        (924000, 902000, 15.271537835643601, 61.940287102200905),
        (3000000, -2000000, 29.21621604395785, 30.95967554004325),
    ):
        found = from_lambert_equal_area(UK, np.array([[float(y)]]), np.array([[float(x)]]))
        assert [float(value.item()) for value in found] == pytest.approx([latitude, longitude], abs=1e-6)


def test_lambert_equal_area_at_the_pole_of_a_sphere():
    """ρ = 2 R sin(colatitude / 2), and the longitude is the angle from south."""
    pole = {"latitude_of_projection_origin": 90.0, "longitude_of_projection_origin": 10.0, "earth_radius": 6.0e6}
    latitude, longitude = from_lambert_equal_area(pole, np.array([[2.0e6]]), np.array([[1.0e6]]))
    assert latitude.item() == pytest.approx(90 - 2 * np.degrees(np.arcsin(np.hypot(1, 2) / 12)))
    assert longitude.item() == pytest.approx(10 + 180 - np.degrees(np.arctan2(1, 2)))


@pytest.mark.parametrize(
    ("rotated", "place"),
    [((0, 0), (50, 10)), ((90, 0), (40, -170)), ((-90, 77), (-40, 10)), ((0, 90), (0, 100)), ((40, 0), (90, None))],
)
def test_known_points_of_a_rotated_pole(rotated, place):
    """The rotated origin lies 90° from the rotated pole, on the meridian opposite to the pole's."""
    cosmo = {"grid_north_pole_latitude": 40.0, "grid_north_pole_longitude": -170.0}
    latitude, longitude = from_rotated_pole(cosmo, np.array([[float(rotated[0])]]), np.array([[float(rotated[1])]]))
    assert latitude.item() == pytest.approx(place[0], abs=1e-5)
    if place[1] is not None:
        assert np.cos(np.radians(longitude.item() - place[1])) == pytest.approx(1, abs=1e-12)


def test_a_rotated_pole_keeps_distances_and_turns_by_the_longitude_of_the_geographic_pole():
    pole = {"grid_north_pole_latitude": 37.5, "grid_north_pole_longitude": 177.5, "north_pole_grid_longitude": 20.0}
    lat, lon = np.linspace(-60, 80, 8)[:, None], np.linspace(-170, 170, 9)[None, :]
    found = from_rotated_pole(pole, lat, lon)
    assert found[0].shape == found[1].shape == (8, 9)
    np.testing.assert_allclose(chords(*found), chords(*np.broadcast_arrays(lat, lon)), atol=1e-12)
    # The geographic north pole has the rotated latitude of the rotated pole, and the given longitude.
    north, _ = from_rotated_pole(pole, np.array([[37.5]]), np.array([[20.0]]))
    assert north.item() == pytest.approx(90, abs=1e-5)


def chords(latitude, longitude):
    """Distances through the unit sphere between all points and the first."""
    phi, lam = np.radians(latitude), np.radians(longitude)
    place = np.stack([np.cos(phi) * np.cos(lam), np.cos(phi) * np.sin(lam), np.sin(phi)], -1)
    return np.linalg.norm(place - place[0, 0], axis=-1)
