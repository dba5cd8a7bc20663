"""Maps: every cell is at its place in the colour of its value, with coasts and hatching."""

import numpy as np
import pytest
from map_pixels import globe_values, shown_at
from matplotlib import colormaps

from data_pipeline.grid import Grid
from data_pipeline.grids.points import Points
from evaluation.report.coastlines import Coastlines, shows_earth
from evaluation.report.figure_style import inline_svg
from evaluation.report.map_view import raster_of, view_of
from evaluation.report.maps import Coast, ColourScale, colour_scale, map_numbers, map_panel, ratio_scale

FIJI = Points((-18.0, -17.0, -16.5, -19.0), (178.0, 179.5, -179.5, -178.0))
VALUES = np.array([[-1.0], [np.nan], [0.5], [2.0]])
GLOBE = Grid.regular(9, 12)
EUROPE = Grid(tuple(range(70, 33, -4)), tuple(range(-12, 41, 4)))
PACIFIC = Grid((10.0, 0.0, -10.0, -20.0), tuple(range(160, 201, 5)))


def drawn(grid, values, significant=None, earth=False, land=None):
    scale = ColourScale(colour_scale([values], centred=True), "RdBu_r", "bias (K)")
    return map_panel(Coast(grid, land, earth), values, scale, "raw", significant)


def dots_of(panel):
    """The empty circles, the dots and the crosses of a map of points."""
    return [c for c in panel.figure.axes[0].collections if hasattr(c, "get_sizes") and len(c.get_sizes())]


def test_dots_lie_side_by_side_across_the_date_line_in_the_colours_of_their_values():
    panel = drawn(FIJI, VALUES, np.array([[True], [False], [False], [True]]))
    empty, dots, crosses = dots_of(panel)
    np.testing.assert_allclose(empty.get_offsets(), [[-180.5, -17.0]])
    np.testing.assert_allclose(dots.get_offsets(), [[-182.0, -18.0], [-179.5, -16.5], [-178.0, -19.0]])
    np.testing.assert_allclose(crosses.get_offsets(), [[-179.5, -16.5]], err_msg="a point that is not significant")
    dots.update_scalarmappable()
    expected = colormaps["RdBu_r"](colour_scale([VALUES], centred=True)(VALUES[[0, 2, 3], 0]))
    np.testing.assert_allclose(dots.get_facecolors(), expected)
    low, high = panel.figure.axes[0].get_xlim()
    assert low < -182
    assert high > -178
    _, dots = dots_of(drawn(Points((50.0, 51.0, 52.0), (355.0, 10.0, 2.0)), np.ones((3, 1))))
    np.testing.assert_allclose(dots.get_offsets()[:, 0], [-5, 10, 2], err_msg="across Greenwich")


def test_the_whole_globe_has_an_equal_area_projection():
    for globe in (Points((0.0,) * 12, tuple(range(-180, 180, 30))), Grid.regular(9, 16)):
        assert view_of(globe).globe
    for part in (FIJI, Points((48.5,), (10.5,)), Grid((50.0, 40.0), (0.0, 10.0))):
        assert not view_of(part).globe


def test_pixels_of_the_globe_cover_equal_areas():
    """The share of the pixels of each row of cells is its share of the area of the sphere."""
    cells = raster_of(Grid.regular(19, 36)).cells
    shares = np.bincount(cells[cells >= 0] // 36, minlength=19) / (cells >= 0).sum()
    edges = np.radians([90, *np.arange(85, -90, -10), -90])
    np.testing.assert_allclose(
        shares, (np.sin(edges[:-1]) - np.sin(edges[1:])) / 2, atol=1 / len(raster_of(GLOBE).cells)
    )


def test_every_cell_is_shown_at_its_place():
    for grid in (EUROPE, PACIFIC):
        field = np.random.default_rng(1).normal(size=grid.shape)
        ax = drawn(grid, field).figure.axes[0]
        shown = [[shown_at(ax, longitude, latitude) for longitude in grid.longitudes] for latitude in grid.latitudes]
        np.testing.assert_array_equal(shown, field)
    field = np.random.default_rng(0).normal(size=GLOBE.shape)
    field[4, 7] = np.nan
    np.testing.assert_array_equal(globe_values(drawn(GLOBE, field), GLOBE)[0], field)


def test_hatching_is_where_values_are_not_significant():
    significant = np.random.default_rng(2).random(GLOBE.shape) > 0.5
    field = np.ones(GLOBE.shape)
    field[3, 3], significant[3, 3] = np.nan, False
    panel = drawn(GLOBE, field, significant)
    hatching = panel.figure.axes[0].images[1].get_array()
    cells = raster_of(GLOBE).cells
    stripes = ~np.ma.getmaskarray(hatching)
    share = np.array([stripes[cells == cell].mean() for cell in range(significant.size)])
    bare = (significant | np.isnan(field)).ravel()
    assert (share[bare] == 0).all()
    large = np.bincount(cells[cells >= 0], minlength=bare.size) > 400
    np.testing.assert_allclose(share[large & ~bare], 0.2, atol=0.05)
    assert (share[~bare] > 0).all()
    assert len(drawn(GLOBE, field).figure.axes[0].images) == 1, "without a test there is no hatching"


def coast_segments(panel):
    return panel.figure.axes[0].collections[0].get_segments()


def test_the_earth_has_its_coasts():
    """Known places lie inland or at sea, and a line passes near places on the coast."""
    coasts = Coastlines.load()
    places = {"Paris": (48.9, 2.4), "Kansas": (39, -98), "Sahara": (23, 10), "Antarctica": (-85, 30)}
    seas = {"Atlantic": (40, -35), "Pacific": (0, -140), "Bay of Bengal": (15, 88)}
    assert all(coasts.is_land(*map(np.array, place)) for place in places.values())
    assert not any(coasts.is_land(*map(np.array, place)) for place in seas.values())
    points = np.concatenate(coasts.lines)
    for latitude, longitude in {"Cape of Good Hope": (-34.36, 18.47), "Land's End": (50.07, -5.71)}.values():
        assert np.hypot(points[:, 0] - longitude, points[:, 1] - latitude).min() < 0.1
    assert abs(points[:, 0]).max() <= 180
    # Polygons are closed along the date line and the south pole; no coast runs there.
    for line in coasts.lines:
        seam = (abs(line[:, 0]) > 179.99) | (line[:, 1] < -89.9)
        assert not (seam[1:] & seam[:-1]).any()


def test_land_covers_as_much_as_on_the_earth():
    weights = np.cos(np.radians(89.5 - np.arange(180)))[:, None]
    share = (Coastlines.load().land * weights).sum() / (360 * weights.sum())
    assert share == pytest.approx(0.292, abs=0.01)


def test_coasts_cross_the_date_line_of_a_region():
    """New Zealand and Fiji lie on both sides of 180 degrees."""
    grid = Grid(tuple(range(-10, -50, -2)), tuple(range(165, 196, 2)))
    points = np.concatenate(coast_segments(drawn(grid, np.ones(grid.shape), earth=True)))
    longitudes = points[:, 0]
    assert longitudes.max() > 180.1, "islands east of the date line are drawn at longitudes above 180"
    assert longitudes.min() < 180
    left, right, bottom, top = view_of(grid).box
    inside = (longitudes > left) & (longitudes < right) & (points[:, 1] > bottom) & (points[:, 1] < top)
    assert inside.sum() > 50


def test_coasts_of_the_globe_stay_inside_it():
    for line in coast_segments(drawn(GLOBE, np.ones(GLOBE.shape), earth=True)):
        assert ((line[:, 0] / np.sqrt(8)) ** 2 + (line[:, 1] / np.sqrt(2)) ** 2 <= 1 + 1e-6).all()
        assert np.hypot(*np.diff(line, axis=0).T).max() < 0.5, "no line jumps across the map"


def test_invented_continents_have_the_contour_of_their_mask():
    longitude = np.broadcast_to(np.array(GLOBE.longitudes), GLOBE.shape)
    land = (abs(longitude - 180) <= 60).astype(float)
    points = np.concatenate(coast_segments(drawn(GLOBE, land, land=land)))
    here, _ = view_of(GLOBE).places(points[:, 0], points[:, 1])
    np.testing.assert_allclose(abs(here), 105, atol=0.1)


def earth_mask(grid):
    return Coastlines.load().is_land(grid.cell_latitudes, grid.cell_longitudes).astype(float)


def test_only_the_earth_has_the_coasts_of_the_earth():
    grid = Grid.regular(46, 90)
    land = earth_mask(grid)
    assert shows_earth(grid, None, simulated=False)
    assert shows_earth(grid, land, simulated=False)
    assert shows_earth(EUROPE, earth_mask(EUROPE), simulated=False)
    assert not shows_earth(grid, None, simulated=True)
    assert not shows_earth(grid, land, simulated=True)
    assert not shows_earth(grid, np.roll(land, 30, axis=1), simulated=False)
    assert shows_earth(grid, np.full(grid.shape, np.nan), simulated=False)
    like_ours = land.copy()
    like_ours[20:24, 40:80] = 1 - like_ours[20:24, 40:80]
    assert not shows_earth(grid, like_ours, simulated=False), "continents that differ in a twentieth of the area"
    assert shows_earth(FIJI, np.zeros(FIJI.shape), simulated=False)


@pytest.mark.parametrize("grid", [GLOBE, EUROPE, FIJI, Points((48.5,), (10.5,)), Grid((45.0,), (3.0, 4.0))])
@pytest.mark.parametrize("earth", [True, False])
def test_any_grid_has_a_map(grid, earth):
    field = np.random.default_rng(0).random(grid.shape)
    field.flat[0] = np.nan
    panel = drawn(grid, field, field > 0.5, earth, land=field)
    assert "<image" in inline_svg(panel.figure, "x", "x")


def test_fields_without_values_or_differences_have_a_scale():
    none, constant = (colour_scale([np.full((2, 2), value)], centred=False) for value in (np.nan, 1.0))
    assert none.vmin < none.vmax
    assert constant.vmin < constant.vmax


def test_a_scale_of_ratios_has_half_as_far_from_one_as_double():
    norm = ratio_scale([np.array([[0.5, 0.8, 1.6, np.nan, 0.0]])])
    assert norm(1.0) == pytest.approx(0.5)
    assert norm(0.7) == pytest.approx(1 - norm(1 / 0.7))
    assert ratio_scale([np.full((1, 1), np.nan)]).vmax == 2


def test_numbers_of_maps_have_a_row_for_each_point():
    stations = Points((1.0, 2.0), (3.0, 4.0), ids=("a", "b"))
    columns = map_numbers(stations, {"raw": np.array([[5.0], [6.0]])})
    assert {key: list(column) for key, column in columns.items()} == {
        "id": ["a", "b"], "latitude": [1, 2], "longitude": [3, 4], "raw": [5, 6],
    }  # fmt: skip
