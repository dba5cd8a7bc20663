"""Boosted EMOS as a model: unfitted, fitted to other inputs, products and static fields, and with a lower bound."""

import pytest
import torch

from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.distribution import Ensemble
from models.statistical.boosted_emos import BoostedEMOS
from models.statistical.predictors import annual_harmonics

GRID = Grid.regular(3, 4)
TASK = Task("test", inputs=["msl", "2t", "tcc"], targets=["2t"], lead_times=[24, 48])
FAMILIES = ("normal", "logistic", "censored_normal", "censored_logistic", "truncated_normal")


def batch(count=160, members=6, seed=0):
    """Return forecasts whose error depends on another variable and on the season."""
    g = torch.Generator().manual_seed(seed)
    C = len(TASK.inputs)
    centre = torch.randn(count, 1, C, *GRID.shape, generator=g)
    ensemble = centre + 0.4 * torch.randn(count, members, C, *GRID.shape, generator=g)
    init, lead = 86400 * 23 * torch.arange(count), torch.tensor([24, 48]).repeat(count)[:count]
    cos = annual_harmonics(init, lead)[:, 0, None, None]
    error = (0.6 + 0.5 * cos) * ensemble[:, :, 0].mean(1) + 0.3 * torch.randn(count, *GRID.shape, generator=g)
    truth = (ensemble[:, :, 1].mean(1) + error)[:, None]
    mask, static = torch.ones(count, C, *GRID.shape, dtype=torch.bool), torch.zeros(count, 3, *GRID.shape)
    static[:, 0] = torch.linspace(-1, 1, 12).view(GRID.shape)
    return Sample(ensemble, mask, static, truth, init, lead)


def crps(model, sample):
    with torch.no_grad():
        return float(model(sample).crps(sample.target).mean())


@pytest.mark.parametrize("family", FAMILIES)
def test_unfitted_is_the_raw_ensemble(family):
    sample = batch(6)
    model = BoostedEMOS(TASK, GRID, family, lower=-1e4 if "normal" != family != "logistic" else None)
    raw = Ensemble(sample.ensemble[:, :, [1]].movedim(1, 0))
    torch.testing.assert_close(model(sample).mean, raw.mean)
    torch.testing.assert_close(model(sample).std, raw.std, rtol=5e-3, atol=0)


def test_other_inputs_improve_the_forecast_and_products_with_the_season_more():
    train, test = batch(seed=1), batch(seed=2)
    raw, plain, full = BoostedEMOS(TASK, GRID), BoostedEMOS(TASK, GRID), BoostedEMOS(TASK, GRID, products=True)
    plain.fit([train])
    full.fit(Sample(*(tensor[i : i + 7] for tensor in train)) for i in reversed(range(0, 160, 7)))
    assert crps(full, test) < 0.75 * crps(plain, test) < 0.7 * crps(raw, test)
    assert crps(full, test) < 0.22, "the true distribution scores 0.17"


def test_the_number_of_steps_is_that_of_all_tiles(monkeypatch):
    """A sum over tiles that grows with every step allows none."""
    plain, stopped = BoostedEMOS(TASK, GRID), BoostedEMOS(TASK, GRID)
    plain.fit([batch(seed=1)])
    growing = "models.statistical.boosted_emos.allsum"
    monkeypatch.setattr(growing, lambda curves, _: torch.arange(curves.shape[-1]).double().expand_as(curves))
    stopped.fit([batch(seed=1)])
    assert (stopped.coefficients != 0).sum() < (plain.coefficients != 0).sum()


def test_a_shared_model_uses_static_fields():
    train, test = (b._replace(target=b.target + 2 * b.static[:, :1]) for b in (batch(seed=3), batch(seed=4)))
    model = BoostedEMOS(TASK, GRID, products=True, shared=True)
    model.fit([train])
    assert model.coefficients.shape == (2, 4 + 2 * (6 + 2 + 3 + 15), 1, 1, 1)
    assert crps(model, test) < 0.3


def test_the_lower_bound_is_converted_to_normalised_units():
    sample = batch(seed=5)
    sample = sample._replace(target=sample.target.clamp(min=0))
    ours, theirs = (BoostedEMOS(TASK, GRID, "censored_normal", max_steps=10, lower=0.0) for _ in range(2))
    ours.fit([sample])
    location, scale = torch.linspace(-1, 1, 12).view(1, *GRID.shape), torch.tensor(2.0)
    theirs.normalise(location, scale)
    moved = sample._replace(ensemble=(sample.ensemble - location) / scale, target=(sample.target - location) / scale)
    theirs.fit([moved])
    back = theirs(moved).affine(location, scale)
    assert float(back.quantile(torch.tensor([0.0])).min()) == pytest.approx(0, abs=1e-6)
    torch.testing.assert_close(back.mean, ours(sample).mean, rtol=0, atol=0.02)
