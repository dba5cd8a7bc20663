"""Values of a case: expected squared errors, and histograms with known shapes."""

import numpy as np
import pytest
import torch
from score_cases import draws

from data_pipeline.grid import Grid
from data_pipeline.task import Task
from evaluation.scores import default_scores, statistics_of
from evaluation.scores.case import Case, calibration_bin, expected_squared_error, is_ensemble, tie_breaker
from models.distribution import CensoredLogistic, CensoredNormal, Ensemble, Normal, Patched
from models.normalizer import Normalizer

N = 100_000


def uniform(*shape):
    return torch.rand(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def cell_scores(distribution, truth):
    """The statistics of the main scores in every cell."""
    case = Case(distribution, truth, torch.zeros_like(truth), bins=5)
    statistics = statistics_of(*(score for score in default_scores() if score.name != "rank_deviation"))
    return {name: statistic.cells(case) for name, statistic in statistics.items()}


@pytest.mark.parametrize("members", [2, 5, 10])
def test_expected_squared_error_equals_that_of_a_calibrated_ensemble(members):
    """Truth and members are draws of one distribution: the squared error of the mean is σ² (1 + 1/M)."""
    values = 3 * draws(members + 1, 2 * N)
    ensemble = Ensemble(values[1:])
    actual = float((ensemble.mean - values[0]).square().mean())
    assert actual == pytest.approx(9 * (1 + 1 / members), rel=0.02)
    assert float(expected_squared_error(ensemble).mean()) == pytest.approx(actual, rel=0.02)
    written = expected_squared_error(ensemble, drawn=False)
    np.testing.assert_allclose(written, values[1:].numpy().var(0, ddof=1), rtol=1e-10)


def test_one_member_has_no_spread():
    assert not expected_squared_error(Ensemble(draws(1, 4))).any()


class Clipped(Normal):
    """A normal distribution with its negative values censored to a point mass at zero."""

    def cdf(self, value):
        return torch.where(value < 0, torch.zeros_like(value), super().cdf(value))


def calibrated(kind):
    """A forecast, and truth that is drawn from its distribution."""
    values = draws(11, N)
    if kind in ("members", "ties", "rain"):
        # In rain, the truth and most members are zero.
        values = {"members": values, "ties": values.round(), "rain": values.clamp(min=0.5)}[kind]
        return Ensemble(values[1:]), values[0]
    law = Normal if kind == "normal" else Clipped
    truth = values[0] if kind == "normal" else values[0].clamp(min=0)
    return law(torch.zeros_like(truth), torch.ones_like(truth)), truth


@pytest.mark.parametrize("bins", [6, 11])
@pytest.mark.parametrize("kind", ["members", "ties", "rain", "normal", "point mass"])
def test_a_calibrated_forecast_has_a_flat_histogram(kind, bins):
    """In any number of bins; ties and point masses are spread over their bins."""
    found = calibration_bin(*calibrated(kind), uniform(N), bins)
    counts = torch.bincount(found, minlength=bins) / N
    assert counts.tolist() == pytest.approx([1 / bins] * bins, abs=0.005)


def test_untrained_cells_are_scored_by_their_own_kind_of_forecast():
    """Corrected members beside raw members are an ensemble; a closed form is scored beside raw members cell by cell."""
    members, truth, where = draws(4, 6), draws(6, seed=2), torch.tensor([True, False] * 3)
    raw, law = Ensemble(members), Normal(draws(6, seed=3), torch.ones(6).double())
    assert is_ensemble(Patched(where, Ensemble(members + 1), raw))
    patched = Patched(where, law, raw)
    assert not is_ensemble(patched)
    for name, value in cell_scores(patched, truth).items():
        parts = cell_scores(law, truth)[name], cell_scores(raw, truth)[name]
        torch.testing.assert_close(value, torch.where(where, *parts), rtol=1e-12, atol=1e-12)
    bins = [calibration_bin(one, truth, uniform(6), 5) for one in (law, raw, patched)]
    assert bins[2].tolist() == torch.where(where, *bins[:2]).tolist()


@pytest.mark.parametrize("kind", [CensoredNormal, CensoredLogistic])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dry_truth_falls_on_the_point_mass(kind, dtype):
    """Rain of a calibrated censored distribution, scaled to other units and back: exact zeros, a flat PIT.

    The law is in units of the normalised target, in which the bound 0 is (0 - 3.7)/0.3, rounded.
    """
    location, scale, shape = 3.7, 0.3, (1, 1, 5, 2 * N // 5)
    mu = torch.linspace(-1, 1, 2 * N, dtype=dtype).view(shape)
    bound = (torch.zeros(shape, dtype=dtype) - location) / scale
    normalizer = Normalizer(Task("rain", ["tp"], ["tp"], [24]), Grid.regular(*shape[2:])).to(dtype)
    normalizer.location.fill_(location)
    normalizer.scale.fill_(scale)
    law = normalizer.physical(kind(mu + bound, torch.ones(shape, dtype=dtype), bound))
    truth = law.quantile(torch.rand((1, *shape), generator=torch.Generator().manual_seed(3), dtype=dtype))[0]
    truth = torch.where(truth <= law.lower, 0.0, truth)  # in the analysis too, a dry cell has exactly the bound
    assert 0.4 < (truth == 0).double().mean() < 0.6
    counts = torch.bincount(calibration_bin(law, truth, uniform(*shape), 10).flatten(), minlength=10) / (2 * N)
    assert counts.tolist() == pytest.approx([0.1] * 10, abs=0.004)


def test_ties_are_broken_alike_in_every_batch():
    starts, leads = torch.tensor([10, 20, 30]), torch.tensor([24, 48, 24])
    whole = tie_breaker(3, starts, leads, (2, 4))
    assert whole.shape == (3, 2, 4)
    torch.testing.assert_close(tie_breaker(3, starts[[2, 0]], leads[[2, 0]], (2, 4)), whole[[2, 0]], rtol=0, atol=0)
    assert len({tuple(row) for row in whole.flatten(1).tolist()}) == 3
    assert not torch.equal(tie_breaker(4, starts, leads, (2, 4)), whole)
