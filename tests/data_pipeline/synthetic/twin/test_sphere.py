"""Transforms against SciPy's spherical harmonics; interpolation against known fields; gradients: `test_dynamics.py`."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import sph_harm_y

from data_pipeline.grid import Grid
from data_pipeline.synthetic.twin.sphere import Interpolation, Sphere, periodic_lagrange

SPHERE = Sphere(21, torch.float64)


@pytest.mark.parametrize(("n", "m"), [(0, 0), (1, 0), (1, 1), (7, 3), (15, 15)])
@pytest.mark.parametrize("sphere", [Sphere(15, torch.float64), SPHERE], ids=["15", "21"])
def test_each_harmonic_of_scipy_is_one_coefficient(sphere, n, m):
    turn, colatitude = 0.3, np.radians(90 - sphere.latitudes)[None, :]
    field = torch.tensor(sph_harm_y(n, m, colatitude, np.radians(sphere.longitudes)[:, None] - turn).real)[..., None]
    spectrum = sphere.to_spectrum(field)[..., 0]
    torch.testing.assert_close(sphere.to_grid(spectrum[..., None]), field, rtol=0, atol=1e-13)
    expected = torch.zeros_like(spectrum)
    # SciPy normalises over the sphere, with the Condon-Shortley phase; half of a real wave is at -m.
    amplitude = (-1) ** m / np.sqrt(2 * np.pi) / (1 if m == 0 else 2)
    expected[2 * m, n] = amplitude * np.cos(m * turn)
    expected[2 * m + 1, n] = -amplitude * np.sin(m * turn)
    torch.testing.assert_close(spectrum, expected, rtol=0, atol=1e-13)


def values_at(latitudes, longitudes, field):
    lat, lon = np.radians(latitudes)[:, None], np.radians(longitudes)[None, :]
    return torch.tensor(field(lat, lon) + 0 * lat * lon)[None]


def interpolate(grid, field, vector=False):
    given_values = values_at(SPHERE.latitudes, SPHERE.longitudes, field)
    return Interpolation(SPHERE, grid)(given_values, vector), values_at(grid.latitudes, grid.longitudes, field)


SCALARS = {
    "constant": lambda lat, lon: 1 + 0 * lat * lon,
    "latitude": lambda lat, lon: np.sin(lat) ** 3,
    "wave 1": lambda lat, lon: np.cos(lat) * np.sin(lat) * np.cos(lon - 0.4),
    "wave 2 over the pole": lambda lat, lon: np.cos(lat) ** 2 * np.sin(2 * lon),
}


@pytest.mark.parametrize("name", SCALARS)
def test_smooth_fields_are_interpolated_accurately(name):
    found, expected = interpolate(Grid.regular(45, 90), SCALARS[name])
    torch.testing.assert_close(found, expected, rtol=0, atol=3e-4)


def test_a_wind_across_the_poles_keeps_its_direction():
    # Rotation about an axis through the equator: u = -sin φ cos λ, v = sin λ.
    for field in (lambda lat, lon: -np.sin(lat) * np.cos(lon), lambda lat, lon: np.sin(lon) + 0 * lat):
        found, expected = interpolate(Grid.regular(37, 72), field, vector=True)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


def test_linear_interpolation_stays_between_its_knots():
    noise = torch.rand(2, SPHERE.rows, SPHERE.columns, generator=torch.Generator().manual_seed(3)).double()
    linear = Interpolation(SPHERE, Grid.regular(91, 180), points=2)
    assert linear(noise).min() >= noise.min()
    assert linear(noise).max() <= noise.max()
    assert Interpolation(SPHERE, Grid.regular(91, 180))(noise).max() > noise.max()
    meridian = periodic_lagrange(np.array([10.0, 100.0, 350.0]), np.array([0.0, 55.0]), 360.0, 2)
    np.testing.assert_allclose(meridian, [[0.5, 0, 0.5], [0.5, 0.5, 0]])


@given(
    knots=st.lists(st.integers(0, 719), min_size=8, max_size=40, unique=True).map(lambda k: np.sort(k) / 2),
    coefficients=st.lists(st.floats(-1, 1), min_size=4, max_size=4),
    where=st.floats(0, 1),
)
def test_cubic_polynomials_are_exact_away_from_the_seam(knots, coefficients, where):
    cubic = np.polynomial.Polynomial(coefficients, domain=[0, 360])
    target = knots[1] + where * (knots[-3] - knots[1])
    matrix = periodic_lagrange(knots, np.array([target]), 360.0, 4)
    assert np.isclose(matrix @ cubic(knots), cubic(target), atol=1e-6)
    assert (matrix != 0).sum() <= 4
