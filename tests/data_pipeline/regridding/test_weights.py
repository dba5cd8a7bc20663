"""Weights between grids: exact where they must be exact, of the expected order on smooth fields."""

import numpy as np
import pytest
from regridding_parts import GRIDS, octahedral, points, smooth

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.grids.points import Points
from data_pipeline.grids.reduced_grid import ReducedGrid
from data_pipeline.regridding.cells import latitude_edges
from data_pipeline.regridding.weights import METHODS, weights_between

TARGET = Grid.regular(19, 36)
ROWS = np.arange(19)
each_source = pytest.mark.parametrize("source", GRIDS.values(), ids=GRIDS)
each_method = pytest.mark.parametrize("method", METHODS)


def areas(grid):
    """The area of each cell in the order of a flat field; the sphere has area one."""
    rows = -np.diff(np.sin(np.radians(latitude_edges(grid)))) / 2
    counts = grid.counts if isinstance(grid, ReducedGrid) else [grid.shape[1]] * len(rows)
    return np.repeat(rows / counts, counts)


@pytest.mark.parametrize("target", [TARGET, Grid.regular(61, 120), GRIDS["regular Gaussian"]], ids=str)
@each_source
def test_conservative_weights_keep_the_global_integral(source, target):
    values = np.random.default_rng(0).normal(280, 20, source.shape[0] * source.shape[1])
    field = weights_between(source, target, "conservative").apply(values, np.arange(target.shape[0]))
    assert areas(target).sum() == pytest.approx(1, rel=1e-13)
    assert (field.ravel() * areas(target)).sum() == pytest.approx((values * areas(source)).sum(), rel=1e-12)


@pytest.mark.parametrize(("method", "order"), [("bilinear", 2), ("conservative", 1)])
def test_the_error_on_spherical_harmonics_has_the_expected_order(method, order):
    """With half the steps, interpolation has a quarter of the error, a first-order mean over fixed cells half of it."""
    target = Grid(tuple(np.arange(60.0, -61, -10)), tuple(np.arange(36) * 10.0))
    wanted, errors = smooth(target).reshape(target.shape), []
    if method == "conservative":
        fine = Grid.regular(721, 1440)
        wanted = weights_between(fine, target, method).apply(smooth(fine), np.arange(13))
    for half in (24, 48, 96):
        source = octahedral(half)
        found = weights_between(source, target, method).apply(smooth(source), np.arange(13))
        errors.append(np.sqrt(((found - wanted) ** 2).mean()))
    found = np.log2(errors[0] / errors[2]) / 2
    assert found > order - 0.25
    assert errors[2] < 2e-3


@pytest.mark.parametrize("name", ["without rows at the poles", "regular Gaussian", "octahedral"])
@pytest.mark.parametrize("end", [0, -1])
def test_a_wind_over_the_pole_keeps_its_direction(name, end):
    """The components of a uniform flow across a pole are waves in longitude, which change sign there."""
    source = GRIDS[name]
    _, longitude = points(source)
    target = Grid((90.0, 0.0, -90.0), tuple(np.arange(36) * 10.0))
    weights = weights_between(source, target, "bilinear")
    vector = weights.apply(np.cos(longitude), np.arange(3), parity=-1)[end]
    np.testing.assert_allclose(vector, np.cos(np.radians(target.longitudes)), atol=0.06)
    scalar = weights.apply(np.cos(longitude), np.arange(3), parity=1)[end]
    np.testing.assert_allclose(scalar, 0, atol=0.06)


@each_method
@each_source
def test_a_value_is_missing_where_more_than_half_of_its_weights_are(source, method):
    """With a missing hemisphere, values beside its edge are the mean of the others, and values within are missing."""
    latitude, _ = points(source)
    weights = weights_between(source, TARGET, method)
    field = weights.apply(np.where(latitude < np.radians(12), np.nan, 7.0), ROWS)
    np.testing.assert_allclose(field[TARGET.latitudes.index(30.0)], 7)
    assert np.isnan(field[TARGET.latitudes.index(-10.0) :]).all()
    np.testing.assert_allclose(field[np.isfinite(field)], 7)
    share = weights.apply((latitude >= np.radians(12)).astype(float), ROWS)
    np.testing.assert_array_equal(np.isfinite(field), share >= 0.5 - 1e-6)


def test_a_missing_value_leaves_points_of_both_grids_alone():
    """Three quarters of the source's points and area are missing; the target has the others only."""
    source = GRIDS["pole to pole"]
    values = smooth(source).reshape(source.shape)
    gaps = np.full(source.shape, np.nan)
    gaps[::2, ::2] = values[::2, ::2]
    bilinear, conservative = (
        weights_between(source, TARGET, method).apply(gaps.ravel(), ROWS) for method in ("bilinear", "conservative")
    )
    np.testing.assert_array_equal(bilinear, values[::2, ::2])
    assert np.isnan(conservative).all()


@each_method
@each_source
def test_rows_can_be_computed_one_by_one(source, method):
    weights, values = weights_between(source, TARGET, method), smooth(source)
    whole = weights.apply(values, ROWS)
    for row in ROWS:
        offset, part = 0, values
        if not isinstance(source, ReducedGrid):
            needed, width = weights.rows_needed(np.array([row])), source.shape[1]
            offset, part = needed.start * width, values[needed.start * width : needed.stop * width]
            assert len(part) <= 6 * width
        np.testing.assert_array_equal(weights.apply(part, np.array([row]), offset=offset)[0], whole[row])


def test_a_region_is_read_from_the_globe_and_from_a_larger_region():
    """An area across 0 degrees east, from grids with longitudes from 0 and from 350 degrees."""
    target = Grid((52.0, 50.0, 48.0), (-4.0, -2.0, 0.0, 2.0))
    region = Grid(tuple(np.arange(60.0, 39, -1)), tuple(np.arange(350.0, 371)))
    for method in METHODS:
        one, other = (
            weights_between(source, target, method).apply(smooth(source), np.arange(3))
            for source in (Grid.regular(181, 360), region)
        )
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-12)
    np.testing.assert_allclose(one, smooth(target).reshape(3, 4), atol=1e-12)


@pytest.mark.parametrize(
    "target", [Grid((62.0, 50.0), (0.0, 2.0)), Grid((52.0, 50.0), (0.0, 12.0)), Grid.regular(19, 36)], ids=str
)
def test_an_area_that_is_not_covered_is_refused(target):
    region = Grid(tuple(np.arange(60.0, 39, -1)), tuple(np.arange(-10.0, 11)))
    with pytest.raises(InputError, match=r"21 x 21 points.* do not cover the grid of .*data.archive.grid"):
        weights_between(region, target, "conservative")


def test_stations_are_refused():
    with pytest.raises(InputError, match="both must be grids of at least 2 x 2 points"):
        weights_between(Points((50.0, 51.0), (8.0, 9.0)), TARGET, "bilinear")
