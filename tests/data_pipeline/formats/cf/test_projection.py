"""Inverse projections against values of PROJ 9.5, against geometry, and against their own forward formula."""

import eccodes
import numpy as np
import pytest
from plane_parts import COLUMNS, ROWS, plane_message
from scipy.optimize import least_squares

from data_pipeline.formats.cf.projection import from_conformal, from_lambert_equal_area, from_rotated_pole
from data_pipeline.formats.grib.keys import opened

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
    for turn in (0.0, 20.0):  # the longitude of the geographic pole in the rotated grid
        pole, lon = cosmo | {"north_pole_grid_longitude": turn}, np.array([[rotated[1] + turn]])
        latitude, longitude = from_rotated_pole(pole, np.array([[float(rotated[0])]]), lon)
        assert latitude.item() == pytest.approx(place[0], abs=1e-5)
        if place[1] is not None:
            assert np.cos(np.radians(longitude.item() - place[1])) == pytest.approx(1, abs=1e-12)


CONFORMAL = [
    ("two parallels, ellipsoid", {
        "grid_mapping_name": "lambert_conformal_conic", "standard_parallel": [30.0, 60.0],
        "longitude_of_central_meridian": 265.0, "latitude_of_projection_origin": 40.0,
        "semi_major_axis": 6378137.0, "semi_minor_axis": 6356752.314,
    }, (250_000, 200_000)),
    ("NBM", {
        "grid_mapping_name": "lambert_conformal_conic", "standard_parallel": 25.0,
        "longitude_of_central_meridian": -95.0, "latitude_of_projection_origin": 25.0,
    }, (250_000, 200_000)),
    ("polar stereographic", {
        "grid_mapping_name": "polar_stereographic", "standard_parallel": 60.0, "latitude_of_projection_origin": 90.0,
        "straight_vertical_longitude_from_pole": -111.0,
    }, (100_000, 150_000)),
    ("mercator", {
        "grid_mapping_name": "mercator", "standard_parallel": 20.0, "longitude_of_projection_origin": 170.0,
    }, (250_000, 300_000)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "mapping", "steps"), CONFORMAL, ids=[name for name, *_ in CONFORMAL])
def test_conformal_projections_place_cells_where_eccodes_does(name, mapping, steps):
    """The grid of ecCodes is a lattice in the plane; a search finds its first point without the forward formula."""
    with opened(plane_message(name, np.zeros((ROWS, COLUMNS)))) as handle:
        latitude, longitude = (eccodes.codes_get_array(handle, f"{axis}itudes") for axis in ("lat", "long"))

    def apart(origin):
        x, y = (start + step * np.arange(n) for start, step, n in zip(origin, steps, (COLUMNS, ROWS), strict=True))
        north, east = from_conformal({"earth_radius": 6371229.0, **mapping}, y[:, None], x[None, :])
        return np.ravel([north.ravel() - latitude, (east.ravel() - longitude + 180) % 360 - 180])

    found = least_squares(apart, (0.0, 0.0), x_scale=1e5, xtol=1e-14, ftol=1e-14, gtol=1e-14)
    np.testing.assert_allclose(found.fun, 0, atol=1e-7)
    if origin := mapping.get("latitude_of_projection_origin"):
        meridian = mapping.get("longitude_of_central_meridian", 0.0)
        found = from_conformal({**mapping, "false_easting": 5.0, "false_northing": -7.0}, np.array(-7.0), np.array(5.0))
        assert found[0] == pytest.approx(origin)
        assert name == "polar stereographic" or np.cos(np.radians(found[1] - meridian)) == pytest.approx(1)
