"""Bernstein quantile functions against scipy's polynomials, integration over levels and sampling."""

import math

import numpy as np
import pytest
import scipy.integrate
import scipy.interpolate
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.distribution import Bernstein


def ascending(seed, *shape):
    steps = torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) ** 2 + 0.01
    return steps.cumsum(0) - 2


def polynomial(coefficients):
    return scipy.interpolate.BPoly(np.asarray(coefficients, dtype=float)[:, None], [0, 1])


@pytest.mark.parametrize("degree", [1, 2, 5, 12, 30])
def test_quantiles_and_moments_equal_scipy(degree):
    coefficients = ascending(0, degree + 1)
    ours, theirs = Bernstein(coefficients), polynomial(coefficients)
    level = torch.linspace(0, 1, 21, dtype=torch.float64)
    np.testing.assert_allclose(ours.quantile(level), theirs(level), rtol=1e-12)
    mean = float(theirs.integrate(0, 1))
    square = scipy.integrate.quad(lambda t: (theirs(t) - mean) ** 2, 0, 1)[0]
    assert float(ours.mean) == pytest.approx(mean, rel=1e-12)
    assert float(ours.std) == pytest.approx(math.sqrt(square), rel=1e-10)
    for p, value in zip(level[1:-1], ours.quantile(level[1:-1]), strict=True):
        assert float(ours.cdf(value)) == pytest.approx(float(p), abs=1e-12)
        assert float(ours.log_prob(value)) == pytest.approx(-math.log(theirs.derivative()(p)), abs=1e-9)


@pytest.mark.parametrize("degree", [1, 3, 12])
@pytest.mark.parametrize("position", [-0.5, 0.0, 0.01, 0.4, 0.97, 1.0, 1.5])
def test_crps_is_the_integral_of_the_quantile_score(degree, position):
    coefficients = ascending(1, degree + 1)
    theirs = polynomial(coefficients)
    y = float(coefficients[0] + position * (coefficients[-1] - coefficients[0]))

    def quantile_score(level):
        return 2 * ((theirs(level) >= y) - level) * (theirs(level) - y)

    turn = float(Bernstein(coefficients).cdf(torch.tensor(y, dtype=torch.float64)))
    expected = sum(scipy.integrate.quad(quantile_score, *edges)[0] for edges in ((0, turn), (turn, 1)))
    assert float(Bernstein(coefficients).crps(torch.tensor(y, dtype=torch.float64))) == pytest.approx(
        expected, abs=1e-12
    )


def test_degree_one_is_the_uniform_distribution():
    """CRPS of U(0, 1): y² - y + 1/3 inside; outside, the distance is added."""
    uniform = Bernstein(torch.tensor([[0.0], [1.0]]))
    for y, expected in ((0.0, 1 / 3), (0.5, 1 / 12), (1.0, 1 / 3), (-2.0, 2 + 1 / 3), (3.0, 2 + 1 / 3)):
        assert float(uniform.crps(torch.tensor([y]))) == pytest.approx(expected, abs=1e-6)
    assert float(uniform.std) == pytest.approx(1 / math.sqrt(12))
    assert uniform.cdf(torch.tensor([0.3])).item() == pytest.approx(0.3)
    assert uniform.log_prob(torch.tensor([1.3])).item() == -math.inf
    assert uniform.log_prob(torch.tensor([torch.nan])).isnan()  # though its density does not depend on the level


@settings(max_examples=40)
@given(
    values=st.lists(st.floats(-5, 5), min_size=2, max_size=9),
    y=st.floats(-6, 6),
    shift=st.floats(-5, 5),
    stretch=st.floats(0.05, 5),
)
def test_any_coefficients_give_a_distribution_and_affine_is_consistent(values, y, shift, stretch):
    ours = Bernstein(torch.tensor(values, dtype=torch.float64))
    quantiles = ours.quantile(torch.linspace(0, 1, 33))
    assert (quantiles.diff() >= -1e-12).all()
    y, shift, stretch = (torch.tensor(v, dtype=torch.float64) for v in (y, shift, stretch))
    moved = ours.affine(shift, stretch)
    torch.testing.assert_close(moved.crps(shift + stretch * y), stretch * ours.crps(y), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(moved.mean, shift + stretch * ours.mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(moved.std, stretch * ours.std, rtol=1e-6, atol=1e-6)
    assert ours.crps(y) >= -1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [0.0, 1e-30, 1e-6, 1.0, 1e6])
def test_scores_and_gradients_stay_finite(width, dtype):
    y = torch.tensor([-1e6, -1, 0, 1e-9, 1, 1e6], dtype=dtype)
    raw = (width * ascending(4, 13, 1)).to(dtype).expand(13, 6).clone().requires_grad_()
    ours = Bernstein(raw)
    for result in (ours.crps(y), ours.cdf(y), ours.mean):
        assert result.isfinite().all()
        assert torch.autograd.grad(result.sum(), raw, retain_graph=True)[0].isfinite().all()
    if width <= 1e-30:
        torch.testing.assert_close(ours.crps(y), y.abs(), rtol=1e-6, atol=1e-6)


def test_a_distribution_far_from_zero_keeps_its_digits_in_float32():
    coefficients, y = ascending(5, 13) + 280, torch.tensor(279.0)
    exact = Bernstein(coefficients.float().double()).crps(y.double())
    assert float(Bernstein(coefficients.float()).crps(y)) == pytest.approx(float(exact), rel=1e-5)


@pytest.mark.parametrize("name", ["crps", "cdf", "log_prob"])
def test_gradients_equal_finite_differences(name):
    coefficients = ascending(6, 6, 8).requires_grad_()
    y = Bernstein(coefficients.detach()).quantile(torch.tensor([0.37]))[0].requires_grad_()
    assert torch.autograd.gradcheck(lambda c, v: getattr(Bernstein(c), name)(v), (coefficients, y))


def test_one_coefficient_is_an_error():
    with pytest.raises(ValueError, match="needs at least two coefficients"):
        Bernstein(torch.zeros(1, 3))
