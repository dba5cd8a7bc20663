"""Points and grids: what matches, what is refused; Legendre functions."""

import json
from dataclasses import asdict

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import sph_harm_y_all

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.grids.grid_coordinates import grid_coordinates, grid_of, static_on
from data_pipeline.grids.legendre import legendre
from data_pipeline.grids.points import Points, grid_of_json

ALPS = Points((47.3, 52.5, 48.6), (11.4, 9.7, -0.1), (580.0, 55.0, 434.0), ("Innsbruck", "Hannover", "Dillingen"))


def test_points_have_equal_weights_and_no_neighbours():
    np.testing.assert_array_equal(ALPS.weights, [1, 1, 1])
    np.testing.assert_array_equal(ALPS.cell_longitudes, [[11.4], [9.7], [-0.1]])
    with pytest.raises(InputError, match=r"3 stations, .* have no neighbours"):
        ALPS.coarsen()
    assert not ALPS.matches(Grid((50.0, 40.0), (8.0, 9.0)))
    assert not Grid((50.0,), (8.0,)).matches(Points((50.0,), (8.0,)))


def test_stations_match_by_id_and_points_without_ids_by_position():
    moved = Points((47.2, 52.5, 48.6), (11.4, 9.7, 359.9), ids=ALPS.ids)
    assert ALPS.matches(moved)
    assert moved.matches(ALPS)
    assert not ALPS.matches(Points(ALPS.latitudes, ALPS.longitudes, ids=ALPS.ids[::-1]))
    assert ALPS.matches(Points(ALPS.latitudes, (11.4, 9.7, 359.9)))
    assert not ALPS.matches(Points(moved.latitudes, ALPS.longitudes))
    others = Points((52.5, 40.0, 47.3), (9.7, 0.0, 11.4), ids=("Hannover", "Madrid", "Innsbruck"))
    np.testing.assert_array_equal(ALPS.positions_in(others), [2, 0, -1])


def test_stations_elsewhere_and_other_points_without_ids_are_refused():
    swapped = Points((52.5, 47.3), (9.7, 11.4), ids=("Innsbruck", "Hannover"))
    with pytest.raises(InputError, match=r"2 equal ids, 2 more than 1° away \(Innsbruck by 5.20°, Hannover .*; give"):
        ALPS.positions_in(swapped)
    with pytest.raises(InputError, match=r"2 points, .* without ids; .* cf_role"):
        ALPS.positions_in(Points((47.3, 52.5), (11.4, 9.7)))


def test_the_same_points_without_ids_are_found_in_any_order():
    random = np.random.default_rng(0)
    own = Points(random.uniform(-90, 90, 50), random.uniform(-180, 180, 50))
    order = random.permutation(50)
    rounded = np.round(np.array([own.latitudes, own.longitudes])[:, order], 3)
    other = Points(rounded[0], (rounded[1] + 360) % 360)
    np.testing.assert_array_equal(order[own.positions_in(other)], np.arange(50))
    with pytest.raises(InputError, match="are different points without ids"):
        own.positions_in(Points(rounded[0] + np.eye(1, 50, 7)[0] * 0.01, rounded[1]))
    with pytest.raises(InputError, match="are different points without ids"):
        own.positions_in(Points((*rounded[0][:-1], rounded[0][0]), (*rounded[1][:-1], rounded[1][0])))


def test_ids_match_without_leading_zeros_unless_one_set_has_both():
    own = Points((1.0, 2.0, 3.0), (0.0,) * 3, ids=("01001", "1002", "A07"))
    found = own.found_in(Points((3.0, 2.0, 1.0), (0.0,) * 3, ids=("A7", "001002", "1001")))
    np.testing.assert_array_equal(found.positions, [2, 1, -1])
    assert found.notes == ("2 of them by ids without leading zeros (01001 is 1001)",)
    both = Points((1.0, 1.0), (0.0,) * 2, ids=("1001", "0001001"))
    np.testing.assert_array_equal(own.positions_in(both), [-1, -1, -1])


def test_a_moved_station_is_named_and_left_out():
    ids = tuple(map(str, range(1149)))
    own = Points(np.linspace(40, 50, 1149), (10.0,) * 1149, ids=ids)
    east = np.full(1149, 10.0)
    east[[7, 300, 301]] = 11.65, 10.05, 9.6
    other = Points(own.latitudes, tuple(east), ids=ids)
    assert not own.matches(other)
    found = own.found_in(other)
    assert (found.positions < 0).nonzero()[0].tolist() == [7]
    assert found.notes == (
        "1 more than 1° away (7 by 1.65°), left out as other stations", "1 of them 0.1° to 1° away (301 by 0.40°)"
    )  # fmt: skip


@pytest.mark.parametrize("grid", [ALPS, Points((1.0, 2.0), (3.0, 3.0)), Grid((5.0, 4.0), (1.0, 2.0, 3.0))], ids=str)
def test_a_grid_survives_json_and_a_dataset(grid):
    assert grid_of_json(json.loads(json.dumps(asdict(grid)))) == grid
    assert grid_of(xr.Dataset(coords=grid_coordinates(grid))) == grid


def test_static_fields_of_stations_are_found_by_id():
    others = Points((52.5, 48.6, 40.0, 47.3), (9.7, -0.1, 0.0, 11.4), ids=("Hannover", "Dillingen", "M", "Innsbruck"))
    fields = xr.Dataset({"lsm": ("point", [1.0, 2.0, 3.0, 4.0])}, coords=grid_coordinates(others))
    np.testing.assert_array_equal(static_on(ALPS, fields, "lsm"), [[4.0], [1.0], [2.0]])
    with pytest.raises(InputError, match=r"the static field lsm lacks 1 of 3 stations, .*, the first is Innsbruck"):
        static_on(ALPS, fields.isel(point=slice(3)), "lsm")
    with pytest.raises(InputError, match=r"the static field lsm lacks 1 of 3 stations, .*, the first is Dillingen"):
        static_on(ALPS, fields.where(fields.lsm != 2), "lsm")


def test_wrong_points_are_refused():
    for arguments, sentence in (
        (((), ()), "at least one point"),
        (((50.0,), (8.0, 9.0)), "1 points need as many longitudes, got 2"),
        (((50.0,), (8.0,), (1.0, 2.0)), "1 points need as many altitudes, got 2"),
        (((91.0,), (8.0,)), r"within \[-90, 90\], got 91.0"),
        (((50.0,), (np.nan,)), "longitudes of points must be finite"),
        (((50.0, 51.0), (8.0, 9.0), (), ("a", "a")), "the station a occurs twice"),
    ):
        with pytest.raises(InputError, match=sentence):
            Points(*arguments)


# Grids of rows and columns


@given(rows=st.integers(3, 400), columns=st.integers(4, 50))
def test_weights_are_areas_of_the_sphere(rows, columns):
    grid = Grid.regular(rows, columns)
    # The polar cap of half a row has area 1 - cos(half a row), out of 2 for the sphere.
    cap = 1 - np.cos(np.radians(90 / (rows - 1)))
    assert grid.weights.mean() == pytest.approx(1)
    assert grid.weights[[0, -1]] / rows * 2 == pytest.approx(np.array([cap, cap]))


def test_neighbours_across_the_meridian_and_the_poles():
    """A row at a pole is beside its neighbour there, a row half a step from it beside itself."""
    for grid, periodic, across in (
        (Grid.regular(33, 64), True, 1),
        (Grid(tuple(np.arange(87.5, -90, -5)), tuple(np.arange(0, 360, 5.0))), True, 0),
        (Grid((60.0, 55.0, 50.0), (-10.0, -5.0, 0.0, 5.0)), False, None),
        (Points((0.0,) * 4, (0.0, 90.0, 180.0, 270.0)), False, None),
    ):
        assert grid.periodic == periodic
        assert (grid.across_pole(0), grid.across_pole(-1)) == (across, across)


def test_coarsening_keeps_the_poles_of_odd_grids():
    grid = Grid.regular(361, 720)
    shapes = [(grid := grid.coarsen()).shape for _ in range(3)]
    assert shapes == [(181, 360), (91, 180), (46, 90)]
    assert grid.latitudes[0] == 90
    assert grid.periodic


def test_grids_match_within_the_rounding_of_grib1_and_up_to_multiples_of_360_degrees():
    exact = Grid.regular(33, 64)
    assert exact.matches(Grid(tuple(np.round(exact.latitudes, 3)), tuple(np.round(exact.longitudes, 3))))
    assert not exact.matches(Grid.regular(33, 72))
    west = Grid((20, 10), (-160, -150, -140))
    assert west.matches(Grid((20, 10), (200, 210, 220)))
    assert not west.matches(Grid((20, 10), (20, 30, 40)))
    assert not west.matches(Grid((20, 10), (200.01, 210.01, 220.01)))
    assert not west.matches(Grid((20, 10.01), (200, 210, 220)))


def test_wrong_coordinates_of_a_grid_are_refused():
    for latitudes, longitudes, sentence in (
        ((10, 20), (0, 10), "north first"),
        ((95, 20), (0, 10), "within"),
        ((20, 10), (10, 0), "increase"),
        ((20, 10), (0, 180, 360), "span less than 360"),
        ((), (0, 10), "latitudes"),
        ((20, float("nan")), (0, 10), "within"),
    ):
        with pytest.raises(InputError, match=sentence):
            Grid(latitudes, longitudes)


# Associated Legendre functions


@pytest.mark.parametrize("degree", [0, 1, 8, 100])
def test_values_equal_those_of_scipy(degree):
    """Up to norm and sign; at both poles, near them, and at every half degree."""
    latitudes = np.concatenate([np.linspace(90, -90, 361), [89.99, -89.99]])
    found = legendre(degree, np.sin(np.radians(latitudes)), np.cos(np.radians(latitudes)) ** 2)
    theirs = sph_harm_y_all(degree, degree, np.radians(90 - latitudes), 0.0).real[:, : degree + 1]
    expected = np.sqrt(2 * np.pi) * theirs.transpose(1, 2, 0) * (-1.0) ** np.arange(degree + 1)[:, None, None]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
