"""Powers of distributions against closed forms, integration and sampling."""

import math

import numpy as np
import pytest
import scipy.stats
import torch

from models.distribution import (
    Bernstein,
    CensoredLogistic,
    CensoredNormal,
    Ensemble,
    Logistic,
    Normal,
    PowerTransformed,
    TruncatedNormal,
    from_power,
    power_transformed,
    to_power,
)


def number(value):
    return torch.as_tensor(value, dtype=torch.float64)


def inner(kind, mu, sigma, lower):
    mu, sigma, lower = torch.broadcast_tensors(*map(number, (mu, sigma, lower)))
    if kind is Bernstein:
        return Bernstein(torch.stack([mu + c * sigma for c in (-2.0, -1.0, 0.3, 0.5, 3.0)]))
    return kind(mu, sigma, lower) if kind in (CensoredNormal, CensoredLogistic, TruncatedNormal) else kind(mu, sigma)


def law(kind, power=0.5, mu=0.7, sigma=1.1, lower=0.0):
    return PowerTransformed(inner(kind, mu, sigma, lower), power, number(lower).expand_as(number(mu)))


KINDS = (CensoredNormal, CensoredLogistic, Normal, Logistic, Bernstein, TruncatedNormal)


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
    found = float(law(CensoredNormal, mu=mu, sigma=1.0).crps(number(y)))
    assert found == pytest.approx(expected, rel=2e-6, abs=1e-12)


@pytest.mark.parametrize("power", [0.25, 0.8])
@pytest.mark.parametrize("kind", KINDS)
def test_scores_and_moments_are_integrals_of_the_distribution_function(kind, power):
    distribution, truths = law(kind, power), (0.0, 0.3, 4.0)
    end = float(distribution.quantile(number([1 - 1e-15]))[0]) if kind is not Bernstein else 4.0 ** (1 / power)

    def cdf(root):
        return inner(kind, torch.full_like(root, 0.7), 1.1, 0 * root).cdf(root)

    def integral(function):
        """Integrate over x = t^(1/power) by t, on many short pieces."""
        fine, top = np.geomspace(1e-9, 0.01, 25), end**power
        jumps = (truth**power for truth in truths)
        edges = np.array(sorted({*np.linspace(0, top, 300), *fine, *(top - fine), *jumps}))
        nodes, weights = np.polynomial.legendre.leggauss(10)
        half = np.diff(edges)[:, None] / 2
        t = number(edges[:-1, None] + half * (1 + nodes)).flatten()
        values = function(t) * t ** (1 / power - 1) / power
        return float((values * number(half * weights).flatten()).sum())

    tolerance = 2e-5 if kind is Bernstein else 2e-6
    for y in truths:
        crps = integral(lambda t, y=y: (cdf(t) - (t >= y**power).double()) ** 2)
        assert float(distribution.crps(number(y))) == pytest.approx(crps, rel=tolerance)
    mean = integral(lambda t: 1 - cdf(t))
    square = integral(lambda t: 2 * t ** (1 / power) * (1 - cdf(t)))
    assert float(distribution.mean) == pytest.approx(mean, rel=tolerance)
    assert float(distribution.std) == pytest.approx(math.sqrt(square - mean**2), rel=10 * tolerance)


def test_single_precision_and_a_truth_below_the_bound():
    mu, sigma = torch.tensor([-1.0, 0.05, 3.0]), torch.tensor([0.5, 0.1, 0.2])
    single = PowerTransformed(CensoredNormal(mu, sigma, 0 * mu), 0.5, 0 * mu)
    double = law(CensoredNormal, mu=mu.double(), sigma=sigma.double())
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
