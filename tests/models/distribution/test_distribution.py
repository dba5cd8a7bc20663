"""Distributions, ensembles and energy scores, against published libraries, closed forms and integrals."""

import itertools
import math

import mpmath
import numpy as np
import pytest
import scipy.integrate
import scipy.interpolate
import scipy.special
import scipy.stats
import scoringrules
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.distribution import (
    Bernstein,
    CensoredLogistic,
    CensoredNormal,
    CensoredShiftedGamma,
    Empirical,
    Ensemble,
    Logistic,
    Normal,
    PowerTransformed,
    Quantiles,
    TruncatedNormal,
    empirical_quantiles,
    energy_score,
    from_power,
    power_transformed,
    to_power,
)
from models.distribution.truncated import _excess
from models.members.options import QUANTILE_LEVELS

PARAMETRIC = (Normal, Logistic, CensoredNormal, CensoredLogistic)
CENSORED = {CensoredNormal: Normal, CensoredLogistic: Logistic}
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
LAWS |= {kind: LAWS[plain] for kind, plain in CENSORED.items()}


def make(kind, mu, sigma, lower=-0.5, dtype=torch.float64):
    """Return a distribution of any kind; only bounded ones use `lower`."""
    mu, sigma = torch.as_tensor(mu, dtype=dtype), torch.as_tensor(sigma, dtype=dtype)
    return kind(mu, sigma) if kind in (Normal, Logistic) else kind(mu, sigma, torch.as_tensor(lower, dtype=dtype))


def draws(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("kind", PARAMETRIC)
def test_crps_and_density_equal_those_of_published_libraries(kind):
    mu, y, lower = draws(0, 3, 500) * 3
    sigma = draws(1, 500).exp()
    y = torch.maximum(y, lower) if kind in CENSORED else y
    bound = (lower,) if kind in CENSORED else ()
    with np.errstate(invalid="ignore"):
        expected = PEERS[kind](*(p.numpy() for p in (y, mu, sigma, *bound)))
    known = np.isfinite(expected)  # the library divides by zero where all probability lies on the bound
    assert known.mean() > 0.9
    ours, law = make(kind, mu, sigma, lower), LAWS[kind](mu, sigma)
    np.testing.assert_allclose(ours.crps(y)[known], expected[known], rtol=0, atol=1e-12)
    dry = (y == lower).numpy()
    assert dry.any() == (kind in CENSORED)
    np.testing.assert_allclose(ours.log_prob(y), np.where(dry, law.logcdf(y), law.logpdf(y)), rtol=1e-12)


@pytest.mark.parametrize("fair", [False, True])
@pytest.mark.parametrize("M", [2, 3, 51])
def test_crps_and_quantiles_of_an_ensemble_equal_those_of_published_libraries(M, fair):
    members, y = draws(2, M, 40) + 280, draws(3, 40) + 280
    theirs = scoringrules.crps_ensemble(y.numpy(), members.T.numpy(), estimator="fair" if fair else "nrg")
    np.testing.assert_allclose(Ensemble(members).crps(y, fair=fair), theirs, rtol=0, atol=1e-12)
    levels = torch.tensor([0.0, 0.25, 0.7, 1.0], dtype=torch.float64)
    np.testing.assert_allclose(Ensemble(members).quantile(levels), np.quantile(members, levels, axis=0), atol=1e-12)


@pytest.mark.parametrize("kind", [*CENSORED, TruncatedNormal])
def test_a_bound_far_below_has_no_effect_in_float32(kind):
    mu, sigma, y = draws(7, 3, 100).float()
    bounded, plain = (make(each, mu, sigma.exp(), -1e5, torch.float32) for each in (kind, CENSORED.get(kind, Normal)))
    level = torch.tensor([0.01, 0.5, 0.99])
    torch.testing.assert_close(bounded.quantile(level), plain.quantile(level), rtol=1e-5, atol=1e-5)
    for name in ("mean", "std"):
        torch.testing.assert_close(getattr(bounded, name), getattr(plain, name))
    for name in ("crps", "cdf", "log_prob"):
        torch.testing.assert_close(getattr(bounded, name)(y), getattr(plain, name)(y))


@pytest.mark.parametrize("kind", [Normal, Logistic])
def test_small_probabilities_keep_their_digits_in_float32(kind):
    value = torch.tensor([-12.0, -6.0, -3.0, 1.0])
    expected = LAWS[kind].cdf(value.double().numpy())
    # The relative error of exp(-z²/2) is the rounding error of z²/2 = 72, 4e-6, plus that of the processor.
    np.testing.assert_allclose(make(kind, 0.0, 1.0, dtype=torch.float32).cdf(value), expected, rtol=5e-5)


@pytest.mark.parametrize(("kind", "slope"), [(Normal, -1 / math.sqrt(math.pi)), (Logistic, -1.0)])
def test_gradient_by_sigma_keeps_its_digits_far_from_the_truth(kind, slope):
    sigma = torch.tensor(1.0, requires_grad=True)
    make(kind, 0.0, sigma, dtype=torch.float32).crps(torch.tensor(1e6)).backward()
    assert float(sigma.grad) == pytest.approx(slope, rel=1e-6)


def test_ensemble_quantile_of_a_batch_of_global_fields():
    members = torch.arange(3.0)[:, None].expand(3, 2**24 // 3 + 1)
    assert members.numel() > 2**24  # more than torch.quantile accepts
    quantile = Ensemble(members).quantile(torch.tensor([0.25]))
    assert quantile.shape == (1, members.shape[1])
    assert (quantile == 0.5).all()


def test_one_member_has_no_spread_and_its_error_as_score():
    ensemble = Ensemble(torch.tensor([[1.0, 2.0]]))
    assert ensemble.std.tolist() == [0, 0]
    for fair in (False, True, 0.5):
        assert ensemble.crps(torch.tensor([3.0, 3.0]), fair).tolist() == [2, 1]
    members, y = torch.tensor([[3.0, 4.0]]), torch.zeros(2)
    assert energy_score(members, y, dim=0).item() == energy_score(members, y, dim=0, fair=True).item() == 5


numbers = st.floats(-5, 5)


def number(value):
    return torch.as_tensor(value, dtype=torch.float64)


@pytest.mark.parametrize("fair", [False, True])
@pytest.mark.parametrize("M", [2, 3, 10])
def test_energy_score_equals_scoringrules(M, fair):
    members, y = draws(7, M, 6, 3, 5), draws(8, 6, 3, 5)
    ours = energy_score(members, y, dim=1, fair=fair)
    assert ours.shape == (6, 5)
    theirs = scoringrules.es_ensemble(
        y.movedim(1, -1).numpy(), members.movedim(2, -1).movedim(0, -2).numpy(), estimator="fair" if fair else "nrg"
    )
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)


@settings(max_examples=40)
@given(values=st.lists(numbers, min_size=2, max_size=9), y=numbers, alpha=st.floats(0, 1))
def test_energy_score_of_one_value_is_the_crps(values, y, alpha):
    members, truth = number(values)[:, None], number([y])
    torch.testing.assert_close(
        energy_score(members, truth, dim=-1, fair=alpha), Ensemble(members).crps(truth, alpha)[0], rtol=0, atol=1e-12
    )


def test_energy_score_has_gradients_where_members_are_equal():
    members = draws(12, 5, 4, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: energy_score(x, draws(13, 4, 3), dim=1, fair=0.95), (members,))
    equal = torch.zeros(5, 4, 3, requires_grad=True)
    (gradient,) = torch.autograd.grad(energy_score(equal, torch.zeros(4, 3), dim=1).sum(), equal)
    assert (gradient == 0).all()


def test_energy_score_needs_all_joint_values():
    y = torch.zeros(2, 3)
    y[0, 1] = torch.nan
    assert energy_score(torch.ones(4, 2, 3), y, dim=1).isnan().tolist() == [True, False]


SHAPES = [1e-6, 0.03, 0.4, 1.0, 2.7, 19.99, 20.01, 300.0, 1e5]


def gamma(shape, scale, shift, lower=0.0, dtype=torch.float64):
    return CensoredShiftedGamma(*(torch.as_tensor(v, dtype=dtype) for v in (shape, scale, shift, lower)))


@pytest.mark.parametrize("sigma", [0.01, 1.0, 40.0])
def test_a_gamma_whose_support_starts_far_away_is_a_censored_normal(sigma):
    mu, sigma = sigma * torch.tensor([-1.0, 0.5, 4.0]).double(), torch.full((3,), sigma).double()
    found = CensoredShiftedGamma.of_location(mu, sigma, 1e6 * sigma, 0 * mu)
    expected = CensoredNormal(mu, sigma, 0 * mu)
    np.testing.assert_allclose(found.mean / sigma, expected.mean / sigma, atol=0.01)
    np.testing.assert_allclose(found.std / sigma, expected.std / sigma, atol=0.01)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gamma_numbers_and_their_gradients_stay_finite(dtype):
    """Shapes and scales from none to huge, truths and bounds up to 10⁶ standard deviations away."""
    far, sizes, shapes = [-1e6, 0.0, 1.0, 1e6], [0.0, 1e-20, 1.0, 1e6], [0.0, 1e-12, 1.0, 1e7, 1e14]
    shape, scale, y, shift = torch.cartesian_prod(*(torch.tensor(v, dtype=dtype) for v in (shapes, sizes, far, far))).T
    for lower in (-1e6, 0.0, 1e6):
        some = [values.clone().requires_grad_() for values in (shape, scale, shift)]
        ours = gamma(*some, lower, dtype)
        for result in (ours.crps(y), ours.mean, ours.std, ours.quantile(torch.tensor([0.2, 0.8])), ours.cdf(y)):
            assert result.isfinite().all()
            gradients = torch.autograd.grad(result.sum(), some, retain_graph=True, allow_unused=True)
            assert all(each is None or each.isfinite().all() for each in gradients)


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


CLOSE = {"rtol": 1e-9, "atol": 1e-12}
LEVELS = torch.tensor([0.05, 0.25, 0.4, 0.9], dtype=torch.float64)


TRUTH = torch.tensor([-1.0, 0.2, 3.0], dtype=torch.float64)


def values(K=7, seed=0):
    drawn = torch.randn(K, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return drawn.sort(0).values


def test_scores_and_quantiles_are_those_of_the_values():
    past = values()
    for fair in (False, True):
        torch.testing.assert_close(Empirical(past).crps(TRUTH, fair), Ensemble(past).crps(TRUTH))
    np.testing.assert_allclose(Empirical(past).std, past.numpy().std(0))
    past, levels = values(), torch.tensor([0.0, 0.05, 0.5, 0.93, 1.0])
    expected = np.quantile(past.numpy(), levels, axis=0, method="hazen")
    np.testing.assert_allclose(Empirical(past).quantile(levels), expected, rtol=1e-6)


def test_the_distribution_function_inverts_quantiles_and_has_mass_where_values_are_equal():
    """Between two values that are repeated, there is no probability."""
    past = Empirical(torch.tensor([[0.0], [0.0], [0.0], [2.0], [5.0]], dtype=torch.float64))
    levels = torch.tensor([0.6, 0.61, 0.65, 0.7, 0.8, 0.85], dtype=torch.float64)
    for level in levels:
        assert float(past.cdf(past.quantile(level[None])[0])) == pytest.approx(float(level))
    at = {-0.1: 0.0, 0.0: 0.6, 1e-12: 0.6, 1.0: 0.65, 2.0: 0.7, 4.999999: 0.9, 5.0: 1.0, 6.0: 1.0}
    for value, level in at.items():
        assert float(past.cdf(torch.tensor([value], dtype=torch.float64))) == pytest.approx(level, abs=1e-6)
    past = Empirical(torch.tensor([[0.0], [0.0], [3.0], [3.0], [4.0]], dtype=torch.float64))
    found = past.quantile(torch.tensor([0.0, 0.39, 0.41, 0.79, 0.85, 1.0], dtype=torch.float64))[:, 0]
    assert found.tolist() == pytest.approx([0, 0, 3, 3, 3.5, 4])
    for value, level in {0.0: 0.4, 2.0: 0.4, 3.0: 0.8, 3.5: 0.85}.items():
        assert float(past.cdf(torch.tensor([value], dtype=torch.float64))) == pytest.approx(level)


@pytest.mark.parametrize("count", [1, 4, 25, 60])
def test_quantiles_of_cases_leave_out_missing_ones(count):
    cases = torch.randn(30, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    cases[5:9, 1], cases[1:, 2], cases[:, 3] = torch.nan, torch.nan, torch.nan
    found = empirical_quantiles(cases, count)
    levels = (np.arange(count) + 0.5) / count
    for column in range(3):
        known = cases[:, column][cases[:, column].isfinite()].numpy()
        np.testing.assert_allclose(found[:, column], np.quantile(known, levels, method="hazen"), atol=1e-12)
    assert found[:, 3].isnan().all()
    assert torch.equal(empirical_quantiles(cases[:, :1], 30), cases[:, :1].sort(0).values)


def test_at_the_levels_of_hazen_all_numbers_are_those_of_an_ensemble():
    levels = QUANTILE_LEVELS["hazen"](torch.arange(1, 8, dtype=torch.float64), 7)
    found, members = Quantiles(values(7), levels), Ensemble(values(7))
    for fair in (False, True):
        torch.testing.assert_close(found.crps(TRUTH, fair), members.crps(TRUTH), **CLOSE)
    torch.testing.assert_close(found.mean, members.mean, **CLOSE)
    torch.testing.assert_close(found.std, members.std, **CLOSE)


def test_scores_and_moments_equal_weighted_sums_also_of_crossing_quantiles():
    p = np.array([0.15, 0.175, 0.325, 0.35])  # ends half-way: 0, .15, .325, .65, 1
    x, found = values(4).numpy(), Quantiles(values(4), LEVELS)
    np.testing.assert_allclose(found.probabilities, p, rtol=1e-12)
    pairs = np.einsum("i,j,ijs->s", p, p, abs(x[:, None] - x[None]))
    np.testing.assert_allclose(found.crps(TRUTH), p @ abs(x - TRUTH.numpy()) - pairs / 2, rtol=1e-12)
    np.testing.assert_allclose(found.mean, p @ x, rtol=1e-12)
    np.testing.assert_allclose(found.std, np.sqrt(p @ (x - p @ x) ** 2 / (1 - p @ p)), rtol=1e-12)
    torch.testing.assert_close(Quantiles(values(4).flip(0), LEVELS).crps(TRUTH), found.crps(TRUTH))


def test_quantiles_and_cdf_interpolate_between_the_levels():
    x = values(4)
    found = Quantiles(x, LEVELS)
    wanted = torch.tensor([0.01, 0.05, 0.3, 0.65, 0.9, 0.99], dtype=torch.float64)
    for cell in range(3):
        expected = np.interp(wanted, LEVELS, x[:, cell])
        np.testing.assert_allclose(found.quantile(wanted)[:, cell], expected, rtol=1e-12)
    inside = wanted[1:4]
    for level in inside:
        torch.testing.assert_close(found.cdf(found.quantile(level[None])[0]), level.expand(3), **CLOSE)
    assert found.cdf(x[0] - 1e-9).tolist() == [0, 0, 0]
    assert found.cdf(x[-1]).tolist() == [1, 1, 1]


def ascending(seed, *shape):
    steps = torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) ** 2 + 0.01
    return steps.cumsum(0) - 2


def polynomial(coefficients):
    return scipy.interpolate.BPoly(np.asarray(coefficients, dtype=float)[:, None], [0, 1])


@pytest.mark.parametrize("degree", [1, 2, 12])
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


def test_a_distribution_far_from_zero_keeps_its_digits_in_float32():
    coefficients, y = ascending(5, 13) + 280, torch.tensor(279.0)
    exact = Bernstein(coefficients.float().double()).crps(y.double())
    assert float(Bernstein(coefficients.float()).crps(y)) == pytest.approx(float(exact), rel=1e-5)


def test_smaller_coefficients_are_raised_and_one_alone_is_an_error():
    assert Bernstein(torch.tensor([0.0, 2.0, 1.0, 3.0])).coefficients.tolist() == [0, 2, 2, 3]
    with pytest.raises(ValueError, match="needs at least two coefficients"):
        Bernstein(torch.zeros(1, 3))


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
