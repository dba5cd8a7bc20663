"""Bernstein quantile functions against scipy's polynomials and integration over levels."""

import math

import numpy as np
import pytest
import scipy.integrate
import scipy.interpolate
import torch

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
    assert ours.log_prob(coefficients[-1] + 1e-9) == ours.log_prob(coefficients[0] - 1e-9) == -math.inf
    assert ours.log_prob(torch.tensor(torch.nan)).isnan()  # also where the density does not depend on the level


@pytest.mark.parametrize("degree", [1, 3, 12])
@pytest.mark.parametrize("position", [-0.5, 0.0, 0.01, 0.4, 0.97, 1.0, 1.5])
def test_crps_is_the_integral_of_the_quantile_score(degree, position):
    coefficients = ascending(1, degree + 1)
    ours, theirs = Bernstein(coefficients), polynomial(coefficients)
    y = coefficients[0] + position * (coefficients[-1] - coefficients[0])

    def quantile_score(level):
        return 2 * ((theirs(level) >= float(y)) - level) * (theirs(level) - float(y))

    turn = float(ours.cdf(y))
    expected = sum(scipy.integrate.quad(quantile_score, *edges)[0] for edges in ((0, turn), (turn, 1)))
    assert float(ours.crps(y)) == pytest.approx(expected, abs=1e-12)


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


def test_smaller_coefficients_are_raised_and_one_alone_is_an_error():
    assert Bernstein(torch.tensor([0.0, 2.0, 1.0, 3.0])).coefficients.tolist() == [0, 2, 2, 3]
    with pytest.raises(ValueError, match="needs at least two coefficients"):
        Bernstein(torch.zeros(1, 3))
