"""Tests of flatness: p-values, and rejections of histograms of correlated cells."""

import numpy as np
import pytest
import scipy.stats
import torch
from score_cases import autoregressive, diagram_of, draws, make_case

from evaluation.scores.effective_cases import flatness_of, kolmogorov_survival, serial_inflation
from models.distribution import Normal


@pytest.mark.parametrize("cases", [50, 5000])
def test_distances_are_as_rare_as_in_the_exact_distribution(cases):
    for d in (0.1, 0.3, 0.8, 1.3, 2.0):
        exact = scipy.stats.kstwo.sf(d / np.sqrt(cases), cases)
        assert kolmogorov_survival(d / np.sqrt(cases), cases) == pytest.approx(exact, abs=0.012)


def histograms(starts, serial, seed, bins=11, cells=200, sigma=1.0):
    """Histograms of uniform PIT values of each start; cells of a start share half the variance of their error."""
    common, own = autoregressive(starts, serial, seed), np.random.default_rng(-seed - 1 + 2**32)
    pit = scipy.stats.norm.cdf(np.sqrt(0.5) * (common + own.normal(size=(starts, cells))) / sigma)
    counts = [np.bincount((one * bins).astype(int).clip(0, bins - 1), minlength=bins) for one in pit]
    return np.array(counts) / (starts * cells)


@pytest.mark.parametrize(("starts", "serial"), [(40, 0.0), (200, 0.5)])
def test_flat_histograms_of_correlated_cells_are_rarely_rejected(starts, serial):
    """A test that counts cells rejects nearly all of these."""
    every = [histograms(starts, serial, seed) for seed in range(300)]
    found = [flatness_of(one) for one in every]
    for name in ("chi_square", "kolmogorov"):
        rejected = np.mean([getattr(one, name) < 0.05 for one in found])
        assert rejected <= 0.10, f"{name} rejects {rejected:.1%}"
    assert np.mean([one.chi_square < 0.05 for one in found]) >= 0.005
    naive = [scipy.stats.chisquare(one.sum(0) * starts * 200).pvalue for one in every[:20]]
    assert np.mean(np.array(naive) < 0.05) >= 0.95


@pytest.mark.parametrize("starts", [10, 40])
def test_the_test_is_that_of_rao_and_scott(starts):
    """Its degrees of freedom, from unbiased estimates of tr Σ² and (tr Σ)², solve the moments of a Wishart matrix S:

    E[tr S²] = (1 + 1/f) tr Σ² + (tr Σ)²/f and E[(tr S)²] = 2/f tr Σ² + (tr Σ)².
    """
    inside = 0
    for seed in range(10):
        totals = histograms(starts, 0.0, seed)
        found = totals.sum(0)
        residuals = totals - totals.sum(1, keepdims=True) * found
        effect = 11 * np.cov(residuals.T) * starts * serial_inflation(residuals)
        f, trace = starts / serial_inflation(residuals) - 1, np.trace(effect)
        if f < 2:
            continue
        square, _ = np.linalg.solve([[1 + 1 / f, 1 / f], [2 / f, 1]], [(effect**2).sum(), trace**2])
        d = np.clip(trace**2 / square, 1, 10)
        inside += 1 < d < 10
        statistic = 11 * ((found - 1 / 11) ** 2).sum() / trace
        assert flatness_of(totals).chi_square == pytest.approx(scipy.stats.f.sf(statistic, d, d * f), rel=1e-9)
    assert inside > 5


def test_histograms_that_are_not_flat_are_rejected():
    found = [flatness_of(histograms(100, 0.0, seed, sigma=0.6)) for seed in range(30)]
    assert np.mean([one.chi_square < 0.01 for one in found]) == 1


def test_the_number_of_cases_is_that_of_independent_cells():
    truth = draws(400, 1, 1, 50)
    forecast = Normal(torch.zeros_like(truth), torch.ones_like(truth))
    panel = diagram_of("rank_histogram", make_case(forecast, truth, bins=11))[""]
    assert panel["independent_cases"] == pytest.approx(20_000, rel=0.2)
    np.testing.assert_allclose(panel["y"], 1 / 11, atol=6 * np.sqrt(1 / 11 / 20_000), err_msg="a uniform PIT is flat")
    assert panel["p_chi_square"] > 1e-3
    copies = draws(400, 1, 1, 1).expand(-1, -1, -1, 50).contiguous()
    panel = diagram_of("rank_histogram", make_case(forecast, copies, bins=11))[""]
    assert panel["independent_cases"] == pytest.approx(400, rel=0.2)


def test_too_few_independent_starts_have_no_test():
    """A slow cycle has the largest inflation, 19: 56 starts are worth less than three, 66 more."""
    slow = 1 + 0.5 * np.sin(np.arange(66) / 11)[:, None] * np.linspace(-1, 1, 11)
    equal = np.ones((20, 11))
    for few in (histograms(5, 0.0, 0), slow[:56], equal):
        assert np.isnan(flatness_of(few).chi_square)
    assert np.isfinite(flatness_of(slow).chi_square)


def test_serial_inflation_is_that_of_an_autoregressive_series():
    series = autoregressive(5000, 0.5, 0, 3)
    assert serial_inflation(series) == pytest.approx(3, rel=0.1)
    assert serial_inflation(autoregressive(5000, 0.0, 1, 3)) == pytest.approx(1, abs=0.1)
    assert serial_inflation(-series * (-1) ** np.arange(5000)[:, None]) == 1
    assert serial_inflation(autoregressive(5000, 0.99, 1)) == pytest.approx(19)
    # Short series about their own mean: without Kendall's correction the average is 0.42, with the half of it 0.45.
    short = autoregressive(40, 0.5, 1, 3000)
    inflation = np.array([serial_inflation(one[:, None]) for one in (short - short.mean(0)).T])
    assert ((inflation - 1) / (inflation + 1)).mean() == pytest.approx(0.481, abs=0.005)
