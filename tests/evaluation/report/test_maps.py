"""Maps of points: each is drawn once, at its place and in the colour of its value."""

import numpy as np
import pytest
from matplotlib import colormaps

from data_pipeline.grid import Grid
from data_pipeline.points import Points
from evaluation.report.maps import colour_scale, map_figure, projection_of

FIJI = Points((-18.0, -17.0, -16.5, -19.0), (178.0, 179.5, -179.5, -178.0))
VALUES = np.array([[-1.0], [np.nan], [0.5], [2.0]])


def drawn(points, values):
    """The empty circles and the dots of a map."""
    figure = map_figure(points, {"bias": values}, label="K", cmap="RdBu_r", centred=True, land=None)
    return figure.axes[0].collections, figure.axes[0]


def test_dots_lie_side_by_side_across_the_date_line():
    (empty, dots), ax = drawn(FIJI, VALUES)
    np.testing.assert_allclose(empty.get_offsets(), [[-180.5, -17.0]])
    np.testing.assert_allclose(dots.get_offsets(), [[-182.0, -18.0], [-179.5, -16.5], [-178.0, -19.0]])
    assert ax.name == "rectilinear"
    assert ax.get_xlim()[0] < -182
    assert ax.get_xlim()[1] > -178


def test_dots_have_the_colours_of_their_values():
    (_, dots), _ = drawn(FIJI, VALUES)
    dots.update_scalarmappable()
    expected = colormaps["RdBu_r"](colour_scale([VALUES], centred=True)(VALUES[[0, 2, 3], 0]))
    np.testing.assert_allclose(dots.get_facecolors(), expected)


@pytest.mark.parametrize(
    ("grid", "projection"),
    [
        (FIJI, "rectilinear"),
        (Points((48.5,), (10.5,)), "rectilinear"),
        (Points((0.0,) * 12, tuple(range(-180, 180, 30))), "mollweide"),
        (Grid.regular(9, 16), "mollweide"),
        (Grid((50.0, 40.0), (0.0, 10.0)), "rectilinear"),
    ],
)
def test_the_whole_globe_has_an_equal_area_projection(grid, projection):
    assert projection_of(grid) == projection


def test_dots_lie_side_by_side_across_greenwich():
    (_, dots), _ = drawn(Points((50.0, 51.0, 52.0), (355.0, 10.0, 2.0)), np.ones((3, 1)))
    np.testing.assert_allclose(dots.get_offsets()[:, 0], [-5, 10, 2])
