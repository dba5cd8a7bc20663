"""EMOS on arrays: against scipy, shared and partly shared coefficients, and trailing windows."""

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import scoringrules
import torch

from data_pipeline.common.errors import InputError
from models.statistical.emos_regression import EMOSCases, predict_emos
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


def test_invalid_windows_are_errors():
    case = torch.ones(5, 1)
    with pytest.raises(InputError, match="length must be a whole number of at least 1"):
        EMOSCases(case, case, case).fit_trailing(Regression(), 0)
    with pytest.raises(InputError, match="delay must be a whole number of at least 1"):
        EMOSCases(case, case, case).fit_trailing(Regression(), 3, delay=0)
