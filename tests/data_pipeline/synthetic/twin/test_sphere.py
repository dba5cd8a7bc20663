"""Transforms against SciPy's spherical harmonics, finite differences and the theory of the Laplacian."""

import numpy as np
import pytest
import torch
from scipy.special import sph_harm_y

from data_pipeline.synthetic.twin.sphere import Sphere, resize


@pytest.fixture(scope="module", params=[15, 21])
def sphere(request: pytest.FixtureRequest) -> Sphere:
    return Sphere(request.param, torch.float64)


def harmonic(sphere: Sphere, n: int, m: int, turn: float = 0.0) -> torch.Tensor:
    """Real part of SciPy's Y_nm, east by `turn` radians, (W, H, 1)."""
    longitude = np.radians(sphere.longitudes)[:, None] - turn
    colatitude = np.radians(90 - sphere.latitudes)[None, :]
    return torch.tensor(sph_harm_y(n, m, colatitude, longitude).real)[..., None]


def random_spectrum(sphere: Sphere, fields: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    shape = (*sphere.mask.shape[:2], fields, 2)
    return torch.randn(shape, generator=generator, dtype=torch.float64) * sphere.mask


def test_a_spectrum_survives_the_grid(sphere: Sphere) -> None:
    spectrum = random_spectrum(sphere)
    torch.testing.assert_close(sphere.to_spectrum(sphere.to_grid(spectrum)), spectrum, rtol=0, atol=1e-13)


@pytest.mark.parametrize(("n", "m"), [(0, 0), (1, 0), (1, 1), (7, 3), (12, 12), (15, 0), (15, 15)])
def test_each_harmonic_is_one_coefficient_and_the_same_as_scipys(sphere: Sphere, n: int, m: int) -> None:
    turn = 0.3
    spectrum = sphere.to_spectrum(harmonic(sphere, n, m, turn))[..., 0]
    expected = torch.zeros_like(spectrum)
    # SciPy's norm is over the sphere, its sign Condon and Shortley's; half of a real wave is at -m.
    amplitude = (-1) ** m / np.sqrt(2 * np.pi) / (1 if m == 0 else 2)
    expected[2 * m, n] = amplitude * np.cos(m * turn)
    expected[2 * m + 1, n] = -amplitude * np.sin(m * turn)
    torch.testing.assert_close(spectrum, expected, rtol=0, atol=1e-13)


def test_the_mean_square_is_the_sum_of_squares(sphere: Sphere) -> None:
    spectrum = random_spectrum(sphere)
    twice = torch.where(torch.arange(len(spectrum)) < 2, 1.0, 2.0).view(-1, 1, 1, 1)
    power = (twice * spectrum**2).sum((0, 1)) / 2
    torch.testing.assert_close(sphere.mean(sphere.to_grid(spectrum) ** 2), power)


def test_the_gradient_is_that_of_finite_differences() -> None:
    sphere = Sphere(21, torch.float64)
    spectrum = random_spectrum(sphere)
    east, north = sphere.gradient(spectrum)
    step = 1e-5
    order = torch.arange(sphere.truncation + 1, dtype=torch.float64).view(-1, 1, 1, 1)
    real, imaginary = spectrum[::2], spectrum[1::2]
    turned = []
    for angle in (-step, step):
        cosine, sine = torch.cos(order * angle), torch.sin(order * angle)
        pair = torch.stack([real * cosine - imaginary * sine, real * sine + imaginary * cosine], 1)
        turned.append(sphere.to_grid(pair.flatten(0, 1)))
    torch.testing.assert_close(east, (turned[1] - turned[0]) / (2 * step), rtol=1e-7, atol=1e-6)

    # cos² f' of f = μ⁴ + μ is (1 - μ²)(4μ³ + 1).
    mu = sphere.mu.expand(sphere.columns, -1, 1, 1)
    _, slope = sphere.gradient(sphere.to_spectrum(mu**4 + mu))
    torch.testing.assert_close(slope, (1 - mu**2) * (4 * mu**3 + 1), rtol=0, atol=1e-12)
    assert north.shape == east.shape


@pytest.mark.parametrize(("n", "m"), [(2, 1), (9, 4), (14, 14)])
def test_the_laplacian_has_the_eigenvalues_of_the_sphere(n: int, m: int) -> None:
    sphere = Sphere(21, torch.float64)
    field = harmonic(sphere, n, m)
    # ∇·∇f from two first derivatives: ((∂λ)² f + cos² ∂μ(cos² ∂μ f)) / cos².
    east, north = sphere.gradient(sphere.to_spectrum(field))
    east_east, _ = sphere.gradient(sphere.to_spectrum(east))
    _, north_north = sphere.gradient(sphere.to_spectrum(north))
    laplacian = (east_east + north_north) / sphere.cos2[..., 0]
    torch.testing.assert_close(laplacian, -n * (n + 1) * field, rtol=0, atol=1e-9)
    torch.testing.assert_close(sphere.laplacian[0, n, 0, 0].item(), -float(n * (n + 1)))


def test_division_by_cos2_is_the_quadratures_own() -> None:
    sphere = Sphere(21, torch.float64)
    field = sphere.to_grid(random_spectrum(sphere))
    torch.testing.assert_close(
        sphere.to_spectrum(field, over_cos2=True), sphere.to_spectrum(field / sphere.cos2), rtol=0, atol=1e-10
    )


def test_products_of_two_fields_are_free_of_aliasing(sphere: Sphere) -> None:
    fine = Sphere(2 * sphere.truncation, torch.float64)
    a, b = random_spectrum(sphere, 2).unbind(2)
    coarse_product = sphere.to_spectrum(sphere.to_grid(a) * sphere.to_grid(b))
    fine_product = fine.to_spectrum(fine.to_grid(resize(a, fine.truncation)) * fine.to_grid(resize(b, fine.truncation)))
    torch.testing.assert_close(resize(fine_product, sphere.truncation), coarse_product, rtol=0, atol=1e-10)
