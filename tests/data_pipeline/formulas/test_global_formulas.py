"""Formulas that need the globe against closed forms: trajectories in rigid rotations, and the inverse Laplacian."""

import numpy as np
import pytest
from sphere_fields import GRIDS, relative, vectors

from data_pipeline.common.errors import InputError
from data_pipeline.formulas.formula import Formula
from data_pipeline.formulas.formula_values import FormulaValues
from data_pipeline.formulas.inverse_laplacian import InverseLaplacian
from data_pipeline.formulas.sphere_derivatives import EARTH_RADIUS, EARTH_ROTATION
from data_pipeline.formulas.trajectories import Trajectories
from data_pipeline.grid import Grid
from data_pipeline.grids.points import Points

DAY = 86400
AXIS = np.array([2.0, -1.0, 2.0]) / 3
"""Of a rotation that carries air across both poles."""


def wind_of_rotation(grid, radians_per_day):
    """Return the components of a rotation round `AXIS`, and of the unit vectors of east and north."""
    position, east, north = vectors(grid)
    velocity = np.cross(AXIS, position, axisb=0).transpose(2, 0, 1) * EARTH_RADIUS * radians_per_day / DAY
    return (velocity * east).sum(0), (velocity * north).sum(0)


def turned(position, angle):
    """Return places (3, H, W) turned round `AXIS` (Rodrigues' formula)."""
    along = np.tensordot(AXIS, position, 1) * AXIS[:, None, None]
    return (
        along
        + np.cos(angle) * (position - along)
        + np.sin(angle) * np.cross(AXIS, position, axisb=0).transpose(2, 0, 1)
    )


@pytest.mark.parametrize("name", GRIDS)
def test_air_in_a_rigid_rotation_comes_from_where_the_rotation_took_it(name):
    grid = GRIDS[name]
    wind = wind_of_rotation(grid, 0.5)
    found = Trajectories(grid).departures(wind, wind, DAY)
    assert abs(found - turned(vectors(grid)[0], -0.5)).max() < 2e-3
    assert np.allclose((found**2).sum(0), 1)


def test_the_wind_between_two_times_is_their_mean():
    """A rotation that slows down from 0.6 to 0.2 radians a day turns by 0.4 radians in a day."""
    grid = GRIDS["poles"]
    found = Trajectories(grid).departures(wind_of_rotation(grid, 0.2), wind_of_rotation(grid, 0.6), DAY)
    assert abs(found - turned(vectors(grid)[0], -0.4)).max() < 2e-3


@pytest.mark.parametrize("name", GRIDS)
def test_values_between_points_also_at_the_poles(name):
    grid = GRIDS[name]
    position = vectors(grid)[0]
    places = turned(position, 0.3)
    x, y, z = position
    at_x, at_y, at_z = places
    found = Trajectories(grid).values(x * y + z**3 - 2 * x, places)
    assert relative(found, at_x * at_y + at_z**3 - 2 * at_x) < 5e-5


def test_the_change_of_carried_air_is_the_change_that_it_does_not_owe_to_the_flow():
    """A field is carried by the rotation and warms by 1.5 K everywhere; without the flow it changes by up to 10 K."""
    grid, formula = GRIDS["between"], Formula.parse("lagrangian_change(t@850, 24)")
    u, v = wind_of_rotation(grid, 0.5)
    position = vectors(grid)[0]

    def temperature(place):
        return 270 + 10 * place[0] * place[1] + 10 * place[2]

    fields = {
        "t@850": temperature(turned(position, -0.5)) + 1.5, "t@850-24h": temperature(position),
        "u@850": u, "v@850": v, "u@850-24h": u, "v@850-24h": v,
    }  # fmt: skip
    values = FormulaValues(grid)
    for rows in (slice(0, grid.shape[0]), slice(5, 9)):
        found = values.compute(formula, rows, lambda leaf, wide: fields[str(leaf)][wide])
        assert abs(found - 1.5).max() < 0.03
    assert abs(fields["t@850"] - fields["t@850-24h"]).max() > 5


def test_missing_values():
    grid, formula = GRIDS["poles"], Formula.parse("lagrangian_change(sst, 24, u@850, v@850)")
    fields = {str(leaf): np.zeros(grid.shape) for leaf in formula.leaves}
    fields["sst-24h"][20, 30] = np.nan

    def change():
        return FormulaValues(grid).compute(formula, slice(0, grid.shape[0]), lambda leaf, rows: fields[str(leaf)][rows])

    missing = np.argwhere(np.isnan(change()))
    assert 0 < len(missing) <= 25
    assert (abs(missing - [20, 30]) <= 2).all()
    fields["u@850-24h"][0, 0] = np.nan
    assert np.isnan(change()).all(), "air from everywhere may have passed there"


# Inverse Laplacian and the tendency of geopotential


@pytest.mark.parametrize("name", GRIDS)
def test_harmonics_have_their_inverse_laplacian(name):
    grid = GRIDS[name]
    inverse = InverseLaplacian(grid)
    x, y, z = vectors(grid)[0]
    # Homogeneous harmonic polynomials of degree n have the Laplacian -n(n + 1) on the unit sphere.
    harmonics = {1: (x, y + z, z), 2: (x * z, x * y, 3 * z * z - 1), 3: (z * (x * x - y * y), x * (5 * z * z - 1))}
    for degree, fields in harmonics.items():
        for field in fields:
            true = -field / (degree * (degree + 1)) * EARTH_RADIUS**2
            assert relative(inverse(field), true) < 1e-4
            assert relative(inverse(5 + field), inverse(field)) < 1e-12, "a constant has no inverse"


def error_of_a_rossby_haurwitz_wave(grid):
    """Haurwitz 1940: ψ = a²(-ω sin φ + K cos⁴φ sin φ cos 4λ) moves east with the angular velocity ν.

    ν = (R(3 + R)ω - 2Ω) / ((1 + R)(2 + R)) for R = 4, with R as wavenumber and power (Williamson et al. 1992,
    doi:10.1016/S0021-9991(05)80016-6, case 6). So ∂ψ/∂t = -ν ∂ψ/∂λ. With s = cos⁴φ cos 4λ and μ = sin φ, the
    harmonics s and (μ² - 1/11)s of degrees 4 and 6 give ∇·(f∇(μs)) = 2Ω(1 - 35μ²)s = ∇²(2Ω(5μ²/6 + 1/30)s).
    """
    omega, K, R = 7.848e-6, 7.848e-6, 4
    phi, lam = np.radians(grid.cell_latitudes), np.radians(grid.cell_longitudes)
    cos, sin = np.cos(phi), np.sin(phi)
    u = EARTH_RADIUS * (omega * cos + K * cos ** (R - 1) * (R * sin**2 - cos**2) * np.cos(R * lam))
    v = -EARTH_RADIUS * K * R * cos ** (R - 1) * sin * np.sin(R * lam)
    nu = (R * (3 + R) * omega - 2 * EARTH_ROTATION) / ((1 + R) * (2 + R))
    balanced = 2 * EARTH_ROTATION * (5 * sin**2 / 6 + 1 / 30)
    true = nu * EARTH_RADIUS**2 * K * cos**R * balanced * R * np.sin(R * lam)
    wind, formula = {"u@500": u, "v@500": v}, Formula.parse("geopotential_tendency@500")
    found = FormulaValues(grid).compute(formula, slice(0, grid.shape[0]), lambda leaf, rows: wind[str(leaf)][rows])
    return relative(found, true)


def test_a_rossby_haurwitz_wave_moves_without_change_of_shape():
    errors = {name: error_of_a_rossby_haurwitz_wave(grid) for name, grid in GRIDS.items()}
    assert max(errors.values()) < 1e-3
    assert errors["poles"] > 10 * error_of_a_rossby_haurwitz_wave(Grid.regular(145, 288)), "fourth order in the step"


def test_stretching_by_divergence_raises_or_lowers_the_geopotential():
    """The divergence xy changes the vorticity by -2Ω xyz, and ψ by 2Ω xyz a²/12, on harmonics of the unit sphere.

    ∇·(z ∇(xyz)) = xy - 15 xyz², and xyz² = (xyz² - xy/7) + xy/7 has the degrees 4 and 2.
    """
    for grid in GRIDS.values():
        x, y, z = vectors(grid)[0]
        formula = Formula.parse("balanced_geopotential(stretching(d@500))")
        divergence = 1e-6 * x * y
        found = FormulaValues(grid).compute(formula, slice(0, len(x)), lambda _, rows, field=divergence: field[rows])
        fourth, second = x * y * z * z - x * y / 7, x * y
        true = (2 * EARTH_ROTATION * EARTH_RADIUS) ** 2 / 12 * 1e-6 * (15 / 20 * fourth + (15 / 7 - 1) / 6 * second)
        assert relative(found, true) < 1e-3
        assert formula.units == "m² s⁻³"


def test_stretching_at_stations_in_any_order():
    """A day has 2π radians, and a year one rotation more than days: f = 4π/86164 s at 90° N, half of it at 30° N."""
    stations, formula = Points((30.0, -90.0, 90.0), (5.0, 0.0, 0.0)), Formula.parse("stretching(d@500)")
    found = FormulaValues(stations).compute(formula, slice(0, 3), lambda _, rows: np.array([[2.0], [3.0], [4.0]])[rows])
    assert np.allclose(found[:, 0], 4 * np.pi / 86164 * np.array([-1, 3, -4]), rtol=1e-4)


def test_a_missing_value_makes_the_whole_field_missing():
    field = vectors(GRIDS["poles"])[0][0]
    field[20, 30] = np.nan
    assert np.isnan(InverseLaplacian(GRIDS["poles"])(field)).all()


def test_grids_that_do_not_cover_the_globe_are_refused():
    area = Grid(tuple(np.arange(60.0, 30, -1)), tuple(np.arange(0.0, 40)))
    for text, name in (
        ("inverse_laplacian(vorticity@500)", "the inverse Laplacian needs"),
        ("change(geopotential_tendency@500, 24)", "the inverse Laplacian needs"),
        ("change(lagrangian_change(t@850, 24), 24)", "trajectories need"),
    ):
        with pytest.raises(InputError, match=f"{name} a latitude-longitude grid of the globe"):
            FormulaValues(area).check(Formula.parse(text))
    FormulaValues(area).check(Formula.parse("laplacian(z@500)"))
    FormulaValues(Grid.regular(5, 8)).check(Formula.parse("inverse_laplacian(vorticity@500)"))
