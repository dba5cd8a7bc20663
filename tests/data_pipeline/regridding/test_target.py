"""The grids that `data.archive.grid` names."""

import numpy as np
import pytest
from regridding_parts import GRIDS, octahedral

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.regridding.grid_coverage import shared_points
from data_pipeline.regridding.target import TargetGrid, check_grid_option, regular_grid


@pytest.mark.parametrize(("degrees", "shape"), [(0.25, (721, 1440)), (1.5, (121, 240)), (2, (91, 180))])
def test_degrees_give_the_global_grid_with_both_poles(degrees, shape):
    grid = regular_grid(degrees, list(GRIDS.values()))
    assert grid.shape == shape
    assert grid.matches(Grid.regular(*shape))


def test_degrees_give_the_area_that_all_files_have():
    europe = Grid(tuple(np.arange(70.0, 34, -0.5)), tuple(np.arange(-10.25, 30, 0.5)))
    atlantic = Grid(tuple(np.arange(65.2, 10, -0.4)), tuple(np.arange(300.0, 380.1, 0.4)))
    found = regular_grid(1.5, [Grid.regular(181, 360), europe, atlantic])
    assert (found.latitudes[0], found.latitudes[-1]) == (64.5, 34.5)
    assert (found.longitudes[0], found.longitudes[-1]) == (-9.0, 19.5)
    np.testing.assert_allclose(np.diff(found.longitudes), 1.5)


def test_what_gives_no_grid_is_refused():
    for degrees, sources, message in (
        (0.7, [Grid.regular(19, 36)], "does not divide 180 degrees"),
        (10, [Grid((50.0, 49.0), (0.0, 1.0, 2.0))], "fewer than 2 x 2 points in the area"),
        (10, [Grid((50.0, 0.0), tuple(range(west, west + 341))) for west in (-170, 10)], "several parts"),
    ):
        with pytest.raises(InputError, match=message):
            regular_grid(degrees, sources)
    for value in ("regular", "0.5x0.5", True, 0, -1.5, 90, [1, 2], float("nan")):
        with pytest.raises(InputError, match=r"data\.archive\.grid must be ensemble, analysis or a number of degrees"):
            check_grid_option(value)
    with pytest.raises(InputError, match=r"not on the octahedral reduced Gaussian grid O32 .*number of degrees"):
        TargetGrid(octahedral(32), "bilinear")


def test_only_points_that_grids_share_are_found_also_across_the_date_line():
    fine = Grid.regular(37, 72)
    coarse = Grid(tuple(np.arange(80.0, -81, -10)), tuple(np.arange(-180.0, 180, 10) + 5))
    rows, columns = shared_points(coarse, fine)
    np.testing.assert_allclose(np.array(fine.latitudes)[rows], coarse.latitudes)
    np.testing.assert_allclose((np.array(fine.longitudes)[columns] - coarse.longitudes) % 360, 0)
    for other in (Grid.regular(36, 72), Grid((80.0, 70.0), (0.0, 5.0, 11.0)), octahedral(32)):
        assert shared_points(other, fine) is None
