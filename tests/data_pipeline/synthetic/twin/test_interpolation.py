"""Interpolation against fields that are known everywhere."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.grid import Grid
from data_pipeline.synthetic.twin.interpolation import Interpolation, periodic_lagrange
from data_pipeline.synthetic.twin.sphere import Sphere

SPHERE = Sphere(21, torch.float64)


def on(latitudes: object, longitudes: object, field: Callable) -> torch.Tensor:
    lat, lon = np.radians(latitudes)[:, None], np.radians(longitudes)[None, :]
    return torch.tensor(field(lat, lon) + 0 * lat * lon)[None]


def interpolated(grid: Grid, field: Callable, vector: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    given_values = on(SPHERE.latitudes, SPHERE.longitudes, field)
    return Interpolation(SPHERE, grid)(given_values, vector), on(grid.latitudes, grid.longitudes, field)


SCALARS = {
    "constant": lambda lat, lon: 1 + 0 * lat * lon,
    "latitude": lambda lat, lon: np.sin(lat) ** 3,
    "wave 1": lambda lat, lon: np.cos(lat) * np.sin(lat) * np.cos(lon - 0.4),
    "wave 2 over the pole": lambda lat, lon: np.cos(lat) ** 2 * np.sin(2 * lon),
}


@pytest.mark.parametrize("shape", [(33, 64), (45, 90), (361, 720)])
@pytest.mark.parametrize("name", SCALARS)
def test_low_degrees_are_met_everywhere(shape: tuple[int, int], name: str) -> None:
    found, expected = interpolated(Grid.regular(*shape), SCALARS[name])
    torch.testing.assert_close(found, expected, rtol=0, atol=3e-4)


@pytest.mark.parametrize("shape", [(33, 64), (37, 72)])
def test_a_wind_that_blows_across_the_poles_stays_straight(shape: tuple[int, int]) -> None:
    # The Earth turning about an axis through the equator: u = -sin φ cos λ, v = sin λ.
    for field in (lambda lat, lon: -np.sin(lat) * np.cos(lon), lambda lat, lon: np.sin(lon) + 0 * lat):
        found, expected = interpolated(Grid.regular(*shape), field, vector=True)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


def test_a_scalar_has_one_value_at_a_pole() -> None:
    noise = torch.randn(3, SPHERE.rows, SPHERE.columns, generator=torch.Generator().manual_seed(2)).double()
    found = Interpolation(SPHERE, Grid.regular(19, 36))(noise)
    assert found.shape == (3, 19, 36)
    assert found[:, [0, -1]].std(-1).max() < 1e-12
    assert found[:, 1].std() > 0.1


@pytest.mark.parametrize("points", [2, 4])
def test_columns_that_coincide_are_copied(points: int) -> None:
    matrix = periodic_lagrange(SPHERE.longitudes, SPHERE.longitudes, 360.0, points)
    np.testing.assert_allclose(matrix, np.eye(SPHERE.columns), atol=1e-12)


def test_linear_interpolation_stays_between_its_neighbours() -> None:
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
def test_cubic_polynomials_are_exact_away_from_the_seam(
    knots: np.ndarray, coefficients: list[float], where: float
) -> None:
    cubic = np.polynomial.Polynomial(coefficients, domain=[0, 360])
    target = knots[1] + where * (knots[-3] - knots[1])
    matrix = periodic_lagrange(knots, np.array([target]), 360.0, 4)
    assert np.isclose(matrix @ cubic(knots), cubic(target), atol=1e-6)
    assert (matrix != 0).sum() <= 4
