"""Threshold-weighted, energy and almost fair scores, against brute force and a published library."""

import itertools
import math

import numpy as np
import pytest
import scipy.integrate
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
    energy_score,
    threshold_weighted_crps,
)

numbers = st.floats(-5, 5)


def draws(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def number(value):
    return torch.tensor(value, dtype=torch.float64)


@pytest.mark.parametrize("threshold", [-1.5, 0.0, 0.8])
def test_threshold_weighted_crps_of_an_ensemble_equals_scoringrules(threshold):
    members, y = draws(0, 10, 40), draws(1, 40)
    for fair, estimator in ((False, "nrg"), (True, "fair")):
        ours = threshold_weighted_crps(Ensemble(members), y, number(threshold), fair)
        theirs = scoringrules.twcrps_ensemble(y.numpy(), members.T.numpy(), a=threshold, estimator=estimator)
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("y", [-2.0, 0.3, 4.0])
@pytest.mark.parametrize("threshold", [-3.0, 0.3, 1.5])
@pytest.mark.parametrize("kind", [Normal, Logistic, CensoredNormal, CensoredLogistic])
def test_threshold_weighted_crps_is_the_integral_from_the_threshold_on(kind, threshold, y):
    bound = () if kind in (Normal, Logistic) else (number(-1.0),)
    distribution = kind(number(0.4), number(1.3), *bound)

    def integrand(x):
        return (float(distribution.cdf(number(x))) - (x >= y)) ** 2

    edges = sorted({threshold, *(x for x in (-1.0, 0.4, y) if x > threshold), 70.0})
    expected = sum(
        scipy.integrate.quad(integrand, a, b, epsabs=1e-10, limit=200)[0] for a, b in itertools.pairwise(edges)
    )
    ours = threshold_weighted_crps(distribution, number(y), number(threshold))
    assert float(ours) == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("kind", [Normal, Logistic])
def test_a_threshold_far_below_has_no_effect(kind):
    distribution, y = kind(draws(2, 50).float(), draws(3, 50).exp().float()), draws(4, 50).float()
    torch.testing.assert_close(threshold_weighted_crps(distribution, y, torch.tensor(-1e5)), distribution.crps(y))


@pytest.mark.parametrize("alpha", [0.0, 0.5, 0.95, 1.0])
def test_the_almost_fair_score_is_the_mean_of_both(alpha):
    ensemble, y = Ensemble(draws(5, 7, 30)), draws(6, 30)
    expected = alpha * ensemble.crps(y, fair=True) + (1 - alpha) * ensemble.crps(y)
    torch.testing.assert_close(ensemble.crps(y, fair=alpha), expected, rtol=0, atol=1e-12)


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
    assert energy_score(members, y, dim=0).item() == 5
    assert math.isnan(energy_score(members, y, dim=0, fair=True).item())


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
