"""Laws of all fitted families: whatever the training cases, scores are finite, not worse than raw, and counted."""

import math
from itertools import product

import pytest
import torch

from models.corrector_summary import unfitted_notes
from models.distribution import FAMILIES, GAMMA
from models.statistical.boosting import Boosting, fit_boosted, predict_boosted
from models.statistical.cases import FitReport, add_unfitted, count_unfitted
from models.statistical.emos_regression import EMOSCases, predict_emos, raw_coefficients
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
