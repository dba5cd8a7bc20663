"""The truncated normal against scipy, scoringrules, integration and the exponential law of its far tail."""

import itertools
import math

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import scoringrules
import torch

from models.distribution import TruncatedNormal

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
