"""Climatology of rain: the empirical distribution of the training years."""

import numpy as np
import pytest
import torch

from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task, Variable
from models.corrector import REFERENCES, Corrector
from models.distribution import Empirical, Ensemble, Normal
from models.statistical.climatology import Climatology

GRID = Grid.regular(3, 4)
RAIN = Task("rain", ["tp"], ["tp"], [24])
SPEC = {"_target_": "models.statistical.climatology.Climatology", "distribution": "auto"}


class Days(list):
    static = torch.zeros(3, *GRID.shape)

    def times(self):
        return torch.stack([s.init_time for s in self]), torch.stack([s.lead_time for s in self])


def rain(years, step=3, seed=0, task=RAIN):
    """Return batches of truth in m; dry in summer, half of the days wet in winter; 2t is 280 K plus rain in mm."""
    dates = np.concatenate([np.arange(f"{y}-01-01", f"{y + 1}-01-01", step, "datetime64[D]") for y in years])
    day = (dates - dates.astype("M8[Y]").astype("M8[D]")).astype(int)
    generator = torch.Generator().manual_seed(seed)
    wet = torch.tensor(np.cos(2 * np.pi * day / 365.25))[:, None, None]
    values = (wet + torch.randn(len(dates), *GRID.shape, generator=generator)).clamp(min=0).square().float() / 1000
    fields = {"tp": values, "2t": 280 + 1000 * values}
    target = torch.stack([fields[str(variable)] for variable in task.targets], dim=1)
    B, C = target.shape[:2]
    init = torch.tensor((dates - np.timedelta64(1, "D")).astype("M8[s]").astype(np.int64))
    ensemble, mask = target[:, None].expand(-1, 2, -1, -1, -1), torch.ones(B, C, *GRID.shape, dtype=torch.bool)
    return Sample(ensemble, mask, torch.zeros(B, 3, *GRID.shape), target, init, torch.full((B,), 24)), day


def days_of(batch):
    return Days(Sample(*tensors) for tensors in zip(*batch, strict=True))


def test_without_a_window_the_score_is_that_of_the_training_cases():
    train, _ = rain([2001])
    test, _ = rain([2002], seed=1)
    model = Climatology(RAIN, GRID, distribution="quantiles", quantiles=len(train.target), window_days=None)
    model.fit([train])
    forecast = model(test)
    assert isinstance(forecast, Empirical)
    expected = Ensemble(train.target[:, None]).crps(test.target)
    torch.testing.assert_close(forecast.crps(test.target), expected, rtol=1e-4, atol=1e-9)
    torch.testing.assert_close(forecast.mean, train.target.mean(0).expand_as(test.target), rtol=1e-5, atol=1e-9)
    assert torch.equal(forecast.crps(test.target, fair=True), forecast.crps(test.target))


@pytest.mark.parametrize("quantiles", [25, 40])
def test_few_quantiles_represent_a_window_of_days(quantiles):
    """Compared with all training cases within 30 days of each day."""
    train, train_day = rain(range(1991, 2011))
    test, test_day = rain([2011], step=11, seed=1)
    model = Climatology(RAIN, GRID, distribution="auto", quantiles=quantiles)
    model.fit([train])
    gap = np.abs(test_day[:, None] - train_day[None])
    near = np.minimum(gap, 365 - gap) <= 30
    expected = torch.stack(
        [Ensemble(train.target[torch.tensor(row)]).crps(test.target[k]) for k, row in enumerate(near)]
    ).mean()
    found = model(test).crps(test.target).mean()
    assert float(found) == pytest.approx(float(expected), rel=0.01)
    whole_year = Ensemble(train.target[:, None]).crps(test.target).mean()
    assert float(found) < 0.93 * float(whole_year)


def test_it_is_better_than_a_normal_distribution_and_calibrated():
    train, _ = rain(range(1991, 2011))
    test, _ = rain(range(2011, 2016), seed=1)
    auto, normal = (
        Corrector(RAIN, GRID, SPEC, Days.static),
        Corrector(RAIN, GRID, SPEC | {"distribution": "normal"}, Days.static),
    )
    for corrector in (auto, normal):
        corrector.fit(days_of(train))
    assert auto(test).crps(test.target).mean() < 0.97 * normal(test).crps(test.target).mean()
    dry = test.target == 0
    # A dry day lies exactly on the bound, and its forecast probability is its frequency.
    assert float(auto(test).cdf(test.target)[dry].mean()) > 0.5
    assert float(auto(test).cdf(torch.zeros_like(test.target)).mean()) == pytest.approx(
        float(dry.float().mean()), abs=0.02
    )
    assert float(auto(test).quantile(torch.tensor([0.0])).min()) == 0
    exceeded = (auto(test).quantile(torch.tensor([0.9]))[0] < test.target).float().mean()
    assert float(exceeded) == pytest.approx(0.1, abs=0.02)


def test_each_target_of_a_task_gets_the_distribution_that_suits_it():
    both = Task("both", ["2t", "tp"], ["2t", "tp"], [24])
    train, _ = rain(range(1991, 2001), task=both)
    corrector = Corrector(both, GRID, REFERENCES["climatology"], Days.static)
    corrector.fit(days_of(train))
    forecast = corrector(train)
    assert isinstance(forecast.of_target(0), Normal)
    assert isinstance(forecast.of_target(1), Empirical)
    # No target is the raw ensemble, which `correct` would leave as it is.
    assert forecast.mask is None
    alone = Corrector(RAIN, GRID, REFERENCES["climatology"], Days.static)
    alone.fit(days_of(rain(range(1991, 2001))[0]))
    torch.testing.assert_close(
        forecast.crps(train.target)[:, 1:],
        alone(
            train._replace(target=train.target[:, 1:], ensemble=train.ensemble[:, :, 1:], mask=train.mask[:, 1:])
        ).crps(train.target[:, 1:]),
    )
    assert forecast.crps(train.target).isfinite().all()


def test_variables_near_a_physical_bound():
    near = [name for name in ("tp", "tcc", "10si", "2t", "msl", "z", "unknown") if Variable(name).near_bound]
    assert near == ["tp", "tcc", "10si"]
