"""Powers of distributions against closed forms, integration and sampling."""

import math

import pytest
import scipy.stats
import torch

from models.distribution import (
    CensoredNormal,
    Ensemble,
    PowerTransformed,
    from_power,
    power_transformed,
    to_power,
)


def number(value):
    return torch.as_tensor(value, dtype=torch.float64)


def squared_normal(mu, sigma):
    mu, sigma = torch.broadcast_tensors(number(mu), number(sigma))
    return PowerTransformed(CensoredNormal(mu, sigma, 0 * mu), 0.5, 0 * mu)


@pytest.mark.parametrize("mu", [-4.0, -0.5, 1.0, 12.0])
@pytest.mark.parametrize("y", [0.0, 0.04, 2.0, 90.0])
def test_crps_of_the_square_of_a_censored_normal_has_its_closed_form(mu, y):
    """∫ 2t (Φ(t - μ) - 1{t >= √y})² dt from 0 on; ∫ tΦ² = (t² - 1)Φ²/2 + tφΦ + φ²/2 + ∫ φ², by parts."""
    pdf, cdf = scipy.stats.norm.pdf, scipy.stats.norm.cdf

    def moment(t):  # a function whose derivative is 2(t + μ) Φ(t)²
        phi, below = pdf(t), cdf(t)
        first = t * t * below**2 + 2 * t * phi * below - below**2 + phi**2
        zeroth = t * below**2 + 2 * phi * below - cdf(math.sqrt(2) * t) / math.sqrt(math.pi)
        return first + 2 * mu * zeroth

    def above(t):  # a function whose derivative is -2(t + μ) Φ(-t)²
        phi, over = pdf(t), cdf(-t)
        first = t * t * over**2 - 2 * t * phi * over - over**2 + phi**2
        zeroth = t * over**2 - 2 * phi * over + cdf(-math.sqrt(2) * t) / math.sqrt(math.pi)
        return -first - 2 * mu * zeroth

    root = math.sqrt(y)
    expected = moment(root - mu) - moment(-mu) + above(root - mu)
    found = float(squared_normal(mu, 1.0).crps(number(y)))
    assert found == pytest.approx(expected, rel=2e-6, abs=1e-12)


@pytest.mark.parametrize("mu", [-4.0, -0.5, 1.0, 12.0])
def test_moments_of_the_square_of_a_censored_normal_have_their_closed_form(mu):
    pdf, cdf, found = scipy.stats.norm.pdf(mu), scipy.stats.norm.cdf(mu), squared_normal(mu, 1.0)
    mean = (1 + mu**2) * cdf + mu * pdf
    square = (mu**4 + 6 * mu**2 + 3) * cdf + (mu**3 + 5 * mu) * pdf
    assert float(found.mean) == pytest.approx(mean, rel=2e-6)
    assert float(found.std) == pytest.approx(math.sqrt(square - mean**2), rel=2e-5)


def test_single_precision_and_a_truth_below_the_bound():
    mu, sigma = torch.tensor([-1.0, 0.05, 3.0]), torch.tensor([0.5, 0.1, 0.2])
    single = PowerTransformed(CensoredNormal(mu, sigma, 0 * mu), 0.5, 0 * mu)
    double = squared_normal(mu.double(), sigma.double())
    y = torch.tensor([0.0, 0.001, 8.0])
    assert single.crps(y).dtype == torch.float32
    torch.testing.assert_close(single.crps(y).double(), double.crps(y.double()), rtol=1e-5, atol=1e-9)
    torch.testing.assert_close(double.crps(number([-2.0] * 3)), 2 + double.crps(number([0.0] * 3)))


def test_powers_of_an_ensemble_are_an_ensemble():
    members = number([[0.0, 1.0], [4.0, 9.0]])
    roots = to_power(members, 0.5, number(0.0))
    assert roots.tolist() == [[0, 1], [2, 3]]
    back = power_transformed(Ensemble(roots), 0.5, number(0.0))
    assert isinstance(back, Ensemble)
    torch.testing.assert_close(back.members, members)
    torch.testing.assert_close(from_power(roots - 5, 0.5, number(-5.0)), number([[-5, -4], [-1, 4]]))
