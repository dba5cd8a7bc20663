import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.grids.points import Points


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


def test_wrong_coordinates_are_refused():
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
