"""Derivatives against closed forms: spherical harmonics, tilted solid-body rotation, constant vectors."""

import numpy as np
import pytest
from sphere_fields import GRIDS, relative, vectors

from data_pipeline.common.errors import InputError
from data_pipeline.formulas.sphere_derivatives import EARTH_RADIUS, EARTH_ROTATION, Band, SphereDerivatives
from data_pipeline.grid import Grid
from data_pipeline.grids.points import Points


def whole(values):
    return Band(np.ascontiguousarray(values), 0)


@pytest.mark.parametrize("name", GRIDS)
def test_harmonics_have_their_laplacian_and_their_gradient(name):
    grid = GRIDS[name]
    rows, sphere = slice(0, grid.shape[0]), SphereDerivatives(grid)
    position, east, north = vectors(grid)
    x, y, z = position
    # Homogeneous harmonic polynomials of degree n have the Laplacian -n(n + 1) on the unit sphere.
    harmonics = {1: (x, y + z), 2: (x * z, x * y), 3: (z * (x * x - y * y), x * (5 * z * z - 1))}
    for degree, fields in harmonics.items():
        for field in fields:
            true = -degree * (degree + 1) * field / EARTH_RADIUS**2
            found = sphere.laplacian(whole(field), rows)
            assert relative(found, true) < 2e-3, "a row at a pole has an error of second order"
            assert relative(found[1:-1], true[1:-1]) < 1e-4
    for field, slope in ((x, (1, 0, 0)), (2 * x - y + z, (2, -1, 1))):
        found = sphere.gradient(whole(field), rows)
        for part, direction in zip(found, (east, north), strict=True):
            # The gradient of a component of the position is the projection of that axis.
            assert relative(part * EARTH_RADIUS, np.tensordot(slope, direction, 1)) < 2e-4


@pytest.mark.parametrize("name", GRIDS)
def test_solid_body_rotation_has_twice_the_angular_velocity_and_no_divergence(name):
    grid = GRIDS[name]
    rows, sphere = slice(0, grid.shape[0]), SphereDerivatives(grid)
    position, east, north = vectors(grid)
    axis = np.array([0.3, -0.5, 0.8])
    motion = np.cross(axis[:, None, None] + 0 * position, EARTH_RADIUS * position, axis=0)
    u, v = (whole((motion * direction).sum(0)) for direction in (east, north))
    assert relative(sphere.vorticity(u, v, rows), 2 * np.tensordot(axis, position, 1)) < 1e-3
    assert abs(sphere.divergence(u, v, rows)).max() < 1e-3
    # The gradient of s·r has the divergence -2 s·r and no vorticity.
    u, v = (whole(np.tensordot(axis, direction, 1)) for direction in (east, north))
    assert relative(EARTH_RADIUS * sphere.divergence(u, v, rows), -2 * np.tensordot(axis, position, 1)) < 1e-3
    assert EARTH_RADIUS * abs(sphere.vorticity(u, v, rows)).max() < 1e-3
    assert sphere.coriolis(slice(0, 1))[0, 0] == pytest.approx(
        2 * EARTH_ROTATION * np.sin(np.radians(grid.latitudes[0]))
    )


def test_errors_are_of_fourth_order():
    errors = []
    for rows in (37, 73, 145):
        grid = Grid.regular(rows, 2 * (rows - 1))
        (x, y, z), _, _ = vectors(grid)
        wave = z * ((x + 1j * y) ** 8).real
        found = SphereDerivatives(grid).laplacian(whole(wave), slice(0, rows))
        near = abs(grid.cell_latitudes[:, 0]) < 40  # here an east-west step is one column
        errors.append(relative(found[near] * EARTH_RADIUS**2, -9 * 10 * wave[near]))
    assert errors[0] > 14 * errors[1] > 14**2 * errors[2]


@pytest.mark.parametrize("west", [0, 170])
def test_limited_areas(west):
    """Two rows inside, an area has the values of the globe; differences at its edges are one-sided."""
    globe = Grid.regular(73, 144)
    columns = (np.arange(west // 10 * 4, west // 10 * 4 + 20)) % 144
    area = Grid(globe.latitudes[20:34], tuple(np.array(globe.longitudes)[columns[0]] + 2.5 * np.arange(20)))
    (x, y, z), _, _ = vectors(globe)
    field = x * y + z
    cut = np.ascontiguousarray(field[20:34][:, columns])
    ours, theirs = SphereDerivatives(area), SphereDerivatives(globe)
    rows = slice(0, 14)
    inside = (slice(2, -2), slice(4, -4))
    pairs = [(ours.laplacian(whole(cut), rows), theirs.laplacian(whole(field), slice(20, 34)))]
    pairs += zip(ours.gradient(whole(cut), rows), theirs.gradient(whole(field), slice(20, 34)), strict=True)
    for found, on_globe in pairs:
        on_globe = on_globe[:, columns]
        np.testing.assert_allclose(found[inside], on_globe[inside], rtol=0, atol=1e-9 * abs(on_globe).max())
        assert np.isfinite(found).all()
        assert relative(found, on_globe) < 0.1


@pytest.mark.parametrize("name", ["poles", "between"])
def test_a_band_has_the_values_of_the_globe(name):
    grid = GRIDS[name]
    H = grid.shape[0]
    sphere, field, other = SphereDerivatives(grid), *np.random.default_rng(1).normal(size=(2, *grid.shape))
    for rows in (slice(0, 1), slice(1, 2), slice(5, 9), slice(H - 2, H - 1), slice(H - 1, H)):
        wide = slice(max(rows.start - 2, 0), min(rows.stop + 2, H))
        band, second = (Band(values[wide].copy(), wide.start) for values in (field, other))
        everything = slice(0, H)
        for part, all_rows in (
            (sphere.laplacian(band, rows), sphere.laplacian(whole(field), everything)),
            (sphere.gradient(band, rows)[0], sphere.gradient(whole(field), everything)[0]),
            (sphere.gradient(band, rows)[1], sphere.gradient(whole(field), everything)[1]),
            (sphere.vorticity(band, second, rows), sphere.vorticity(whole(field), whole(other), everything)),
        ):
            assert np.array_equal(part, all_rows[rows])


def test_missing_values_stay_where_they_reach():
    grid = Grid.regular(37, 72)
    field = vectors(grid)[0][0]
    field[20, 30] = np.nan
    found = SphereDerivatives(grid).laplacian(whole(field), slice(0, 37))
    gone = np.argwhere(np.isnan(found)).tolist()
    assert gone == [[18, 30], [19, 30], *([20, column] for column in range(28, 33)), [21, 30], [22, 30]]


def test_grids_without_neighbours_are_refused():
    for grid in (Points((1.0, 2.0, 3.0), (1.0, 2.0, 3.0)), Grid((1.0, 0.0), (1.0, 2.0, 3.0))):
        with pytest.raises(InputError, match="derivatives need a latitude-longitude grid of at least 3 x 3 points"):
            SphereDerivatives(grid)
