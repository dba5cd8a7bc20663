import json
from dataclasses import asdict

import numpy as np
import pytest
import xarray as xr

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.grids.grid_coordinates import grid_coordinates, grid_of, static_on
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
