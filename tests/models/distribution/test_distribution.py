"""Distributions against each other, a published library, integration and cited numbers."""

import itertools
import math

import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
import scoringrules
import torch
from distribution_checks import check_affine
from hypothesis import given, settings
from hypothesis import strategies as st

from models.distribution import CensoredLogistic, CensoredNormal, Ensemble, Logistic, Normal

PARAMETRIC = (Normal, Logistic, CensoredNormal, CensoredLogistic)
CENSORED = (CensoredNormal, CensoredLogistic)
PEERS = {
    Normal: scoringrules.crps_normal,
    Logistic: scoringrules.crps_logistic,
    CensoredNormal: lambda y, mu, sigma, lower: scoringrules.crps_cnormal(y, mu, sigma, lower=lower),
    # This library returns NaN for an infinite upper bound; there is no probability beyond 600 σ.
    CensoredLogistic: lambda y, mu, sigma, lower: scoringrules.crps_clogistic(
        y, mu, sigma, lower=lower, upper=mu + 600 * sigma
    ),
}
LAWS = {Normal: scipy.stats.norm, Logistic: scipy.stats.logistic}

numbers = st.floats(-5, 5)
positive = st.floats(0.05, 5)


def make(kind, mu, sigma, lower=-0.5, dtype=torch.float64):
    """Return a distribution of any kind; only bounded ones use `lower`."""
    mu, sigma = torch.as_tensor(mu, dtype=dtype), torch.as_tensor(sigma, dtype=dtype)
    return kind(mu, sigma, torch.as_tensor(lower, dtype=dtype)) if kind in CENSORED else kind(mu, sigma)


def draws(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("kind", PARAMETRIC)
def test_crps_equals_scoringrules(kind):
    mu, y, lower = draws(0, 3, 500) * 3
    sigma = draws(1, 500).exp()
    y = torch.maximum(y, lower) if kind in CENSORED else y
    parameters = (y, mu, sigma, lower) if kind in CENSORED else (y, mu, sigma)
    with np.errstate(invalid="ignore"):
        expected = PEERS[kind](*(p.numpy() for p in parameters))
    known = np.isfinite(expected)  # the library divides by zero where all probability lies on the bound
    assert known.mean() > 0.9
    np.testing.assert_allclose(make(kind, mu, sigma, lower).crps(y)[known], expected[known], rtol=0, atol=1e-12)


@pytest.mark.parametrize("fair", [False, True])
@pytest.mark.parametrize("M", [2, 3, 10, 51])
def test_ensemble_crps_equals_scoringrules_and_double_sum(M, fair):
    members, y = draws(2, M, 40) + 280, draws(3, 40) + 280
    ours = Ensemble(members).crps(y, fair=fair)
    theirs = scoringrules.crps_ensemble(y.numpy(), members.T.numpy(), estimator="fair" if fair else "nrg")
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)
    pairs = (members[:, None] - members[None]).abs().sum((0, 1)) / (2 * M * (M - 1 if fair else M))
    torch.testing.assert_close(ours, (members - y).abs().mean(0) - pairs, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("mu", "sigma", "y", "score"), [(0, 1, 0, 0.2336950), (0, 1, 1, 0.6024414), (2, 0.5, 0, 1.7179124)]
)
def test_crps_of_the_normal_has_the_known_values(mu, sigma, y, score):
    assert float(make(Normal, mu, sigma).crps(torch.tensor(float(y)))) == pytest.approx(score, abs=1e-7)


@pytest.mark.parametrize("y", [-2.0, -0.5, 0.3, 4.0])
@pytest.mark.parametrize("kind", PARAMETRIC)
def test_crps_is_the_integral_of_the_squared_difference_from_the_step(kind, y):
    distribution = make(kind, 0.4, 1.3)

    def integrand(x):
        return (float(distribution.cdf(torch.tensor(x, dtype=torch.float64))) - (x >= y)) ** 2

    # One integral between any two jumps of the integrand, because quadrature needs smooth functions.
    edges = sorted({-80.0, -0.5, y, 80.0})
    expected = sum(
        scipy.integrate.quad(integrand, a, b, points=[np.clip(0.4, a, b)], epsabs=1e-10, limit=200)[0]
        for a, b in itertools.pairwise(edges)
    )
    assert float(distribution.crps(torch.tensor(y, dtype=torch.float64))) == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("M", [2, 5, 10, 50])
def test_fair_crps_does_not_depend_on_the_number_of_members(M):
    """Members and truth iid N(0, 1): fair 1/√π for every M, plain (1 + 1/M)/√π."""
    count = 400_000 // M
    ensemble, truth = Ensemble(draws(4, M, count)), draws(5, count)
    for score, expected in (
        (ensemble.crps(truth, fair=True), 1 / math.sqrt(math.pi)),
        (ensemble.crps(truth), (1 + 1 / M) / math.sqrt(math.pi)),
    ):
        error = float(score.std() / math.sqrt(count))
        assert float(score.mean()) == pytest.approx(expected, abs=4 * error)
        assert error < 0.006


@pytest.mark.parametrize("kind", CENSORED)
@pytest.mark.parametrize("lower", [-40.0, -6.0, -1.0, 0.0, 0.7, 5.0, 12.0])
def test_censored_moments_equal_those_by_integration(kind, lower):
    law = LAWS[{CensoredNormal: Normal, CensoredLogistic: Logistic}[kind]]
    options = {"epsabs": 0, "epsrel": 1e-11, "limit": 200}
    excess = scipy.integrate.quad(law.sf, lower, 60, points=[max(lower, 0)], **options)[0]
    square = scipy.integrate.quad(lambda x: 2 * (x - lower) * law.sf(x), lower, 60, points=[max(lower, 0)], **options)[
        0
    ]
    distribution = make(kind, 0.0, 1.0, lower)
    assert float(distribution.mean) == pytest.approx(lower + excess, rel=1e-9, abs=1e-12)
    assert float(distribution.std) == pytest.approx(math.sqrt(square - excess**2), rel=1e-6)
    in_float32 = float(make(kind, 0.0, 1.0, lower, torch.float32).std)
    assert in_float32 == pytest.approx(math.sqrt(square - excess**2), rel=2e-3, abs=1e-9)


@pytest.mark.parametrize("kind", CENSORED)
def test_a_bound_far_below_has_no_effect_in_float32(kind):
    plain = {CensoredNormal: Normal, CensoredLogistic: Logistic}[kind]
    mu, sigma, y = draws(7, 3, 100).float()
    censored, uncensored = (make(k, mu, sigma.exp(), -1e5, torch.float32) for k in (kind, plain))
    for name in ("mean", "std"):
        torch.testing.assert_close(getattr(censored, name), getattr(uncensored, name))
    for name in ("crps", "cdf", "log_prob"):
        torch.testing.assert_close(getattr(censored, name)(y), getattr(uncensored, name)(y))


@pytest.mark.parametrize("kind", PARAMETRIC)
def test_log_prob_equals_scipy(kind):
    mu, y = draws(8, 2, 200)
    sigma = draws(9, 200).exp()
    law = LAWS[Normal if kind in (Normal, CensoredNormal) else Logistic]
    expected = law.logpdf(y, mu, sigma)
    if kind in CENSORED:
        y = y.clamp(min=-0.5)
        expected = np.where(y == -0.5, law.logcdf(-0.5, mu, sigma), expected)
        assert (y == -0.5).any()
    np.testing.assert_allclose(make(kind, mu, sigma).log_prob(y), expected, rtol=1e-12)


@pytest.mark.parametrize("kind", [Normal, Logistic])
def test_small_probabilities_keep_their_digits_in_float32(kind):
    value = torch.tensor([-12.0, -6.0, -3.0, 1.0])
    expected = LAWS[kind].cdf(value.double().numpy())
    # The relative error of exp(-z²/2) is the rounding error of z²/2 = 72, 4e-6, plus that of the processor.
    np.testing.assert_allclose(make(kind, 0.0, 1.0, dtype=torch.float32).cdf(value), expected, rtol=5e-5)


@pytest.mark.parametrize("kind", PARAMETRIC)
@settings(max_examples=40)
@given(mu=numbers, sigma=positive, lower=numbers, y=numbers, shift=numbers, stretch=positive)
def test_affine_is_consistent(kind, mu, sigma, lower, y, shift, stretch):
    shift, stretch, y = (torch.tensor(v, dtype=torch.float64) for v in (shift, stretch, y))
    before = make(kind, mu, sigma, lower)
    close = {"rtol": 1e-9, "atol": 1e-9}
    after = check_affine(before, y, shift, stretch, torch.tensor([0.1, 0.5, 0.9]), close)
    if kind not in CENSORED:  # rounding decides where y equals the bound
        moved = shift + stretch * y
        torch.testing.assert_close(after.log_prob(moved), before.log_prob(y) - stretch.log(), **close)


@pytest.mark.parametrize("kind", PARAMETRIC)
@settings(max_examples=40)
@given(mu=numbers, sigma=positive, lower=numbers, level=st.floats(0.001, 0.999))
def test_quantile_inverts_cdf(kind, mu, sigma, lower, level):
    distribution = make(kind, mu, sigma, lower)
    value = distribution.quantile(torch.tensor([level], dtype=torch.float64))[0]
    if kind in CENSORED and value <= lower:
        assert value == lower
        assert float(distribution.cdf(value)) >= level - 1e-12
    else:
        assert float(distribution.cdf(value)) == pytest.approx(level, abs=1e-9)


@settings(max_examples=40)
@given(values=st.lists(numbers, min_size=2, max_size=12), y=numbers, seed=st.integers(0, 9))
def test_ensemble_does_not_depend_on_order_and_units(values, y, seed):
    members, y = torch.tensor(values, dtype=torch.float64), torch.tensor(y, dtype=torch.float64)
    shuffled = Ensemble(members[torch.randperm(len(members), generator=torch.Generator().manual_seed(seed))])
    moved = Ensemble(members).affine(torch.tensor(3.0), torch.tensor(2.0))
    for fair in (False, True):
        score = Ensemble(members).crps(y, fair)
        torch.testing.assert_close(shuffled.crps(y, fair), score, rtol=0, atol=1e-12)
        torch.testing.assert_close(moved.crps(3 + 2 * y, fair), 2 * score, rtol=0, atol=1e-12)
        assert score >= -1e-12 or fair
    level = torch.tensor([0.0, 0.25, 0.7, 1.0], dtype=torch.float64)
    np.testing.assert_allclose(shuffled.quantile(level), np.quantile(values, level), atol=1e-12)


def test_ensemble_quantile_of_a_batch_of_global_fields():
    members = torch.arange(3.0)[:, None].expand(3, 2**24 // 3 + 1)
    assert members.numel() > 2**24  # more than torch.quantile accepts
    quantile = Ensemble(members).quantile(torch.tensor([0.25]))
    assert quantile.shape == (1, members.shape[1])
    assert (quantile == 0.5).all()


def test_one_member_has_no_spread_and_no_fair_score():
    ensemble = Ensemble(torch.tensor([[1.0, 2.0]]))
    assert ensemble.std.tolist() == [0, 0]
    assert ensemble.crps(torch.tensor([3.0, 3.0])).tolist() == [2, 1]
    assert ensemble.crps(torch.tensor([3.0, 3.0]), fair=True).isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", PARAMETRIC)
def test_crps_and_its_gradients_stay_finite(kind, dtype):
    """σ from tiny to huge, truths up to 10⁶ away, on both sides of the bound."""
    sigma, y = torch.meshgrid(
        torch.tensor([0, 1e-40, 1e-20, 1e-6, 1, 1e6], dtype=dtype),
        torch.tensor([-1e6, -1, -0.5, 0, 1e-9, 1, 1e6], dtype=dtype),
        indexing="ij",
    )
    sigma, y = sigma.flatten(), y.flatten()
    for mu0 in (-1e6, 0.0, 1e6):
        mu, s = torch.full_like(y, mu0, requires_grad=True), sigma.clone().requires_grad_()
        score = make(kind, mu, s, -0.5, dtype).crps(y)
        for values in (score, *torch.autograd.grad(score.sum(), (mu, s))):
            assert values.isfinite().all()
        crps = make(kind, mu, torch.zeros_like(y), -0.5, dtype).crps(y)
        centre = max(mu0, -0.5) if kind in CENSORED else mu0
        torch.testing.assert_close(crps, (y - centre).abs(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", PARAMETRIC)
def test_log_prob_and_its_gradients_stay_finite(kind):
    z = torch.tensor([-1e6, -30, -1, 0, 1, 30, 1e6])
    for size in (1e-12, 1.0, 1e6):
        for lower in (-1e6, 0.0, 1e6):
            mu, sigma = torch.zeros(7, requires_grad=True), torch.full((7,), size, requires_grad=True)
            score = make(kind, mu, sigma, lower * size, torch.float32).log_prob(z * size)
            for values in (score, *torch.autograd.grad(score.sum(), (mu, sigma))):
                assert values.isfinite().all()


@pytest.mark.parametrize(("kind", "slope"), [(Normal, -1 / math.sqrt(math.pi)), (Logistic, -1.0)])
def test_gradient_by_sigma_keeps_its_digits_far_from_the_truth(kind, slope):
    sigma = torch.tensor(1.0, requires_grad=True)
    make(kind, 0.0, sigma, dtype=torch.float32).crps(torch.tensor(1e6)).backward()
    assert float(sigma.grad) == pytest.approx(slope, rel=1e-6)


@pytest.mark.parametrize("kind", PARAMETRIC)
def test_gradients_equal_finite_differences(kind):
    mu, sigma = draws(10, 20).requires_grad_(), draws(11, 20).exp().requires_grad_()
    y = torch.maximum(draws(12, 20), torch.tensor(-0.5))
    for name in ("crps", "log_prob"):
        assert torch.autograd.gradcheck(lambda m, s, name=name: getattr(make(kind, m, s), name)(y), (mu, sigma))
        assert torch.autograd.gradgradcheck(lambda m, s, name=name: getattr(make(kind, m, s), name)(y), (mu, sigma))


def test_parameters_share_a_shape():
    distribution = Normal(torch.zeros(2, 3), torch.ones(3))
    assert distribution.sigma.shape == (2, 3)
    assert distribution.quantile(torch.tensor([0.1, 0.5, 0.9])).shape == (3, 2, 3)
    assert distribution.sample(4).shape == (4, 2, 3)
    with pytest.raises(RuntimeError):
        Normal(torch.zeros(2), torch.ones(3))
