"""EMOS on arrays: against scipy, shared coefficients and their influence, and the gamma family."""

import math

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import scoringrules
import torch

from models.distribution import CensoredShiftedGamma
from models.statistical.emos_regression import EMOSCases, SharedPrior, coefficient_names, predict_emos, raw_coefficients
from models.statistical.emos_sharing import estimate_sharing, fit_shared, thin
from models.statistical.predictors import annual_harmonics
from models.statistical.regression import Regression

FAMILIES = ("normal", "logistic", "censored_normal", "censored_logistic", "truncated_normal")


def peer_crps(family, y, mu, sigma):
    """Return the CRPS by a published library."""
    if family == "normal":
        return scoringrules.crps_normal(y, mu, sigma)
    if family == "logistic":
        return scoringrules.crps_logistic(y, mu, sigma)
    if family == "truncated_normal":
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
    mean, noise = torch.randn(2, 250, 2, generator=generator, dtype=torch.float64)
    std = torch.rand(250, 2, generator=generator, dtype=torch.float64) + 0.2
    bounded = Regression(family).bounded
    lower = torch.zeros(2, dtype=torch.float64) if bounded else None
    truth = 0.4 + 0.9 * mean + 1.3 * std * noise
    truth = truth.abs() if family == "truncated_normal" else truth.clamp(min=0 if bounded else -torch.inf)
    form = Regression(family, scale, score)
    found = EMOSCases(mean, std, truth, lower=lower).fit(form).coefficients

    m, s, y = (v[:, 1].numpy() for v in (mean, std, truth))

    def peer(x):
        mu = x[0] + x[1] * m
        sigma = np.hypot(x[2], x[3] * s) if scale == "quadratic" else np.exp(x[2] + x[3] * np.log(s))
        with np.errstate(all="ignore"):  # scoringrules gives NaN far from the minimum
            return PEERS[score](family, y, mu, sigma).mean()

    fits = [scipy.optimize.minimize(peer, [0, 1, 0.5, 0.5], method=name, tol=1e-10) for name in ("BFGS", "Nelder-Mead")]
    best, ours = min(fits, key=lambda fit: fit.fun), found[:4, 1].numpy()
    assert peer(ours) <= best.fun + 1e-10
    theirs = np.r_[best.x[:2], np.abs(best.x[2:]) if scale == "quadratic" else best.x[2:]]
    np.testing.assert_allclose(ours, theirs, atol=2e-3)


def test_shared_coefficients_are_those_of_the_pooled_cells():
    generator = torch.Generator().manual_seed(10)
    mean, noise = torch.randn(2, 90, 5, generator=generator, dtype=torch.float64)
    std = torch.rand(90, 5, generator=generator, dtype=torch.float64) + 0.2
    truth = 1 + mean + std * noise
    terms = list(annual_harmonics(86400 * torch.arange(90), torch.zeros(90)).T[:, :, None])
    form = Regression()
    shared = EMOSCases(mean, std, truth, terms).fit(form, shared=True).coefficients
    repeated = [term.expand(90, 5).reshape(-1, 1) for term in terms]
    pooled = EMOSCases(*(v.reshape(-1, 1) for v in (mean, std, truth)), repeated).fit(form).coefficients
    torch.testing.assert_close(shared, pooled, rtol=0, atol=1e-6)
    # A cell of weight two counts as two cells.
    double = EMOSCases(mean, std, truth, weight=torch.tensor([2.0, 1, 1, 0, 1])).fit(form, shared=True).coefficients
    index = [0, 0, 1, 2, 4]
    twice = EMOSCases(mean[:, index], std[:, index], truth[:, index]).fit(form, shared=True).coefficients
    torch.testing.assert_close(double, twice, rtol=0, atol=1e-6)


def cells_that_differ(by, cases, seed):
    """Return mean, std and truth of 40 cells with offsets of standard deviation `by`, for training and test."""
    generator = torch.Generator().manual_seed(seed)
    mean, noise = torch.randn(2, 2 * cases, 40, generator=generator, dtype=torch.float64)
    std = torch.rand(2 * cases, 40, generator=generator, dtype=torch.float64) + 0.5
    offset = by * torch.randn(40, generator=generator, dtype=torch.float64)
    return [values.split(cases) for values in (mean, std, offset + mean + std * noise)]


@pytest.mark.parametrize("scale", ["quadratic", "log"])
def test_drawn_coefficients_minimise_score_and_penalty(scale):
    """Compared with scipy, for a penalty on departures of μ and log σ in units of σ."""
    (m, _), (s, _), (y, _) = cells_that_differ(1, 9, seed=24)
    form, moments = Regression(scale=scale), torch.diag(torch.tensor([1.0, 0.8, 0.5, 0.2], dtype=torch.float64))
    centre = torch.tensor([0.2, 0.9, 0.4, 0.8], dtype=torch.float64)
    limits = torch.tensor([1e-6, 1e6]) if scale == "log" else torch.empty(0)
    prior = SharedPrior(torch.cat([centre, limits])[:, None], 5.0, moments)
    found = EMOSCases(m, s, y).fit(form, prior=prior).coefficients

    def predict(x, mean, std):
        sigma = np.hypot(x[2], x[3] * std) if scale == "quadratic" else np.exp(x[2] + x[3] * np.log(std))
        return x[0] + x[1] * mean, sigma

    for k in range(3):
        mean, std, truth = (v[:, k].numpy() for v in (m, s, y))
        mu, sigma = predict(centre.numpy(), mean, std)
        size = np.sqrt(np.maximum((sigma**2).mean(), ((truth - mu) ** 2).mean() / 100))

        theirs = np.maximum(sigma, size / 10)

        def total(x, mean=mean, std=std, truth=truth, size=size, theirs=theirs):
            def shape(x):
                if scale == "quadratic":
                    return [(x[0] + x[1] * mean.mean()) / size, x[1], x[2] ** 2 / size**2, x[3] ** 2]
                return [(x[0] + x[1] * mean.mean()) / size, x[1], x[2] + x[3] * np.log(std).mean(), x[3]]

            departure = np.subtract(shape(x), shape(centre.numpy()))
            mu, sigma = predict(x, mean, std)
            penalty = departure @ moments.numpy() @ departure + (np.log(sigma / theirs) ** 2).mean()
            return scoringrules.crps_normal(truth, mu, sigma).sum() + 5 * size / math.sqrt(math.pi) * penalty / 2

        best = scipy.optimize.minimize(total, centre.numpy(), method="Nelder-Mead", options={"xatol": 1e-9})
        best = scipy.optimize.minimize(total, best.x, method="BFGS", tol=1e-9)
        assert total(found[:4, k].numpy()) <= best.fun + 1e-9
        assert total(found[:4, k].numpy()) < min(total(centre.numpy()), total([0.0, 1.0, 0.5, 0.5])) - 1e-3


def auto(cases, form):
    sharing = estimate_sharing(form, [cases])
    (prior,) = fit_shared(form, thin([cases]), sharing)
    return sharing, cases.fit(form, prior=prior).coefficients


@pytest.mark.parametrize("scale", ["quadratic", "log"])
def test_the_degree_of_sharing_is_estimated(scale):
    form = Regression(scale=scale)
    weights = []
    for by, cases in ((0, 12), (0.4, 16), (5, 100)):
        m, s, y = cells_that_differ(by, cases, seed=21)
        data = EMOSCases(m[0], s[0], y[0])
        sharing, drawn = auto(data, form)
        weights.append(sharing.cells)
        fits = drawn, data.fit(form, shared=True).coefficients, data.fit(form).coefficients
        ours, *ends = (float(predict_emos(form, c[:, None], m[1], s[1]).crps(y[1]).mean()) for c in fits)
        assert ours < min(ends) * 1.003
    assert ours < 1.001 * ends[1]  # many cases: as good as a fit of each cell
    assert weights[0] > weights[1] > weights[2]


def test_a_cell_without_cases_gets_the_shared_coefficients():
    (m, _), (s, _), (y, _) = cells_that_differ(5, 100, seed=22)
    y[:, 7] = torch.nan
    y[1:, 8] = torch.nan
    data = EMOSCases(m, s, y)
    sharing, found = auto(data, Regression())
    (prior,) = fit_shared(Regression(), thin([data]), sharing)
    torch.testing.assert_close(found[:, 7:8], prior.coefficients)
    assert sharing.cells < 8
    moved = [float((found[0, k] - prior.coefficients[0, 0]).abs()) for k in (8, 9)]
    assert 0 < moved[0] < moved[1]


def test_lead_times_and_season_lend_at_a_single_station():
    """Coefficients of three lead times differ little, and 30 cases of each are few."""
    form, scores = Regression(), []
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        leads, tests = [], []
        for k in range(3):
            mean, noise = torch.randn(2, 430, 1, generator=generator, dtype=torch.float64)
            std = torch.rand(430, 1, generator=generator, dtype=torch.float64) + 0.5
            truth = 0.5 + 0.05 * k + 0.9 * mean + (1 + 0.1 * k) * std * noise
            terms = [
                t[:, None] for t in annual_harmonics(86400 * (torch.arange(430) % 365), torch.zeros(430)).double().T
            ]
            cases = EMOSCases(mean, std, truth, terms)
            some = torch.arange(430) % 14 == 0
            leads.append(cases.select(some))
            tests.append(cases.select(~some))
        sharing = estimate_sharing(form, leads)
        for cases, test, prior in zip(leads, tests, fit_shared(form, leads, sharing), strict=True):
            found = [cases.fit(form, prior=prior).coefficients, cases.fit(form).coefficients]
            scores.append([test.score(form, c) for c in found])
    ours, own = np.mean(scores, axis=0)
    assert ours < 0.985 * own


GAMMA = "censored_shifted_gamma"
LAW = {"a": -1.0, "b": 1.2, "gamma": 0.2, "delta": 0.6, "log_shift": math.log(0.5)}
ZERO = torch.zeros(1, dtype=torch.float64)


def rain(count, seed=0):
    """Return mean, std and truth (N, 1) of rain that follows `LAW`; a third of the truth is zero."""
    generator = torch.Generator().manual_seed(seed)
    mean = 1.5 * torch.randn(count, 1, generator=generator, dtype=torch.float64).abs()
    std = (0.2 + mean) * torch.exp(0.3 * torch.randn(count, 1, generator=generator, dtype=torch.float64))
    mu, sigma = LAW["a"] + LAW["b"] * mean, torch.exp(LAW["gamma"] + LAW["delta"] * std.log())
    law = CensoredShiftedGamma.of_location(mu, sigma, torch.tensor(math.exp(LAW["log_shift"])), ZERO)
    return mean, std, law.quantile(torch.rand((1, *mu.shape), generator=generator, dtype=mu.dtype))[0]


def test_maximum_likelihood_recovers_known_coefficients():
    form = Regression(GAMMA, "log", "likelihood")
    found = EMOSCases(*rain(6000), lower=ZERO).fit(form).coefficients[:, 0]
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
    found = EMOSCases(mean, std, truth, lower=ZERO).fit(Regression(GAMMA, "log")).coefficients[:5, 0]
    assert score(found.numpy()) == pytest.approx(theirs.fun, rel=1e-5)
    np.testing.assert_allclose(found, theirs.x, atol=0.03)


def test_coefficients_follow_their_units():
    """In units of 2 mm, with an offset, the forecast is the same; `test_emos.py` has both scales of other families."""
    mean, std, truth = rain(150, seed=2)
    form = Regression(GAMMA, "quadratic")
    ours = EMOSCases(mean, std, truth, lower=ZERO).fit(form).coefficients
    theirs = EMOSCases(mean / 2 - 3, std / 2, truth / 2 - 3, lower=ZERO - 3).fit(form).coefficients
    here = predict_emos(form, ours[:, None], mean, std, lower=ZERO)
    there = predict_emos(form, theirs[:, None], mean / 2 - 3, std / 2, lower=ZERO - 3)
    torch.testing.assert_close(2 * there.crps(truth / 2 - 3), here.crps(truth), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scale", ["log", "quadratic"])
def test_the_raw_coefficients_give_mean_and_spread_of_the_ensemble_far_from_the_bound(scale):
    form, mean, std = Regression(GAMMA, scale), torch.tensor([30.0, 12.0]), torch.tensor([2.0, 0.5])
    forecast = predict_emos(form, raw_coefficients(form, seasonal=False)[:, None], mean, std, lower=torch.zeros(2))
    torch.testing.assert_close(forecast.mean, mean, rtol=1e-4, atol=0)
    torch.testing.assert_close(forecast.std, std, rtol=1e-3, atol=0)
