"""The truncated normal against scipy, scoringrules, integration and the exponential law of its far tail."""

import itertools
import math

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import scoringrules
import torch
from distribution_checks import check_affine
from hypothesis import given, settings
from hypothesis import strategies as st

from models.distribution import Normal, TruncatedNormal

BOUNDS = [-40.0, -3.0, -0.4, 0.0, 1e-6, 0.7, 2.999, 3.001, 8.0, 30.0]


def make(mu, sigma, lower, dtype=torch.float64):
    return TruncatedNormal(*(torch.as_tensor(v, dtype=dtype) for v in (mu, sigma, lower)))


def draws(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_crps_equals_scoringrules():
    mu, y, lower = draws(0, 3, 500) * 2
    sigma = draws(1, 500).exp()
    bound = (lower - mu) / sigma
    known = bound < 3  # further out, the library divides by 1 - Φ, which has no digits left
    assert known.double().mean() > 0.7
    assert (bound[known] > 0).double().mean() > 0.2
    y = torch.maximum(y, lower)
    expected = scoringrules.crps_tnormal(*(v[known].numpy() for v in (y, mu, sigma, lower)), upper=np.inf)
    np.testing.assert_allclose(make(mu, sigma, lower).crps(y)[known], expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("excess", [-0.5, 0.0, 0.02, 0.6, 3.0])
def test_crps_is_the_integral_of_the_squared_difference_from_the_step(bound, excess):
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
    score = make(0.0, 1.0, bound).crps(torch.tensor(y, dtype=torch.float64))
    assert float(score) == pytest.approx(expected, rel=1e-7)
    in_float32 = make(0.0, 1.0, bound, torch.float32).crps(torch.tensor(y))
    assert float(in_float32) == pytest.approx(expected, rel=1e-4, abs=2e-6 * max(1, 1 / (1 + abs(bound))))


@pytest.mark.parametrize("bound", BOUNDS)
def test_moments_probabilities_and_quantiles_equal_scipy(bound):
    law, ours = scipy.stats.truncnorm(bound, np.inf), make(0.0, 1.0, bound)
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


def test_far_above_the_mean_the_excess_is_exponential_in_float32():
    """Its mean is 1/l, and its CRPS against the bound 1/(2l); l from 10⁴ to 10¹⁸."""
    for bound in (1e4, 1e6, 1e12, 1e18):
        ours = make(-bound, 1.0, 0.0, torch.float32)
        assert float(ours.mean) == pytest.approx(1 / bound, rel=1e-5)
        assert float(ours.std) == pytest.approx(1 / bound, rel=1e-5)
        assert float(ours.quantile(torch.tensor([0.5]))) == pytest.approx(math.log(2) / bound, rel=1e-5)
        for e in (0.0, 0.3, 2.0):
            expected = e + 2 * math.exp(-e) - 1.5  # the CRPS of the exponential law
            assert float(ours.crps(torch.tensor(e / bound))) == pytest.approx(expected / bound, rel=1e-4)
            assert float(ours.cdf(torch.tensor(e / bound))) == pytest.approx(1 - math.exp(-e), rel=1e-4)


def test_a_bound_far_below_has_no_effect_in_float32():
    mu, sigma, y = draws(2, 3, 100).float()
    ours, plain = make(mu, sigma.exp(), -1e5, torch.float32), Normal(mu, sigma.exp())
    level = torch.tensor([0.01, 0.5, 0.99])
    for name in ("mean", "std"):
        torch.testing.assert_close(getattr(ours, name), getattr(plain, name))
    for name in ("crps", "cdf", "log_prob"):
        torch.testing.assert_close(getattr(ours, name)(y), getattr(plain, name)(y))
    torch.testing.assert_close(ours.quantile(level), plain.quantile(level), rtol=1e-5, atol=1e-5)


@settings(max_examples=30)
@given(
    mu=st.floats(-5, 5),
    sigma=st.floats(0.05, 5),
    lower=st.floats(-5, 5),
    y=st.floats(-5, 9),
    level=st.floats(0.001, 0.999),
)
def test_affine_is_consistent_and_quantile_inverts_cdf(mu, sigma, lower, y, level):
    before, y = make(mu, sigma, lower), torch.tensor(y, dtype=torch.float64)
    levels = torch.tensor([level], dtype=torch.float64)
    check_affine(before, y, torch.tensor(3.0), torch.tensor(0.5), levels, {"rtol": 1e-7, "atol": 1e-9})
    assert float(before.cdf(before.quantile(levels)[0])) == pytest.approx(level, abs=1e-7)
    assert before.crps(y) >= 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_everything_and_its_gradients_stay_finite(dtype):
    """σ from tiny to huge, truths and bounds up to 10⁶ away."""
    far = [-1e6, -1, -0.5, 0, 1e-9, 1, 1e6]
    values = torch.cartesian_prod(*(torch.tensor(v, dtype=dtype) for v in ([0, 1e-40, 1e-20, 1e-6, 1, 1e6], far, far)))
    sigma, y, mu = values.T
    for lower in (-1e6, -0.5, 1e6):
        m, s = mu.clone().requires_grad_(), sigma.clone().requires_grad_()
        ours = TruncatedNormal(m, s, torch.tensor(lower, dtype=dtype))
        for result in (ours.crps(y), ours.mean, ours.std, ours.quantile(torch.tensor([0.2, 0.8])), ours.cdf(y)):
            assert result.isfinite().all()
            for gradient in torch.autograd.grad(result.sum(), (m, s), retain_graph=True):
                assert gradient.isfinite().all()
        without_doubt = TruncatedNormal(mu, torch.zeros_like(mu), torch.tensor(lower, dtype=dtype)).crps(y)
        torch.testing.assert_close(without_doubt, (y - mu.clamp(min=lower)).abs(), rtol=1e-6, atol=1e-6)


def test_log_prob_and_its_gradients_stay_finite():
    e = torch.tensor([0, 1e-6, 1, 30, 1e6])
    for size in (1e-12, 1.0, 1e6):
        for bound in (-1e6, -1.0, 0.0, 1.0, 1e6):
            mu, sigma = torch.zeros(5, requires_grad=True), torch.full((5,), size, requires_grad=True)
            lower = torch.tensor(bound * size)
            score = TruncatedNormal(mu, sigma, lower).log_prob(lower + e * size)
            for values in (score, *torch.autograd.grad(score.sum(), (mu, sigma))):
                assert values.isfinite().all()


@pytest.mark.parametrize("name", ["crps", "log_prob", "cdf"])
def test_gradients_equal_finite_differences(name):
    sigma = draws(4, 10).exp().requires_grad_()
    mu = (draws(5, 10) * 3).requires_grad_()
    y = draws(6, 10).abs() + 0.01
    assert (mu < -3 * sigma).any()
    assert (mu > 0).any()

    def score(m, s):
        return getattr(TruncatedNormal(m, s, torch.tensor(0.0)), name)(y)

    assert torch.autograd.gradcheck(score, (mu, sigma))
    assert torch.autograd.gradgradcheck(score, (mu, sigma))
