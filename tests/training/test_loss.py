"""Losses against formulas in physical units, brute force and a published library; error messages."""

import json

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import scoringrules
import torch
import xarray as xr

from data_pipeline.common.errors import InputError
from data_pipeline.dates import Dates, climatology_day
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.statistics.efi import CLIMATE_PROBABILITIES, extreme_forecast_index
from data_pipeline.task import Task
from models.distribution import Ensemble, Logistic, Normal, TruncatedNormal
from models.normalizer import Normalizer
from models.parallel.domain import Domain
from training.optimization.eecrps import EECRPS, start_day
from training.optimization.eecrps import efi as index_of
from training.optimization.loss import (
    CRPS,
    EnergyScore,
    GaussianCRPS,
    SeparateMeanAndSpread,
    SquaredError,
    ThresholdWeightedCRPS,
    weighted_sum,
)

GRID = Grid.regular(4, 6)
ONE, TWO = (Task("toy", ["msl", "2t", "tp"], targets, [24, 48]) for targets in (["2t"], ["2t", "tp"]))
AREA = torch.linspace(0.5, 2, 24).view(4, 6)
YEARS = Dates.of_years(range(2000, 2015))


def draw(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def normalizer(task, domain=GRID):
    """A normaliser: 2 m temperature with mean 280 K and scale 10 K; rain with mean 1 mm and scale 2 mm."""
    made = Normalizer(task, domain).double()
    made.location.copy_(torch.tensor([1e5, 280.0, 1e-3])[:, None, None] + torch.linspace(0, 1e-3, 24).view(4, 6))
    made.scale.copy_(torch.tensor([1e3, 10.0, 2e-3]))
    return made


def sample(task, members=5, B=2):
    """A batch in physical units, whose rain is often exactly 0."""
    unit = torch.tensor([1e3, 10.0, 2e-3]).double()[:, None, None]
    ensemble = torch.tensor([1e5, 280.0, 1e-3]).double()[:, None, None] + unit * draw(1, B, members, 3, 4, 6)
    ensemble[:, :, 2].clamp_(min=0)
    targets = list(task.target_channels)
    return Sample(
        ensemble, torch.ones(B, 3, 4, 6, dtype=torch.bool), torch.zeros(B, 0, 4, 6), ensemble[:, 0, targets] + 1e-3,
        torch.tensor([1_514_937_600, 1_515_283_200][:B]), torch.tensor([48, 24][:B]),  # 3 and 7 January 2018
    )  # fmt: skip


def normalised_sample(task):
    """A batch in normalised units, without static fields."""
    batch, made = sample(task), normalizer(task)
    return made(batch._replace(static=torch.zeros(2, 3, 4, 6))), made


def test_scores_of_members_follow_their_formulas():
    batch, made = normalised_sample(TWO)
    members = draw(2, 7, 2, 2, 4, 6)
    for fair in (0.0, 0.95, 1.0):
        pairs = (members[:, None] - members[None]).abs().sum((0, 1))
        spread = fair * pairs / (2 * 7 * 6) + (1 - fair) * pairs / (2 * 7 * 7)
        expected = (members - batch.target).abs().mean(0) - spread
        torch.testing.assert_close(CRPS(fair)(Ensemble(members), batch, made), expected)
    found = GaussianCRPS()(Ensemble(members), batch, made)
    mean, std = members.numpy().mean(0), members.numpy().std(0, ddof=1)
    np.testing.assert_allclose(found, scoringrules.crps_normal(batch.target.numpy(), mean, std), rtol=1e-10)
    normal = Normal(members[0], members[1].abs() + 0.1)
    assert GaussianCRPS()(normal, batch, made).equal(CRPS()(normal, batch, made))
    batch, made = normalised_sample(ONE)
    members = draw(2, 7, 2, 1, 4, 6)
    expected = (sum(members) / 7 - batch.target) ** 2
    torch.testing.assert_close(SquaredError()(Ensemble(members), batch, made), expected)


def test_a_cell_with_one_missing_target_has_no_weight():
    batch, made = normalised_sample(TWO)
    truth = batch.target.clone()
    truth[0, 1, 2, 3] = torch.nan
    truth[1, 0, 0] = torch.nan
    members = draw(2, 7, 2, 2, 4, 6).requires_grad_()
    value, weight = weighted_sum(EnergyScore(), Ensemble(members), batch._replace(target=truth), AREA, made)
    known = truth.isfinite().all(1)
    each = EnergyScore()(Ensemble(members), batch, made)[:, 0]
    assert float(weight) == pytest.approx(float((known * AREA).sum()))
    assert float(value.detach()) == pytest.approx(float((each * AREA)[known].sum().detach()))
    (gradient,) = torch.autograd.grad(value, members)
    assert torch.equal((gradient != 0).any(0).any(1), known)


def test_the_threshold_is_in_physical_units():
    """Against the integral of (F(x) - 1{y <= x})² from the threshold on, in kelvin."""
    batch, made = normalised_sample(ONE)
    normal = Normal(draw(3, 2, 1, 4, 6), draw(4, 2, 1, 4, 6).exp())
    loss = ThresholdWeightedCRPS(285.0, weight=0.7)(normal, batch, made)
    physical, truth = made.physical(normal), sample(ONE).target
    for b, i, j in ((0, 0, 0), (1, 2, 3), (1, 3, 5)):
        mu, sigma, y = (float(tensor[b, 0, i, j]) for tensor in (physical.mean, physical.std, truth))

        def integrand(x, mu=mu, sigma=sigma, y=y):
            return (scipy.stats.norm.cdf(x, mu, sigma) - (x >= y)) ** 2

        above, all_values = (
            scipy.integrate.quad(integrand, low, 400, points=[max(y, low), max(mu, low)])[0] for low in (285.0, 100.0)
        )
        # Normalised units are kelvin by the scale.
        assert 10 * float(loss[b, 0, i, j]) == pytest.approx(0.7 * above + 0.3 * all_values, rel=1e-4)


@pytest.mark.parametrize(("kind", "law"), [(Normal, "normal"), (Logistic, "logistic")])
def test_separate_trains_the_mean_by_squared_error_and_the_rest_by_crps(kind, law):
    """Against scoringrules; the gradient against finite differences of one term with the other fixed."""
    batch, made = normalised_sample(ONE)
    mu, sigma = draw(3, 2, 1, 4, 6).requires_grad_(), draw(4, 2, 1, 4, 6).exp().requires_grad_()

    def crps(mu, sigma):
        return getattr(scoringrules, f"crps_{law}")(*(x.detach().numpy() for x in (batch.target, mu, sigma)))

    found = SeparateMeanAndSpread()(kind(mu, sigma), batch, made)
    expected = (mu - batch.target).detach().numpy() ** 2 + crps(mu, sigma)
    np.testing.assert_allclose(found.detach(), expected, rtol=1e-9)
    to_mu, to_sigma = torch.autograd.grad(found.sum(), (mu, sigma))
    torch.testing.assert_close(to_mu, 2 * (mu - batch.target).detach())
    h = 1e-6
    np.testing.assert_allclose(to_sigma, (crps(mu, sigma + h) - crps(mu, sigma - h)) / (2 * h), atol=1e-7)


def scored(loss, forecast, task=ONE):
    return lambda: loss(forecast, *normalised_sample(task))


UNIT = Normal(torch.zeros(1), torch.ones(1))


def test_wrong_options_and_forecasts_are_refused():
    for make, sentence in (
        (lambda: CRPS(1.5), "loss.fair must be a number from 0 to 1, got 1.5"),
        (lambda: EnergyScore(-1), "loss.fair must be a number from 0 to 1, got -1"),
        (lambda: CRPS(weighting="cos"), "loss.weighting must be one of area, none, got 'cos'"),
        (lambda: ThresholdWeightedCRPS("hot"), "loss.threshold must be a number, got 'hot'"),
        (lambda: ThresholdWeightedCRPS(1.0, weight=2), "loss.weight must be a number from 0 to 1, got 2"),
        (scored(EnergyScore(), UNIT, TWO), "energy needs members, .* gives a normal dist"),
        (scored(SeparateMeanAndSpread(), Ensemble(torch.zeros(3, 1))), "separate needs .* normal, .* is ensemble"),
        (scored(ThresholdWeightedCRPS(280.0), None, TWO), "loss.threshold is one threshold, the task has 2 targets"),
        (
            scored(ThresholdWeightedCRPS(280.0), TruncatedNormal(*torch.zeros(3, 1))),
            "of a truncated normal .*no closed f",
        ),
        (scored(GaussianCRPS(), Ensemble(draw(2, 1, 2, 1, 4, 6))), "loss gaussian_crps needs at least two members"),
    ):
        with pytest.raises(InputError, match=sentence):
            make()


# The loss weighted by the extreme forecast index.


def climate(tmp_path, monkeypatch, **changes):
    """The climate of both targets on two days, in the format of `prepare`; rain is 0 up to some quantile."""
    made_from = {"dates": YEARS.to_json(), "data": "abc", "task": TWO.to_json()} | changes
    values = np.sort(draw(7, 2, 2, 2, len(CLIMATE_PROBABILITIES), 4, 6).numpy(), axis=3)
    values[0] = 280 + 10 * values[0]
    values[1] = (2e-3 * values[1]).clip(0)
    values[0, 0, 0, :, 1, 1] = np.nan
    dims = ("variable", "lead_time", "day", "quantile", "latitude", "longitude")
    coords = {
        "variable": np.array(["2t", "tp"], object), "lead_time": [24, 48], "day": [3, 7],
        "quantile": CLIMATE_PROBABILITIES,
        "latitude": list(GRID.latitudes), "longitude": list(GRID.longitudes),
    }  # fmt: skip
    dataset = xr.Dataset({"climate": (dims, values)}, coords, {"made_from": json.dumps(made_from)})
    monkeypatch.setattr("data_pipeline.statistics.statistic_file.load_statistic", lambda path, name: dataset)
    return dataset


@pytest.mark.parametrize("task", [ONE, TWO], ids=["one target", "two"])
def test_eecrps_is_the_crps_times_the_index_of_the_raw_members(task, tmp_path, monkeypatch):
    values = climate(tmp_path, monkeypatch).climate.values
    batch, made = normalised_sample(task)
    batch.mask[0, 1, 3, 3] = False
    forecast = Normal(draw(3, 2, len(task.targets), 4, 6), draw(4, 2, len(task.targets), 4, 6).exp())
    found = EECRPS("efi.nc").load(Domain.of(GRID), task, YEARS, "abc")(forecast, batch, made)
    raw = sample(task).ensemble.numpy()
    for b, (lead, day) in enumerate(((1, 0), (0, 1))):
        for t, channel in enumerate(task.target_channels):
            eps = task.targets[t].trace
            index = np.abs(
                extreme_forecast_index(raw[b, :, channel], values[t, lead, day], "exact", eps, CLIMATE_PROBABILITIES)
            )
            if (b, t) == (0, 0):
                index[3, 3] = 0
            expected = np.nan_to_num(index) * forecast.crps(batch.target)[b, t].numpy()
            np.testing.assert_allclose(found[b, t], expected, rtol=1e-12, atol=1e-14)
    # Where neither climate nor forecast has rain, weight and loss are exactly 0.
    assert (raw[:, :, 2] == 0).any()
    assert (values[1] == 0).any()


def test_eecrps_on_tiles_equals_the_whole_grid(tmp_path, monkeypatch):
    climate(tmp_path, monkeypatch)
    batch, made = normalised_sample(TWO)
    forecast = Normal(draw(3, 2, 2, 4, 6), draw(4, 2, 2, 4, 6).exp())
    whole = EECRPS("efi.nc").load(Domain.of(GRID), TWO, YEARS, "abc")(forecast, batch, made)
    for rank in range(4):
        domain = Domain.split(GRID, 2, 2, rank)
        own = Sample(*(domain.cut(tensor) if tensor.ndim > 3 else tensor for tensor in batch))
        tile = Normal(domain.cut(forecast.mu), domain.cut(forecast.sigma))
        found = EECRPS("efi.nc").load(domain, TWO, YEARS, "abc")(tile, own, normalizer(TWO, domain))
        torch.testing.assert_close(found, domain.cut(whole), rtol=0, atol=0)


def test_another_climate_is_refused(tmp_path, monkeypatch):
    for changes, task, years, data, grid, sentence in (
        ({"dates": [["2000-01-01", "2017-12-31"]]}, TWO, [2000, 2014], "abc", GRID, "is made of 2000-2017, .*-2014"),
        ({}, TWO, [2000, 2013], "abc", GRID, "is made of 2000-2014, the training.* 2000-2013"),
        ({}, TWO, [2000, 2014], "xyz", GRID, "is made of other forecasts"),
        ({}, TWO, [2000, 2014], "abc", Grid.regular(4, 8), "is made on another grid than"),
        ({}, Task("toy", ["msl"], ["msl"], [24]), [2000, 2014], "abc", GRID, "is a climate without the target msl"),
        ({}, Task("toy", ["tp"], ["tp"], [72]), [2000, 2014], "abc", GRID, "is a climate without the lead time 72"),
    ):  # fmt: skip
        climate(tmp_path, monkeypatch, **changes)
        with pytest.raises(InputError, match=rf"^efi\.nc {sentence}.*; make it with deepweather prepare"):
            EECRPS("efi.nc").load(Domain.of(grid), task, Dates.of_years(range(years[0], years[1] + 1)), data)


def test_a_start_day_without_climate_is_named(tmp_path, monkeypatch):
    climate(tmp_path, monkeypatch)
    batch, made = normalised_sample(ONE)
    loss = EECRPS("efi.nc").load(Domain.of(GRID), ONE, YEARS, "abc")
    later = batch.init_time + torch.tensor([0, 86400])
    loss.check_starts(batch.init_time.numpy().astype("datetime64[s]"))
    with pytest.raises(InputError, match="has no start on day 8 of the year; make it with deepweather prepare"):
        loss.check_starts(later.numpy().astype("datetime64[s]"))
    # A sample that passed this check has a loss of NaN, not a weight of 0.
    found = loss(Normal(batch.target, torch.ones_like(batch.target)), batch._replace(init_time=later), made)
    assert found[1].isnan().all()
    assert not found[0].isnan().any()


@pytest.mark.parametrize("members", [1, 10])
def test_the_index_in_torch_equals_numpy(members):
    """Members that equal a quantile, missing members and missing quantiles among them."""
    forecasts = (4 * draw(1, 3, members, 5, 7)).round() / 4
    quantiles = ((4 * draw(2, 3, len(CLIMATE_PROBABILITIES), 5, 7)).round() / 4).sort(1).values
    forecasts[0, 0, 0, 0], quantiles[1, 4, 1, 1] = torch.nan, torch.inf
    found = index_of(forecasts, quantiles, quantiles > 0.25)
    for k in range(3):
        expected = extreme_forecast_index(
            forecasts[k].numpy(), quantiles[k].numpy(), "exact", 0.25, CLIMATE_PROBABILITIES
        )
        np.testing.assert_allclose(found[k].numpy(), expected, rtol=0, atol=1e-14)
    assert found.isnan().sum() == 2


def test_the_start_day_equals_the_calendar():
    """All days from 1901 to 2099."""
    days = np.arange(np.datetime64("1901-01-01"), np.datetime64("2100-01-01"))
    found = start_day(torch.from_numpy(days.astype("datetime64[s]").astype(np.int64) + 82_800))
    np.testing.assert_array_equal(found.numpy(), climatology_day(days))
