"""Networks on the real forecasts of `tests/models/statistical/test_emos_published.py`, against scores of EMOS."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import xarray as xr
from monsoon import SOME, YEARS, Monsoon
from torch import Tensor
from torch.utils.data import Dataset

from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.samples.sample_reader import static_fields
from data_pipeline.task import Task
from models.corrector import Corrector
from models.distribution import Normal

pyreadr = pytest.importorskip("pyreadr")
pytestmark = pytest.mark.long
NAMES = ("temp", "pres", "u", "v", "wspd", "wgust", "tcc", "sh")


class Cases(Dataset):
    """A data set of one batch."""

    def __init__(self, task: Task, grid: Grid, ensemble: Tensor, truth: Tensor, starts: Tensor) -> None:
        self.task, self.grid = task, grid
        self.static = static_fields(grid, task, SimpleNamespace(static=xr.Dataset()))
        self.batch = Sample(
            ensemble,
            torch.ones_like(ensemble[:, 0], dtype=torch.bool),
            self.static.expand(len(ensemble), -1, -1, -1),
            truth,
            starts,
            torch.full((len(ensemble),), task.lead_times[0]),
        )

    def __len__(self) -> int:
        return len(self.batch.target)

    def __getitem__(self, index: int) -> Sample:
        return Sample(*(tensor[index] for tensor in self.batch))


class Recipe(NamedTuple):
    """Options of `trained`; the default network is an MLP."""

    model: dict[str, Any]
    epochs: int
    batch: int
    rate: float
    decay: float = 1e-2


def train_network(cases: Cases, recipe: Recipe, seed: int) -> Corrector:
    """A corrector of this seed, trained like `deepweather train`: AdamW with a one-cycle learning rate."""
    torch.manual_seed(seed)
    corrector = Corrector(cases.task, cases.grid, {"_target_": "models.networks.mlp.MLP"} | recipe.model, cases.static)
    corrector.fit(cases, 512)
    everything, steps = corrector.normalizer(cases.batch), recipe.epochs * -(-len(cases) // recipe.batch)
    optimizer = torch.optim.AdamW(corrector.model.parameters(), recipe.rate, weight_decay=recipe.decay)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, recipe.rate, total_steps=steps)
    for _ in range(recipe.epochs):
        for some in torch.randperm(len(cases)).split(recipe.batch):
            sample = Sample(*(tensor[some] for tensor in everything))
            optimizer.zero_grad()
            score = corrector.model(sample).crps(sample.target.nan_to_num())
            score[sample.target.isfinite()].mean().backward()
            optimizer.step()
            cycle.step()
    return corrector.eval()


DILLINGEN = Recipe({"width": 64, "depth": 1}, epochs=40, batch=64, rate=1e-2)
"""Chosen among fifteen by the mean score of 2016, 2017, 2018 and 2019, each forecast by networks of the other three."""
SEEDS = 4


def station(folder: Path, years: range) -> Cases:
    """Mean, spread and control of eight variables, daily at noon, with the observed temperature.

    A station is a grid of one cell. An ensemble with known mean and spread is represented by two members.
    """
    task = Task("dillingen", [*NAMES, *(f"{name}_ctrl" for name in NAMES)], ["temp"], [24])
    frame = pyreadr.read_r(folder / "fo_dillingen" / "dillingen_station.RData")["station"].dropna(subset=["obs"])
    dates = frame["date"].astype(str).to_numpy().astype("datetime64[s]")
    chosen = np.isin(dates.astype("datetime64[Y]").astype(int) + 1970, years)

    def columns(ending: str) -> Tensor:
        return torch.from_numpy(frame[[name + ending for name in NAMES]].to_numpy(np.float32)[chosen])

    mean, spread, control = columns("_mean"), columns("_sd"), columns("_ctrl")
    members = [torch.cat([mean + sign * spread / 2**0.5, control], 1) for sign in (-1, 1)]
    truth = torch.from_numpy(frame["obs"].to_numpy(np.float32)[chosen])[:, None, None, None]
    starts = torch.from_numpy(dates.astype(np.int64)[chosen]) - 12 * 3600
    return Cases(task, Grid((48.5562,), (10.5599,)), torch.stack(members, 1)[..., None, None], truth, starts)


def test_dillingen_temperature(samples, record_property):
    """24 linear predictors give EMOS 0.828 (same split), mean and spread of the temperature alone 0.885."""
    train, year = station(samples, range(2016, 2020)), station(samples, range(2020, 2021)).batch
    assert (len(train), len(year.target)) == (1455, 366)
    correctors = [train_network(train, DILLINGEN, seed) for seed in range(SEEDS)]
    with torch.no_grad():
        forecasts = [corrector(year) for corrector in correctors]
    alone = [float(forecast.crps(year.target).mean()) for forecast in forecasts]
    # The mean of quantile functions of normal distributions is the quantile function of a normal distribution.
    mu, sigma = (torch.stack([getattr(f, name) for f in forecasts]).mean(0) for name in ("mu", "sigma"))
    together = float(Normal(mu, sigma).crps(year.target).mean())
    record_property("dillingen.mlps", together)
    assert together <= 0.820
    assert together < sum(alone) / SEEDS


MONSOON = Recipe({}, epochs=10, batch=8, rate=1e-3)
START = {"baseline": {"scale": "log"}}


def monsoon_score(data: Monsoon, recipe: Recipe, year: int) -> float:
    """CRPS in mm of the forecast of a year by a network that was trained on the other years."""
    case, task = data.without(year), Task("monsoon", ["rain"], ["rain"], [24])
    members, truth = case.members.movedim(0, 1)[:, :, None].float(), case.truth[:, None].float()
    starts = torch.tensor([int(np.datetime64(f"{1991 + k}-06-01", "s").astype(int)) for k in range(len(truth))])
    members, truth = data.on_the_grid(members).nan_to_num(), data.on_the_grid(truth)

    def cases(years: Tensor) -> Cases:
        return Cases(task, data.grid, members[years], truth[years], starts[years])

    corrector, test = train_network(cases(case.train), recipe, 0), cases(torch.tensor([year])).batch
    with torch.no_grad():
        score = corrector(test).crps(test.target)[0, 0, data.land]
    return float((score * case.std).mean())


@pytest.mark.parametrize("network", ["networks.mlp.MLP", "published.lenet.LeNet", "networks.unet.UNet"])
def test_rain_of_the_south_asian_monsoon_does_no_harm(samples, network, request, record_property):
    """From 29 years no network learns that the ensemble has hardly any skill; the default baseline and EMOS know it."""
    everything = request.config.getoption("all_years")
    data, years = Monsoon(samples), YEARS if everything else SOME[::3]
    model = {"_target_": f"models.{network}"}
    from_raw, from_climate, from_emos = (
        float(np.mean([monsoon_score(data, MONSOON._replace(model=model | start), year) for year in years]))
        for start in ({}, {"baseline": "climate"}, START)
    )
    climatology = np.mean([data.climatology(year) for year in years])
    assert from_emos < climatology < from_raw
    assert from_climate < climatology
    if everything:
        name = network.split(".")[0]
        record_property(f"monsoon.{name}", from_raw)
        record_property(f"monsoon.{name}_from_climate", from_climate)
        record_property(f"monsoon.{name}_from_emos", from_emos)
