"""Laws of all fitted families: whatever the training cases, scores are finite, not worse than raw, and counted.

The batched minimiser against scipy, one problem at a time.
"""

import math
from itertools import product

import numpy as np
import pytest
import scipy.optimize
import torch
from torch.func import grad, hessian, vmap

from models.corrector_summary import unfitted_notes
from models.distribution import FAMILIES, GAMMA
from models.statistical.boosting import Boosting, fit_boosted, predict_boosted
from models.statistical.cases import FitReport, add_unfitted, count_unfitted
from models.statistical.emos_regression import EMOSCases, predict_emos, raw_coefficients
from models.statistical.newton import Expansion, minimise
from models.statistical.regression import SCALES, SCORES, Regression

KINDS = (
    "wet", "mostly dry", "all dry", "constant truth", "constant ensemble", "hardly any spread", "one outlier",
    "few cases",
)  # fmt: skip
CRPS_SLOPES = [name for name in FAMILIES if "truncated" not in name]
"""Families with formulas for the derivatives of the CRPS."""
ZERO = torch.zeros(len(KINDS), dtype=torch.float64)


def cases():
    """Return mean, std and truth (N, K) of training cases, one cell of each kind, and of later ones as in wet cells."""
    generator = torch.Generator().manual_seed(3)
    signal, error, other = torch.randn(3, 2, 30, len(KINDS), generator=generator, dtype=torch.float64)
    noise = torch.randn(6, 2, 30, len(KINDS), generator=generator, dtype=torch.float64)
    members, truth = 4 + signal + 0.5 * error + 0.5 * noise, 4 + signal + 0.5 * other
    members, truth = members.clamp(min=0), truth.clamp(min=0)
    usual = members[:, 1].mean(0), members[:, 1].std(0), truth[1]
    members, truth = members[:, 0], truth[0]
    cell = {kind: k for k, kind in enumerate(KINDS)}
    for kind in ("mostly dry", "all dry"):
        members[..., cell[kind]] = (members[..., cell[kind]] - 5.3).clamp(min=0)
        truth[:, cell[kind]] = (truth[:, cell[kind]] - 5.3).clamp(min=0) * (kind == "mostly dry")
    truth[:, cell["constant truth"]] = 1.5
    members[..., cell["constant ensemble"]] = 1
    members[..., cell["hardly any spread"]] = 1 + 1e-5 * noise[:, 0, :, cell["hardly any spread"]]
    truth[7, cell["one outlier"]] = 1e4
    truth[9:, cell["few cases"]] = torch.nan
    return (members.mean(0), members.std(0), truth), usual


FORMS = [
    (family, *form)
    for family in (*FAMILIES, GAMMA)
    for form in product(SCALES, SCORES)
    # Families whose derivatives have no formula take many times as long.
    if family in CRPS_SLOPES or form in {("log", "crps"), ("quadratic", "likelihood")}
]


@pytest.mark.parametrize(("family", "scale", "score"), FORMS)
def test_coefficients_cannot_explode(family, scale, score):
    """A cell without a fit has the raw ensemble; a fit is at a minimum, or it is penalised and beats raw in training.

    Later forecasts with usual weather have a scale of the size of the weather, however little training has shown.
    """
    form = Regression(family, scale, score)
    (mean, std, truth), later = cases()
    lower = ZERO if form.bounded else None
    found, penalised = EMOSCases(mean, std, truth, lower=lower).fit(form)
    fitted = ~found[0].isnan()
    assert not (penalised & ~fitted).any()
    raw = raw_coefficients(form, seasonal=False).double()[:, None].expand_as(found)
    used = torch.where(fitted, found, raw)[:, None]
    own, theirs = (predict_emos(form, c, mean, std, (), lower).crps(truth) for c in (used, raw[:, None]))
    known = truth.isfinite()
    assert own[known & fitted].isfinite().all()
    compared = fitted if score == "crps" else penalised
    own, theirs = (values.nanmean(0)[compared] for values in (own, theirs))
    assert (own <= theirs * (1 + 1e-9))[theirs.isfinite()].all()
    greatest = torch.maximum(later[2], truth.nan_to_num()).amax(0)
    excess = predict_emos(form, used, *later[:2], (), lower).crps(later[2]).amax(0) / greatest
    assert float(excess[fitted].max()) < 100
    cells = dict(zip(KINDS, zip(fitted.tolist(), penalised.tolist(), strict=True), strict=True))
    assert cells["all dry"] == cells["constant truth"] == (False, False)  # nothing to learn: the raw ensemble, counted
    if not form.has_shift:
        assert cells["wet"] == (True, False)


@pytest.mark.parametrize("family", FAMILIES)
def test_boosted_coefficients_cannot_explode(family):
    form = Regression(family, "log")
    (mean, std, truth), _ = cases()
    predictors = [mean, (std + 1e-4).log()]
    lower = ZERO if form.bounded else None
    found = fit_boosted(Boosting(form, max_steps=2), predictors, truth, lower=lower)
    forecast = predict_boosted(form, found[:, None], predictors, lower)
    fitted = ~found[0].isnan()
    assert fitted[[0, 1]].all()
    assert forecast.crps(truth)[truth.isfinite() & fitted].isfinite().all()
    scale = truth.nan_to_num().amax(0)
    assert float((forecast.sigma.amax(0) / scale)[fitted].max()) < 1000


def test_a_penalised_fit_has_the_least_penalised_score(monkeypatch):
    """By brute force on the definition: the mean CRPS, and all penalties together with the weight of one case."""
    form, zero = Regression("censored_normal", "log"), torch.zeros(1, dtype=torch.float64)
    generator = torch.Generator().manual_seed(4)
    mean, std = torch.rand(2, 30, 1, generator=generator, dtype=torch.float64) + 0.2
    truth = (mean + std * torch.randn(30, 1, generator=generator, dtype=torch.float64) - 0.5).clamp(min=0)
    answers = iter([torch.tensor([False]), torch.tensor([True])])
    monkeypatch.setattr(Regression, "_is_plausible", lambda *_: next(answers))  # the plain fit counts as extreme
    found, penalised = EMOSCases(mean, std, truth, lower=zero).fit(form)
    assert penalised[0]
    m, s, y = (values[:, 0].double() for values in (mean, std, truth))
    slope = ((m - m.mean()) * y).sum() / ((m - m.mean()) ** 2).sum()
    first = y.mean() + slope * (m - m.mean())
    sigma = ((y - first) ** 2).mean().sqrt()

    def penalised_score(theta):
        forecast = predict_emos(form, torch.cat([theta, found[-2:, 0]])[:, None], m, s, (), zero[0])
        penalty = ((forecast.mu - first) / sigma) ** 2 + (forecast.sigma / sigma).log() ** 2
        return float((forecast.crps(y) + sigma / math.pi**0.5 / len(y) * penalty).mean())

    best = penalised_score(found[:4, 0])
    for direction in torch.eye(4, dtype=torch.float64):
        for step in (-1e-3, 1e-3):
            assert penalised_score(found[:4, 0] + step * direction) > best


def test_notes_count_fits_by_target():
    report = FitReport()
    where = torch.tensor([[True, True, False]])
    report.count(where, where | True, where & torch.tensor([[True, False, False]]), 24, "EMOS", 8, "tp:24h")
    report.count(where | True, where | True, where, 24, "EMOS", 8, "2t")
    counts = count_unfitted([report])
    assert counts == {"cells": 1, "of": 6, "targets": {"tp:24h": 1}, "penalised": {"tp:24h": 1, "2t": 2}}
    unfitted, weak = unfitted_notes(add_unfitted([counts, counts]))
    assert unfitted.startswith("2 of 12 regressions (one for each cell, lead time and target; tp:24h: 2) could not")
    assert weak.startswith("6 of 12 regressions (one for each cell, lead time and target; tp:24h: 2; 2t: 4) are not")
    assert not unfitted_notes(count_unfitted([FitReport()]))


@pytest.mark.parametrize("family", CRPS_SLOPES)
def test_formulas_of_derivatives_equal_automatic_differentiation(family):
    generator = torch.Generator().manual_seed(1)
    mu, log_sigma, truth = torch.randn(3, 200, generator=generator, dtype=torch.float64)
    lower = torch.tensor(-0.5, dtype=torch.float64)
    numbers = [mu.requires_grad_(), log_sigma.requires_grad_()]
    form = Regression(family, scale="log")
    law = form.distribution(*numbers, lower if form.bounded else None)
    truth = truth.maximum(lower) if form.bounded else truth
    first = torch.autograd.grad(law.crps(truth).sum(), numbers, create_graph=True)
    second = [torch.autograd.grad(slope.sum(), numbers, retain_graph=True) for slope in first]
    expected = (*first, *second[0], second[1][1])
    torch.testing.assert_close(tuple(law.crps_slopes(truth)), expected, rtol=1e-9, atol=1e-12)


def expander(objective, *data):
    """Return `expand` for an objective of one problem's parameters and its rows of the data."""
    axes = (0,) * (1 + len(data))

    def expand(parameters, problems):
        rows = [tensor[problems] for tensor in data]
        return Expansion(*(vmap(f(objective), axes)(parameters, *rows) for f in (lambda o: o, grad, hessian)))

    return expand


def rosenbrock(x, a):
    return 1 + ((1 - x[:-1]) ** 2 + a * (x[1:] - x[:-1] ** 2) ** 2).sum()


def logistic_loss(x, features, labels):
    return torch.nn.functional.softplus(-labels * (features @ x)).mean() + 0.01 * x.square().sum()


def test_logistic_regressions_converge_to_those_of_scipy():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(30, 50, 6, generator=generator, dtype=torch.float64)
    labels = torch.sign(torch.randn(30, 50, generator=generator, dtype=torch.float64))
    found = minimise(expander(logistic_loss, features, labels), torch.zeros(30, 6, dtype=torch.float64))
    assert found.converged.all()
    for k in range(10):

        def peer_loss(x, k=k):
            margin = -labels[k].numpy() * (features[k].numpy() @ x)
            return np.logaddexp(0, margin).mean() + 0.01 * (x**2).sum()

        peer = scipy.optimize.minimize(peer_loss, np.zeros(6), tol=1e-10)
        np.testing.assert_allclose(found.parameters[k], peer.x, atol=1e-4)
        assert float(found.value[k]) <= peer.fun + 1e-12


def test_curved_valleys_are_followed_from_every_initial_value():
    start = torch.randn(40, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    steep = torch.linspace(1, 30, 40, dtype=torch.float64)
    found = minimise(expander(rosenbrock, steep), start)
    assert found.converged.all()
    torch.testing.assert_close(found.parameters, torch.ones_like(start), rtol=0, atol=1e-4)


def test_problems_are_independent():
    start = torch.randn(8, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    steep = torch.linspace(1, 100, 8, dtype=torch.float64)
    together = minimise(expander(rosenbrock, steep), start)
    for k in (0, 3, 7):
        alone = minimise(expander(rosenbrock, steep[k : k + 1]), start[k : k + 1])
        torch.testing.assert_close(alone.parameters[0], together.parameters[k], rtol=0, atol=1e-12)


def test_steps_lead_away_from_a_saddle_and_a_maximum():
    def objective(x):
        return 2 + (x[0] ** 2 - 1) ** 2 + (x[1] - 1) ** 2

    start = torch.tensor([[1e-6, 1.0], [-1e-3, 5.0]], dtype=torch.float64)
    found = minimise(expander(objective), start)
    assert found.converged.all()
    torch.testing.assert_close(found.parameters, torch.tensor([[1.0, 1], [-1, 1]], dtype=torch.float64))


def test_units_and_parameters_without_influence_do_not_matter():
    def objective(x, unit):
        return (1e-9 * x[0] / unit - 3).cosh() + (x[1] * unit - 2) ** 2 + 0 * x[2]

    unit = torch.tensor([1.0, 1e6], dtype=torch.float64)
    found = minimise(expander(objective, unit), torch.tensor([[0, 0, 7], [0, 0, 7.0]], dtype=torch.float64))
    assert found.converged.all()
    expected = torch.stack([3e9 * unit, 2 / unit, torch.full_like(unit, 7)], dim=1)
    torch.testing.assert_close(found.parameters, expected, rtol=1e-4, atol=0)


def test_problems_with_nan_or_without_minimum_do_not_converge_alone():
    start = torch.tensor([[0.5, 0.5], [float("nan"), 0.0]], dtype=torch.float64)
    found = minimise(expander(rosenbrock, torch.ones(2, dtype=torch.float64)), start)
    assert found.converged.tolist() == [True, False]
    torch.testing.assert_close(found.parameters[0], torch.ones(2, dtype=torch.float64), rtol=0, atol=1e-5)
    found = minimise(expander(lambda x: torch.exp(-x[0])), torch.zeros(1, 1, dtype=torch.float64), steps=20)
    assert not found.converged[0]
    assert found.value[0] < 1e-3
