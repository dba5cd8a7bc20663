"""Tests of flatness: tail probabilities against scipy, and rejections of histograms of correlated cells."""

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from score_cases import diagram_of, draws, make_case

from evaluation.scores.effective_cases import (
    f_survival,
    flatness_of,
    incomplete_beta,
    kolmogorov_survival,
    serial_inflation,
)
from models.distribution import Normal


def test_tail_probabilities_equal_those_of_scipy():
    rng = np.random.default_rng(0)
    for x, a, b in zip(rng.random(300), 10 ** rng.uniform(-1, 4, 300), 10 ** rng.uniform(-1, 4, 300), strict=True):
        assert incomplete_beta(x, a, b) == pytest.approx(scipy.special.betainc(a, b, x), rel=1e-9, abs=1e-290)
    assert (incomplete_beta(0, 2, 3), incomplete_beta(1, 2, 3)) == (0, 1)
    for x, first, second in ((0.5, 3, 20), (2.0, 9.3, 140.2), (7.0, 1, 8)):
        assert f_survival(x, first, second) == pytest.approx(scipy.stats.f.sf(x, first, second), rel=1e-12)
    for n in (50, 5000):
        for d in (0.3, 0.8, 1.3, 2.0):
            exact = scipy.stats.kstwo.sf(d / np.sqrt(n), n)
            assert kolmogorov_survival(d / np.sqrt(n), n) == pytest.approx(exact, abs=0.012)


def histograms(starts, serial, seed, bins=11, cells=200, sigma=1.0):
    """Histograms of uniform PIT values of each start; cells of a start share half the variance of their error."""
    rng = np.random.default_rng(seed)
    common = np.empty(starts)
    common[0] = rng.normal()
    for k in range(1, starts):
        common[k] = serial * common[k - 1] + np.sqrt(1 - serial**2) * rng.normal()
    values = np.sqrt(0.5) * common[:, None] + np.sqrt(0.5) * rng.normal(size=(starts, cells))
    pit = scipy.stats.norm.cdf(values / sigma)
    counts = [np.bincount((one * bins).astype(int).clip(0, bins - 1), minlength=bins) for one in pit]
    return np.array(counts) / (starts * cells)


@pytest.mark.parametrize(("starts", "serial"), [(40, 0.0), (200, 0.5)])
def test_flat_histograms_of_correlated_cells_are_rarely_rejected(starts, serial):
    """A test that counts cells rejects nearly all of these."""
    found = [flatness_of(histograms(starts, serial, seed)) for seed in range(300)]
    for name in ("chi_square", "kolmogorov"):
        rejected = np.mean([getattr(one, name) < 0.05 for one in found])
        assert rejected <= 0.10, f"{name} rejects {rejected:.1%}"
    assert np.mean([one.chi_square < 0.05 for one in found]) >= 0.005
    naive = [scipy.stats.chisquare(histograms(starts, serial, seed).sum(0) * starts * 200).pvalue for seed in range(20)]
    assert np.mean(np.array(naive) < 0.05) >= 0.95


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


def test_few_starts_have_no_test():
    assert np.isnan(flatness_of(histograms(5, 0.0, 0)).chi_square)


def test_serial_inflation_of_an_autoregressive_series():
    rng = np.random.default_rng(0)
    series = np.empty((5000, 3))
    series[0] = rng.normal(size=3)
    for k in range(1, 5000):
        series[k] = 0.5 * series[k - 1] + rng.normal(size=3)
    assert serial_inflation(series) == pytest.approx(3, rel=0.1)
    assert serial_inflation(rng.normal(size=(5000, 3))) == pytest.approx(1, abs=0.1)
    assert serial_inflation(-series * (-1) ** np.arange(5000)[:, None]) == 1
