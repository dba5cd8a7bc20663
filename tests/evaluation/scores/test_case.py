"""Cell scores against loops over their definitions, and histograms with known shapes."""

import math

import numpy as np
import pytest
import torch

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from evaluation.scores import statistics_of
from evaluation.scores.case import Case, calibration_bin, expected_squared_error, is_ensemble, tie_breaker
from evaluation.scores.crps import FAIR_CRPS, PLAIN_CRPS
from evaluation.scores.mean_spread import BIAS, SPREAD_SKILL
from models.distribution import CensoredLogistic, CensoredNormal, Ensemble, Normal, Patched
from models.normalizer import Normalizer


def draws(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def uniform(*shape, seed=1):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def cell_scores(distribution, truth):
    """The statistics of the main scores in every cell."""
    case = Case(distribution, truth, torch.zeros_like(truth), bins=5)
    statistics = statistics_of(PLAIN_CRPS, FAIR_CRPS, BIAS, SPREAD_SKILL)
    return {name: statistic.cells(case) for name, statistic in statistics.items()}


def test_ensemble_scores_equal_their_definitions():
    members, truth = draws(4, 2, 1, 2, 3), draws(2, 1, 2, 3, seed=9)
    found = cell_scores(Ensemble(members), truth)
    for where in np.ndindex(*truth.shape):
        x, y = [float(member[where]) for member in members], float(truth[where])
        M, mean = len(x), sum(x) / len(x)
        error = sum(abs(a - y) for a in x) / M
        pairs = sum(abs(a - b) for a in x for b in x)
        variance = sum((a - mean) ** 2 for a in x) / (M - 1)
        expected = {
            "crps": error - pairs / (2 * M * M),
            "crps_fair": error - pairs / (2 * M * (M - 1)),
            "error": mean - y,
            "squared_error": (mean - y) ** 2,
            "expected_squared_error": variance * (1 + 1 / M),
        }
        assert {name: float(value[where]) for name, value in found.items()} == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("distribution", [Ensemble(draws(3, 5)), Normal(draws(5), torch.ones(5).double())])
def test_missing_truth_gives_nan(distribution):
    truth = torch.tensor([0.0, math.nan, 1.0, math.nan, 2.0], dtype=torch.float64)
    for value in cell_scores(distribution, truth).values():
        assert value.isnan().tolist() == truth.isnan().tolist()


@pytest.mark.parametrize("members", [2, 5, 10])
def test_expected_squared_error_equals_that_of_a_calibrated_ensemble(members):
    """Truth and members are draws of one distribution: the squared error of the mean is σ² (1 + 1/M)."""
    values = 3 * draws(members + 1, 200_000)
    ensemble, truth = Ensemble(values[1:]), values[0]
    actual = (ensemble.mean - truth).square().mean()
    assert float(actual) == pytest.approx(9 * (1 + 1 / members), rel=0.02)
    assert float(expected_squared_error(ensemble).mean()) == pytest.approx(float(actual), rel=0.02)


def test_one_member_has_no_spread():
    with pytest.raises(InputError, match="at least two members"):
        expected_squared_error(Ensemble(draws(1, 4)))


def frequencies(distribution, truth, bins):
    index = calibration_bin(distribution, truth, uniform(*truth.shape), bins)
    return torch.bincount(index.flatten(), minlength=bins) / index.numel()


def test_the_rank_counts_the_members_below_the_truth():
    ensemble = Ensemble(torch.tensor([3.0, 1.0, 2.0])[:, None].expand(3, 4))
    truth = torch.tensor([0.0, 1.5, 2.5, 9.0])
    assert calibration_bin(ensemble, truth, uniform(4), 4).tolist() == [0, 1, 2, 3]


def test_exchangeable_members_have_a_flat_histogram():
    values = draws(11, 100_000)
    ensemble = Ensemble(values[1:])
    assert frequencies(ensemble, values[0], 11).tolist() == pytest.approx([1 / 11] * 11, abs=0.004)


def test_overconfident_members_have_a_u_shaped_histogram():
    values = draws(11, 100_000)
    histogram = frequencies(Ensemble(values[1:] / 2), values[0], 11)
    assert min(histogram[0], histogram[-1]) > 2 / 11
    assert histogram[1:-1].max() < 1 / 11
    assert int(histogram.argmin()) in (4, 5, 6)


def test_a_true_distribution_has_a_flat_histogram():
    truth = 2 + 3 * draws(100_000)
    law = Normal(torch.full_like(truth, 2), torch.full_like(truth, 3))
    assert frequencies(law, truth, 7).tolist() == pytest.approx([1 / 7] * 7, abs=0.005)


def test_ties_are_broken_evenly():
    """Rain: the truth and most members are zero."""
    values = draws(6, 100_000).clamp(min=0.5)
    assert frequencies(Ensemble(values[1:]), values[0], 6).tolist() == pytest.approx([1 / 6] * 6, abs=0.005)


class Clipped(Normal):
    """A normal distribution with its negative values censored to a point mass at zero."""

    def cdf(self, value):
        return torch.where(value < 0, torch.zeros_like(value), super().cdf(value))


def test_a_point_mass_is_spread_over_its_bins():
    truth = draws(100_000).clamp(min=0)
    law = Clipped(torch.zeros_like(truth), torch.ones_like(truth))
    assert frequencies(law, truth, 10).tolist() == pytest.approx([0.1] * 10, abs=0.005)


def test_untrained_cells_are_scored_by_their_own_kind_of_forecast():
    """Corrected members beside raw members are an ensemble; a closed form is scored beside raw members cell by cell."""
    members, truth, where = draws(4, 6), draws(6, seed=2), torch.tensor([True, False] * 3)
    raw, law = Ensemble(members), Normal(draws(6, seed=3), torch.ones(6).double())
    assert is_ensemble(Patched(where, Ensemble(members + 1), raw))
    assert not is_ensemble(Patched(where, law, raw))
    patched = Patched(where, law, raw)
    for name, value in cell_scores(patched, truth).items():
        parts = cell_scores(law, truth)[name], cell_scores(raw, truth)[name]
        torch.testing.assert_close(value, torch.where(where, *parts), rtol=1e-12, atol=1e-12)
    bins = [calibration_bin(law_, truth, uniform(6), 5) for law_ in (law, raw, patched)]
    assert bins[2].tolist() == torch.where(where, *bins[:2]).tolist()


def test_members_that_are_quantiles_have_the_spread_of_their_values():
    members = draws(4, 6)
    drawn, written = (expected_squared_error(Ensemble(members), drawn) for drawn in (True, False))
    np.testing.assert_allclose(written, members.numpy().var(0, ddof=1), rtol=1e-12)
    np.testing.assert_allclose(drawn, 1.25 * written, rtol=1e-12)


@pytest.mark.parametrize("kind", [CensoredNormal, CensoredLogistic])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dry_truth_falls_on_the_point_mass(kind, dtype):
    """Rain of a calibrated censored distribution, scaled to other units and back: exact zeros, a flat PIT.

    The law is in units of the normalised target, in which the bound 0 is (0 - 3.7)/0.3, rounded.
    """
    location, scale, N = 3.7, 0.3, 200_000
    mu = torch.linspace(-1, 1, N, dtype=dtype)
    bound = (torch.zeros(N, dtype=dtype) - location) / scale
    normalised = kind(mu + bound, torch.ones(N, dtype=dtype), bound)
    rain = Task("rain", ["tp"], ["tp"], [24])
    normalizer = Normalizer(rain, Grid.regular(5, N // 5)).to(dtype)
    normalizer.location.fill_(location)
    normalizer.scale.fill_(scale)
    one = [part.view(1, 1, 5, -1) for part in (normalised.mu, normalised.sigma, normalised.lower)]
    law = normalizer.physical(kind(*one))
    truth = law.sample(1, torch.Generator().manual_seed(3))[0]
    truth = torch.where(truth <= law.lower, 0.0, truth)  # in the analysis too, a dry cell has exactly the bound
    assert 0.4 < (truth == 0).double().mean() < 0.6
    assert frequencies(law, truth, 10).tolist() == pytest.approx([0.1] * 10, abs=0.004)


def test_the_extremes_are_in_the_outer_bins():
    truth = torch.tensor([-1e6, 1e6, math.nan])
    law = Normal(torch.zeros(3), torch.ones(3))
    assert calibration_bin(law, truth, torch.zeros(3), 5)[:2].tolist() == [0, 4]


def test_ties_are_broken_alike_in_every_batch():
    starts, leads = torch.tensor([10, 20, 30]), torch.tensor([24, 48, 24])
    whole = tie_breaker(3, starts, leads, (2, 4))
    assert whole.shape == (3, 2, 4)
    torch.testing.assert_close(tie_breaker(3, starts[[2, 0]], leads[[2, 0]], (2, 4)), whole[[2, 0]], rtol=0, atol=0)
    assert len({tuple(row) for row in whole.flatten(1).tolist()}) == 3
    assert not torch.equal(tie_breaker(4, starts, leads, (2, 4)), whole)
