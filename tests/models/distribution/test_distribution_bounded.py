"""The censored, shifted gamma and the truncated normal distribution, against scipy, scoringrules and mpmath."""

import itertools
import math

import mpmath
import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
import scoringrules
import torch

from models.distribution import CensoredNormal, CensoredShiftedGamma, Normal, TruncatedNormal
from models.distribution.truncated import _excess

SHAPES = [1e-6, 0.03, 0.4, 1.0, 2.7, 19.99, 20.01, 300.0, 1e5]


def gamma(shape, scale, shift, lower=0.0, dtype=torch.float64):
    return CensoredShiftedGamma(*(torch.as_tensor(v, dtype=dtype) for v in (shape, scale, shift, lower)))


def draws(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("sigma", [0.01, 1.0, 40.0])
def test_a_gamma_whose_support_starts_far_away_is_a_censored_normal(sigma):
    mu, sigma = sigma * torch.tensor([-1.0, 0.5, 4.0]).double(), torch.full((3,), sigma).double()
    found = CensoredShiftedGamma.of_location(mu, sigma, 1e6 * sigma, 0 * mu)
    expected = CensoredNormal(mu, sigma, 0 * mu)
    np.testing.assert_allclose(found.mean / sigma, expected.mean / sigma, atol=0.01)
    np.testing.assert_allclose(found.std / sigma, expected.std / sigma, atol=0.01)


def test_gamma_crps_equals_scoringrules():
    shape, scale, delta = draws(0, 3, 1000).exp()
    shape, truth = shape**2, (draws(1, 1000) * 3).clamp(min=0)
    expected = scoringrules.crps_csg0(*(v.numpy() for v in (truth, shape)), scale=scale.numpy(), shift=delta.numpy())
    assert (truth == 0).double().mean() > 0.3
    np.testing.assert_allclose(gamma(shape, scale, -delta).crps(truth), expected, rtol=1e-7, atol=2e-8)


@pytest.mark.parametrize("shape", SHAPES[1:])
@pytest.mark.parametrize("share", [0.0, 0.2, 0.999])
def test_gamma_moments_probabilities_and_quantiles_equal_scipy(shape, share):
    """Censored so that the bound has this share of the probability."""
    law = scipy.stats.gamma(shape, scale=2.0)
    lower = law.ppf(share) if share else -0.5
    ours = gamma(shape, 2.0, 0.0, lower)
    c = lower / 2
    above = [scipy.special.gammaincc(shape + j, max(c, 0)) for j in range(3)]
    mean = shape * above[1] - c * above[0]
    square = shape * (shape + 1) * above[2] - 2 * c * shape * above[1] + c * c * above[0]
    assert float(ours.mean) == pytest.approx(lower + 2 * mean, rel=1e-9, abs=1e-9)
    # The difference of squares has few digits for large shapes.
    assert float(ours.std) == pytest.approx(2 * math.sqrt(square - mean * mean), rel=1e-5, abs=1e-7)
    level = torch.tensor([1e-6, 0.01, 0.3, 0.5, 0.9, 0.9999, 1 - 1e-9], dtype=torch.float64)
    value = ours.quantile(level)
    np.testing.assert_allclose(value, np.maximum(law.ppf(level), lower), rtol=1e-7, atol=1e-9)
    for x in value[value > lower]:
        assert float(ours.cdf(x)) == pytest.approx(law.cdf(float(x)), rel=1e-8)
        assert float(ours.log_prob(x)) == pytest.approx(law.logpdf(float(x)), rel=1e-9, abs=1e-9)
    bound = torch.tensor(lower, dtype=torch.float64)
    assert float(ours.cdf(bound)) == pytest.approx(share, abs=1e-9)
    assert float(ours.cdf(bound - 1)) == 0
    assert math.exp(float(ours.log_prob(bound))) == pytest.approx(share, abs=1e-9)
    assert ours.quantile(torch.tensor([0.0, 1.0])).tolist() == [max(lower, 0.0), math.inf]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_derivative_by_the_shape_equals_mpmath(shape):
    mpmath.mp.dps = 30
    z = np.array([-4, -0.5, 0.3, 3])
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-6)):
        k = torch.tensor(shape, dtype=dtype, requires_grad=True)
        x = torch.tensor(shape + z * math.sqrt(shape) if shape > 20 else shape * np.exp(z), dtype=dtype)
        below = CensoredShiftedGamma(k, *torch.tensor([[1.0], [0.0], [0.0]], dtype=dtype)).cdf(x)
        for value, one in zip(below, x, strict=True):
            (found,) = torch.autograd.grad(value, k, retain_graph=True)
            assert found.dtype == dtype
            at, exact = mpmath.mpf(float(k.detach())), mpmath.mpf(float(one))
            expected = float(mpmath.diff(lambda q, x=exact: mpmath.gammainc(q, 0, x, regularized=True), at))
            assert float(found) == pytest.approx(expected, rel=tolerance, abs=tolerance / math.sqrt(1 + shape))


def test_a_large_shape_is_the_normal_and_shape_one_the_exponential_distribution():
    y = torch.tensor([-2.0, 0.1, 1.7], dtype=torch.float64)
    ours, normal = gamma(1e10, 1e-5, -1e5, -50.0), Normal(*torch.tensor([[0.0], [1.0]]).double())
    for name in ("crps", "cdf", "log_prob"):
        torch.testing.assert_close(getattr(ours, name)(y), getattr(normal, name)(y), rtol=0, atol=1e-4)
    for e in (0.0, 0.3, 2.0):
        score = gamma(1.0, 1.0, 0.0).crps(torch.tensor(e, dtype=torch.float64))
        assert float(score) == pytest.approx(e + 2 * math.exp(-e) - 1.5, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gamma_numbers_and_its_gradients_stay_finite(dtype):
    """Shapes and scales from tiny to huge, truths and bounds up to 10⁶ standard deviations away."""
    far = [-1e6, -1.0, 0.0, 1e-9, 1.0, 1e6]
    sizes = [0.0, 1e-20, 1e-6, 1.0, 1e6]
    shapes = [0.0, 1e-12, 1e-3, 1.0, 30.0, 1e7, 1e14]
    values = torch.cartesian_prod(*(torch.tensor(v, dtype=dtype) for v in (shapes, sizes, far, far)))
    shape, scale, y, shift = values.T
    for lower in (-1e6, 0.0, 1e6):
        parameters = [v.clone().requires_grad_() for v in (shape, scale, shift)]
        ours = CensoredShiftedGamma(*parameters, torch.tensor(lower, dtype=dtype))
        at_bound = ours.log_prob(ours.lower) if (shift < lower).all() else ours.mean
        for result in (
            ours.crps(y),
            ours.mean,
            ours.std,
            ours.quantile(torch.tensor([0.2, 0.8])),
            ours.cdf(y),
            at_bound,
        ):
            assert result.isfinite().all()
            for gradient in torch.autograd.grad(result.sum(), parameters, retain_graph=True, allow_unused=True):
                assert gradient is None or gradient.isfinite().all()


BOUNDS = [-40.0, -3.0, -0.4, 0.0, 1e-6, 0.7, 2.999, 3.001, 8.0, 30.0]


def truncated(mu, sigma, lower, dtype=torch.float64):
    return TruncatedNormal(*(torch.as_tensor(v, dtype=dtype) for v in (mu, sigma, lower)))


@pytest.mark.parametrize("bound", [-40.0, -0.4, 1e-6, 2.999, 3.001, 30.0])
@pytest.mark.parametrize("excess", [-0.5, 0.02, 3.0])
def test_truncated_crps_is_the_integral_of_the_squared_difference_from_the_step(bound, excess):
    law, y = scipy.stats.truncnorm(bound, np.inf), bound + excess
    options = {"epsabs": 0, "epsrel": 1e-10, "limit": 300}
    turn = max(y, bound)
    split = [turn, turn + 1 / max(1, bound), max(turn, 0) + 12]
    pieces = [scipy.integrate.quad(lambda x: law.cdf(x) ** 2, bound, turn, points=[np.clip(0, bound, turn)], **options)]
    pieces += [
        scipy.integrate.quad(lambda x: law.sf(x) ** 2, *edges, points=[np.clip(0, *edges)], **options)
        for edges in itertools.pairwise(split)
    ]
    expected = sum(value for value, _ in pieces) + max(bound - y, 0)
    score = truncated(0.0, 1.0, bound).crps(torch.tensor(y, dtype=torch.float64))
    assert float(score) == pytest.approx(expected, rel=1e-7)
    in_float32 = truncated(0.0, 1.0, bound, torch.float32).crps(torch.tensor(y))
    assert float(in_float32) == pytest.approx(expected, rel=1e-4, abs=2e-6 * max(1, 1 / (1 + abs(bound))))


@pytest.mark.parametrize("bound", BOUNDS)
def test_truncated_moments_probabilities_and_quantiles_equal_scipy(bound):
    law, ours = scipy.stats.truncnorm(bound, np.inf), truncated(0.0, 1.0, bound)
    assert float(ours.mean) == pytest.approx(law.mean(), rel=1e-10, abs=1e-12)
    square = scipy.integrate.quad(
        lambda x: (x - law.mean()) ** 2 * law.pdf(x), bound, max(bound, 0) + 14, points=[max(bound, 0) + 0.1], limit=300
    )[0]
    assert float(ours.std) == pytest.approx(math.sqrt(square), rel=1e-6)
    level = torch.tensor([1e-6, 0.01, 0.3, 0.5, 0.9, 0.999], dtype=torch.float64)
    value = ours.quantile(level)
    np.testing.assert_allclose(value, law.ppf(level), rtol=1e-8, atol=1e-9)
    for x, p in zip(value, level, strict=True):
        assert float(ours.cdf(x)) == pytest.approx(float(p), rel=1e-6)
        assert float(ours.log_prob(x)) == pytest.approx(law.logpdf(float(x)), abs=1e-8)
    assert float(ours.cdf(torch.tensor(bound - 1))) == 0
    assert float(ours.log_prob(torch.tensor(bound - 1))) == -math.inf
    lowest, highest = ours.quantile(torch.tensor([0.0, 1.0])).tolist()
    assert lowest >= bound
    assert lowest == pytest.approx(bound)
    assert highest == math.inf


def test_derivatives_of_the_excess_are_differences_of_its_values():
    z = torch.tensor([0.1, 1, 2.9, 3.5, 6, 20], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(_excess, z, rtol=1e-5)
    assert torch.autograd.gradgradcheck(_excess, z, rtol=1e-5)


def test_far_above_the_mean_the_excess_is_exponential_in_float32():
    """Its mean is 1/l, and its CRPS against the bound 1/(2l); l from 10⁴ to 10¹⁸."""
    for bound in (1e4, 1e6, 1e12, 1e18):
        ours = truncated(-bound, 1.0, 0.0, torch.float32)
        assert float(ours.mean) == pytest.approx(1 / bound, rel=1e-5)
        assert float(ours.std) == pytest.approx(1 / bound, rel=1e-5)
        assert float(ours.quantile(torch.tensor([0.5]))) == pytest.approx(math.log(2) / bound, rel=1e-5)
        for e in (0.0, 0.3, 2.0):
            expected = e + 2 * math.exp(-e) - 1.5  # the CRPS of the exponential law
            assert float(ours.crps(torch.tensor(e / bound))) == pytest.approx(expected / bound, rel=1e-4)
            assert float(ours.cdf(torch.tensor(e / bound))) == pytest.approx(1 - math.exp(-e), rel=1e-4)
