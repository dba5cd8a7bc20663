"""Normal, logistic and censored distributions, ensembles and energy scores, against published libraries."""

import math

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import scoringrules
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.distribution import (
    CensoredLogistic,
    CensoredNormal,
    Ensemble,
    Logistic,
    Normal,
    TruncatedNormal,
    energy_score,
    threshold_weighted_crps,
)

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


numbers = st.floats(-5, 5)


def number(value):
    return torch.tensor(value, dtype=torch.float64)


@pytest.mark.parametrize("threshold", [-1.5, 0.0, 0.8])
def test_threshold_weighted_crps_of_an_ensemble_equals_scoringrules(threshold):
    members, y = draws(0, 10, 40), draws(1, 40)
    for fair, estimator in ((False, "nrg"), (True, "fair")):
        ours = threshold_weighted_crps(Ensemble(members), y, number(threshold), fair)
        theirs = scoringrules.twcrps_ensemble(y.numpy(), members.T.numpy(), a=threshold, estimator=estimator)
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("fair", [False, True])
@pytest.mark.parametrize("M", [2, 3, 10])
def test_energy_score_equals_scoringrules(M, fair):
    members, y = draws(7, M, 6, 3, 5), draws(8, 6, 3, 5)
    ours = energy_score(members, y, dim=1, fair=fair)
    assert ours.shape == (6, 5)
    theirs = scoringrules.es_ensemble(
        y.movedim(1, -1).numpy(),
        members.movedim(2, -1).movedim(0, -2).numpy(),
        estimator="fair" if fair else "nrg",
    )
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)


@settings(max_examples=40)
@given(values=st.lists(numbers, min_size=2, max_size=9), y=numbers, alpha=st.floats(0, 1))
def test_energy_score_of_one_value_is_the_crps(values, y, alpha):
    members, truth = number(values)[:, None], number([y])
    torch.testing.assert_close(
        energy_score(members, truth, dim=-1, fair=alpha), Ensemble(members).crps(truth, alpha)[0], rtol=0, atol=1e-12
    )


def test_energy_score_of_one_member_is_its_distance():
    members, y = torch.tensor([[3.0, 4.0]]), torch.zeros(2)
    assert energy_score(members, y, dim=0).item() == energy_score(members, y, dim=0, fair=True).item() == 5


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
