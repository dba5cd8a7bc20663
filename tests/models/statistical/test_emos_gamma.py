"""EMOS with the censored, shifted gamma family: known coefficients, another library's minimum, dry cells."""

import math

import numpy as np
import pytest
import scipy.optimize
import scoringrules
import torch

from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.distribution import CensoredShiftedGamma, Ensemble
from models.statistical.emos import EMOS
from models.statistical.emos_regression import EMOSCases, coefficient_names, predict_emos, raw_coefficients
from models.statistical.regression import Regression

GAMMA = "censored_shifted_gamma"
LAW = {"a": -1.0, "b": 1.2, "gamma": 0.2, "delta": 0.6, "log_shift": math.log(0.5)}
GRID, RAIN = Grid((40.0, 30.0), (0.0, 10.0, 20.0, 30.0)), Task("rain", ["tp"], ["tp"], [24])
ZERO = torch.zeros(1, dtype=torch.float64)


def cases(count=6000, seed=0):
    """Return mean, std and truth (N, 1) of rain that follows `LAW`; a third of the truth is zero."""
    generator = torch.Generator().manual_seed(seed)
    mean = 1.5 * torch.randn(count, 1, generator=generator, dtype=torch.float64).abs()
    std = (0.2 + mean) * torch.exp(0.3 * torch.randn(count, 1, generator=generator, dtype=torch.float64))
    mu, sigma = LAW["a"] + LAW["b"] * mean, torch.exp(LAW["gamma"] + LAW["delta"] * std.log())
    law = CensoredShiftedGamma.of_location(mu, sigma, torch.tensor(math.exp(LAW["log_shift"])), ZERO)
    return mean, std, law.sample(1, generator)[0]


@pytest.mark.parametrize("score", ["crps", "likelihood"])
def test_known_coefficients_are_recovered(score):
    form = Regression(GAMMA, "log", score)
    found = EMOSCases(*cases(), lower=ZERO).fit_cells(form)[:, 0]
    named = dict(zip(coefficient_names(form, seasonal=False), found.tolist(), strict=True))
    tolerances = {"a": 0.1, "b": 0.05, "gamma": 0.06, "delta": 0.06, "log_shift": 0.2}
    for name, tolerance in tolerances.items():
        assert named[name] == pytest.approx(LAW[name], abs=tolerance), name


def test_the_fit_is_the_minimum_that_scipy_finds_with_the_score_of_scoringrules():
    mean, std, truth = cases(600, seed=1)
    m, s, y = (values[:, 0].numpy() for values in (mean, std, truth))
    assert 0.2 < (y == 0).mean() < 0.6

    def score(theta):
        a, b, gamma, delta, shift = theta
        start, sigma = np.exp(shift), np.exp(gamma + delta * np.log(s))
        distance = np.logaddexp(0, (a + b * m + start) / sigma)
        return scoringrules.crps_csg0(y, distance**2, scale=sigma / distance, shift=start).mean()

    theirs = scipy.optimize.minimize(score, list(LAW.values()), method="Nelder-Mead", options={"maxiter": 4000})
    found = EMOSCases(mean, std, truth, lower=ZERO).fit_cells(Regression(GAMMA, "log"))[:5, 0]
    assert score(found.numpy()) == pytest.approx(theirs.fun, rel=1e-5)
    np.testing.assert_allclose(found, theirs.x, atol=0.03)


@pytest.mark.parametrize("scale", ["log", "quadratic"])
def test_coefficients_follow_their_units(scale):
    """In units of 2 mm, with an offset, the forecast is the same."""
    mean, std, truth = cases(500, seed=2)
    form = Regression(GAMMA, scale)
    ours = EMOSCases(mean, std, truth, lower=ZERO).fit_cells(form)
    theirs = EMOSCases(mean / 2 - 3, std / 2, truth / 2 - 3, lower=ZERO - 3).fit_cells(form)
    here = predict_emos(form, ours[:, None], mean, std, lower=ZERO)
    there = predict_emos(form, theirs[:, None], mean / 2 - 3, std / 2, lower=ZERO - 3)
    torch.testing.assert_close(2 * there.crps(truth / 2 - 3), here.crps(truth), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scale", ["log", "quadratic"])
def test_the_raw_coefficients_give_mean_and_spread_of_the_ensemble_far_from_the_bound(scale):
    form, mean, std = Regression(GAMMA, scale), torch.tensor([30.0, 12.0]), torch.tensor([2.0, 0.5])
    forecast = predict_emos(form, raw_coefficients(form, seasonal=False)[:, None], mean, std, lower=torch.zeros(2))
    torch.testing.assert_close(forecast.mean, mean, rtol=1e-4, atol=0)
    torch.testing.assert_close(forecast.std, std, rtol=1e-3, atol=0)


def rain(count=80):
    """Return forecasts on 8 cells. Cell 0 is always dry, cell 1 in the truth; cell 2 has one wet day, cell 3 is wet."""
    mean, std, truth = (v.view(count, 8) for v in cases(8 * count, seed=3))
    generator = torch.Generator().manual_seed(4)
    drawn = torch.randn(count, 9, 8, generator=generator, dtype=torch.float64)
    members = (mean[:, None] + std[:, None] * drawn).clamp(min=0)
    members[:, :, 0] = truth[:, 0] = truth[:, 1] = truth[:, 2] = 0
    truth[7, 2] = 3.0
    truth[:, 3] += 20
    members[:, :, 3] += 20
    shape = count, -1, 1, *GRID.shape
    return Sample(
        members.reshape(shape).float(), torch.ones(count, 1, *GRID.shape, dtype=torch.bool),
        torch.zeros(count, 3, *GRID.shape), truth.reshape(count, 1, *GRID.shape).float(),
        86400 * torch.arange(count), torch.full((count,), 24),
    )  # fmt: skip


@pytest.mark.parametrize("scale", ["log", "quadratic"])
@pytest.mark.parametrize("family", [GAMMA, "censored_logistic", "censored_normal"])
def test_dry_cells_keep_the_raw_ensemble_and_are_counted(family, scale):
    batch = rain()
    model = EMOS(RAIN, GRID, family=family, seasonal=False, scale=scale, lower=0.0)
    model.fit([batch])
    raw = raw_coefficients(model.regression, seasonal=False)
    coefficients = model.coefficients[0, :, 0].flatten(1)
    for cell in (0, 1):
        assert torch.equal(coefficients[:, cell], raw)
    assert (model.report.unfitted, model.report.regressions) == (2, 8)
    forecast = model(batch)
    assert forecast.crps(batch.target).isfinite().all()
    assert forecast.mean.isfinite().all()
    ensemble = Ensemble(batch.ensemble.movedim(1, 0))
    score, reference = (f.crps(batch.target).mean(0).flatten() for f in (forecast, ensemble))
    assert (score[2:] < reference[2:]).all()
