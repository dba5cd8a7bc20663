"""EMOS on arrays: against scipy, shared and partly shared coefficients, trailing windows, and the gamma family."""

import math

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import scoringrules
import torch

from models.distribution import CensoredShiftedGamma
from models.statistical.emos_regression import EMOSCases, coefficient_names, predict_emos, raw_coefficients
from models.statistical.predictors import day_harmonics
from models.statistical.regression import Regression

FAMILIES = ("normal", "logistic", "censored_normal", "censored_logistic", "truncated_normal")


def peer_crps(family, y, mu, sigma):
    """Return the CRPS by a published library."""
    if family == "normal":
        return scoringrules.crps_normal(y, mu, sigma)
    if family == "logistic":
        return scoringrules.crps_logistic(y, mu, sigma)
    if family == "truncated_normal":
        with np.errstate(all="ignore"):  # the library gives NaN far from the minimum
            return scoringrules.crps_tnormal(y, mu, sigma, lower=0.0, upper=np.inf)
    if family == "censored_normal":
        return scoringrules.crps_cnormal(y, mu, sigma, lower=0.0)
    return scoringrules.crps_clogistic(y, mu, sigma, lower=0.0, upper=mu + 300 * sigma)


def peer_likelihood(family, y, mu, sigma):
    if family == "truncated_normal":
        return -scipy.stats.truncnorm.logpdf(y, -mu / sigma, np.inf, mu, sigma)
    law = scipy.stats.norm if "normal" in family else scipy.stats.logistic
    density = law.logpdf(y, mu, sigma)
    return -np.where(y == 0, law.logcdf(0, mu, sigma), density) if "censored" in family else -density


PEERS = {"crps": peer_crps, "likelihood": peer_likelihood}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("scale", "score"), [("quadratic", "crps"), ("log", "crps"), ("log", "likelihood")])
def test_coefficients_equal_those_of_scipy(family, scale, score):
    generator = torch.Generator().manual_seed(1)
    mean, noise = torch.randn(2, 250, 3, generator=generator, dtype=torch.float64)
    std = torch.rand(250, 3, generator=generator, dtype=torch.float64) + 0.2
    bounded = Regression(family).bounded
    lower = torch.zeros(3, dtype=torch.float64) if bounded else None
    truth = 0.4 + 0.9 * mean + 1.3 * std * noise
    truth = truth.abs() if family == "truncated_normal" else truth.clamp(min=0 if bounded else -torch.inf)
    form = Regression(family, scale, score)
    found = EMOSCases(mean, std, truth, lower=lower).fit_cells(form)

    for k in range(2):
        m, s, y = (v[:, k].numpy() for v in (mean, std, truth))

        def peer(x, m=m, s=s, y=y):
            mu = x[0] + x[1] * m
            sigma = np.hypot(x[2], x[3] * s) if scale == "quadratic" else np.exp(x[2] + x[3] * np.log(s))
            return PEERS[score](family, y, mu, sigma).mean()

        start = [0, 1, 0.5, 0.5]
        best = min(
            (scipy.optimize.minimize(peer, start, method=m, tol=1e-10) for m in ("BFGS", "Nelder-Mead")),
            key=lambda r: r.fun,
        )
        ours = found[:4, k].numpy()
        assert peer(ours) <= best.fun + 1e-10
        np.testing.assert_allclose(
            ours, np.r_[best.x[:2], np.abs(best.x[2:]) if scale == "quadratic" else best.x[2:]], atol=2e-3
        )


def test_shared_coefficients_are_those_of_the_pooled_cells():
    generator = torch.Generator().manual_seed(10)
    mean, noise = torch.randn(2, 90, 5, generator=generator, dtype=torch.float64)
    std = torch.rand(90, 5, generator=generator, dtype=torch.float64) + 0.2
    truth = 1 + mean + std * noise
    terms = list(day_harmonics(torch.arange(1, 91)).T[:, :, None])
    form = Regression()
    shared = EMOSCases(mean, std, truth, terms).fit_shared(form)
    repeated = [term.expand(90, 5).reshape(-1, 1) for term in terms]
    pooled = EMOSCases(*(v.reshape(-1, 1) for v in (mean, std, truth)), repeated).fit_cells(form)
    torch.testing.assert_close(shared, pooled, rtol=0, atol=1e-6)
    # A cell of weight two counts as two cells.
    double = EMOSCases(mean, std, truth, weight=torch.tensor([2.0, 1, 1, 0, 1])).fit_shared(form)
    index = [0, 0, 1, 2, 4]
    twice = EMOSCases(mean[:, index], std[:, index], truth[:, index]).fit_shared(form)
    torch.testing.assert_close(double, twice, rtol=0, atol=1e-6)


def cells_that_differ(by, cases, seed):
    """Return mean, std and truth of 40 cells with offsets of standard deviation `by`, for training and test."""
    generator = torch.Generator().manual_seed(seed)
    mean, noise = torch.randn(2, 2 * cases, 40, generator=generator, dtype=torch.float64)
    std = torch.rand(2 * cases, 40, generator=generator, dtype=torch.float64) + 0.5
    offset = by * torch.randn(40, generator=generator, dtype=torch.float64)
    return [values.split(cases) for values in (mean, std, offset + mean + std * noise)]


@pytest.mark.parametrize("scale", ["quadratic", "log"])
def test_partly_shared_coefficients_lie_where_held_out_scores_are_best(scale):
    form = Regression(scale=scale)
    for by, cases, kept in ((0, 12, True), (5, 100, False)):
        (m, _), (s, _), (y, _) = cells_that_differ(by, cases, seed=20)
        data = EMOSCases(m, s, y)
        expected = data.fit_shared(form).expand(-1, 40) if kept else data.fit_cells(form)
        torch.testing.assert_close(data.fit_partly_shared(form), expected, rtol=0, atol=1e-12)
    # If cells differ a little and cases are few, coefficients in between have the best score of test cases.
    m, s, y = cells_that_differ(0.4, 16, seed=21)
    data = EMOSCases(m[0], s[0], y[0])
    fits = data.fit_partly_shared(form), data.fit_shared(form), data.fit_cells(form)
    partly, *ends = (float(predict_emos(form, c[:, None], m[1], s[1]).crps(y[1]).mean()) for c in fits)
    assert partly < min(ends)


def test_a_cell_with_few_cases_gets_the_shared_coefficients():
    (m, _), (s, _), (y, _) = cells_that_differ(5, 100, seed=22)
    y[5:, 7] = torch.nan
    found = EMOSCases(m, s, y).fit_partly_shared(Regression())
    assert EMOSCases(m, s, y).fit_cells(Regression())[:, 7].isnan().all()
    torch.testing.assert_close(found[:, 7:8], EMOSCases(m, s, y).fit_shared(Regression()))


@pytest.mark.parametrize("family", ["normal", "censored_logistic"])
def test_trailing_fits_use_the_cases_before(family):
    g = torch.Generator().manual_seed(4)
    mean, noise = torch.randn(2, 70, 2, generator=g, dtype=torch.float64)
    std = torch.rand(70, 1, generator=g, dtype=torch.float64) + 0.5
    truth = mean + std * noise
    truth[33, 1] = torch.nan
    form = Regression(family)
    lower = torch.tensor([-0.5, -1.0]).double() if form.bounded else None
    found = EMOSCases(mean, std, truth, lower=lower).fit_trailing(form, 30, delay=2)
    assert found.shape == (4, 70, 2)
    assert found[:, :31].isnan().all()
    assert found[:, 31:].isfinite().all()
    for day in (31, 50, 69):
        past = slice(day - 31, day - 1)
        expected = EMOSCases(mean[past], std[past], truth[past], lower=lower).fit_cells(form)
        torch.testing.assert_close(found[:, day], expected, rtol=0, atol=1e-9)
    assert EMOSCases(mean[:30], std[:30], truth[:30], lower=lower).fit_trailing(form, 30).isnan().all()


GAMMA = "censored_shifted_gamma"
LAW = {"a": -1.0, "b": 1.2, "gamma": 0.2, "delta": 0.6, "log_shift": math.log(0.5)}
ZERO = torch.zeros(1, dtype=torch.float64)


def rain(count=6000, seed=0):
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
    found = EMOSCases(*rain(), lower=ZERO).fit_cells(form)[:, 0]
    named = dict(zip(coefficient_names(form, seasonal=False), found.tolist(), strict=True))
    tolerances = {"a": 0.1, "b": 0.05, "gamma": 0.06, "delta": 0.06, "log_shift": 0.2}
    for name, tolerance in tolerances.items():
        assert named[name] == pytest.approx(LAW[name], abs=tolerance), name


def test_the_fit_is_the_minimum_that_scipy_finds_with_the_score_of_scoringrules():
    mean, std, truth = rain(600, seed=1)
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
    mean, std, truth = rain(500, seed=2)
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
