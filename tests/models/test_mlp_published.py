"""The MLP on real forecasts of a station, where EMOS has been scored before: `test_emos_published.py`.

A station is a grid of one cell, and an ensemble of which only mean and spread are known is two members.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr
from torch.utils.data import Dataset

from data_pipeline.dataset import static_fields
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.corrector import Corrector
from models.distribution import Normal

pyreadr = pytest.importorskip("pyreadr")
NAMES = ("temp", "pres", "u", "v", "wspd", "wgust", "tcc", "sh")
TASK = Task("dillingen", [*NAMES, *(f"{name}_ctrl" for name in NAMES)], ["temp"], [24])
GRID = Grid((48.5562,), (10.5599,))
MODEL = {"_target_": "models.mlp.MLP", "width": 64, "depth": 1}
EPOCHS, BATCH, RATE, DECAY, SEEDS = 40, 64, 1e-2, 1e-2, 4
"""Chosen among fifteen by the mean score of 2016, 2017, 2018 and 2019, each forecast by networks of the other three."""


class Station(Dataset):
    """Mean, spread and control of eight variables, daily at noon, with the temperature that was observed."""

    def __init__(self, folder: Path, years: range) -> None:
        frame = pyreadr.read_r(folder / "fo_dillingen" / "dillingen_station.RData")["station"].dropna(subset=["obs"])
        dates = frame["date"].astype(str).to_numpy().astype("datetime64[s]")
        chosen = np.isin(dates.astype("datetime64[Y]").astype(int) + 1970, years)

        def columns(ending: str) -> torch.Tensor:
            return torch.from_numpy(frame[[name + ending for name in NAMES]].to_numpy(np.float32)[chosen])

        mean, spread, control = columns("_mean"), columns("_sd"), columns("_ctrl")
        members = [torch.cat([mean + sign * spread / 2**0.5, control], 1) for sign in (-1, 1)]
        self.ensemble = torch.stack(members, 1)[..., None, None]
        self.truth = torch.from_numpy(frame["obs"].to_numpy(np.float32)[chosen])[:, None, None, None]
        self.starts = torch.from_numpy(dates.astype(np.int64)[chosen]) - 12 * 3600
        self.static = static_fields(GRID, TASK, xr.Dataset())

    def __len__(self) -> int:
        return len(self.truth)

    def __getitem__(self, day: int) -> Sample:
        batch = self.batch(slice(day, day + 1))
        return Sample(*(tensor[0] for tensor in batch))

    def batch(self, days: slice | torch.Tensor = slice(None)) -> Sample:
        """Some days, all by default."""
        ensemble = self.ensemble[days]
        return Sample(
            ensemble,
            torch.ones_like(ensemble[:, 0], dtype=torch.bool),
            self.static.expand(len(ensemble), -1, -1, -1),
            self.truth[days],
            self.starts[days],
            torch.full((len(ensemble),), 24),
        )


def trained(data: Station, seed: int) -> Corrector:
    """A corrector of this seed, trained as `deepweather train` does it: AdamW under a one-cycle learning rate."""
    torch.manual_seed(seed)
    corrector = Corrector(TASK, GRID, MODEL, data.static)
    corrector.fit(data, 512)
    everything, steps = corrector.normalizer(data.batch()), EPOCHS * -(-len(data) // BATCH)
    optimizer = torch.optim.AdamW(corrector.model.parameters(), RATE, weight_decay=DECAY)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps)
    for _ in range(EPOCHS):
        for days in torch.randperm(len(data)).split(BATCH):
            sample = Sample(*(tensor[days] for tensor in everything))
            optimizer.zero_grad()
            corrector.model(sample).crps(sample.target).mean().backward()
            optimizer.step()
            cycle.step()
    return corrector.eval()


def test_dillingen_temperature(samples, record_property):
    """24 linear predictors give EMOS 0.828 (same split), mean and spread of the temperature alone 0.885."""
    train, test = Station(samples, range(2016, 2020)), Station(samples, range(2020, 2021))
    assert (len(train), len(test)) == (1455, 366)
    year = test.batch()
    correctors = [trained(train, seed) for seed in range(SEEDS)]
    with torch.no_grad():
        forecasts = [corrector(year) for corrector in correctors]
    alone = [float(forecast.crps(year.target).mean()) for forecast in forecasts]
    # The mean of the networks' quantile functions, which for normal distributions is a normal distribution.
    mu, sigma = (torch.stack([getattr(f, name) for f in forecasts]).mean(0) for name in ("mu", "sigma"))
    together = float(Normal(mu, sigma).crps(year.target).mean())
    record_property("dillingen.mlps", together)
    assert together <= 0.820
    assert together < sum(alone) / SEEDS
