"""Rain of the South Asian monsoon, forecast by CCSM4: 30 years with hardly any skill, where models must do no harm."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import xarray as xr

from data_pipeline.grid import Grid
from models.distribution import Ensemble

YEARS = range(30)
SOME = YEARS[2::9]
"""Years that are left out in turn; the option `--all-years` leaves out all thirty in turn and records the scores."""


class Case(NamedTuple):
    """All years as departures from the mean of the training years, in units of their standard deviation."""

    train: torch.Tensor
    """Indices of the training years."""
    members: torch.Tensor
    """(10, 30, K)"""
    truth: torch.Tensor
    """(30, K)"""
    mean: torch.Tensor
    """Mean of the truth, (K,)."""
    std: torch.Tensor
    model_std: torch.Tensor
    """Standard deviation of the ensemble mean."""


class Monsoon:
    """Rain from June to September, forecast on 1 May of 30 years by CCSM4, in boxes of one degree that are half land.

    Each year is the test year in turn.
    """

    def __init__(self, folder: Path) -> None:
        folder = folder / "nc_nmme_ccsm4_chirps"
        with xr.open_dataset(folder / "CCSM4.PRCP.nc", decode_times=False) as dataset:
            members = dataset["prec"].values[:, 0, :, ::-1].astype(np.float64)
            self.grid = Grid(dataset["Y"].values[::-1].tolist(), dataset["X"].values.tolist())
        with xr.open_dataset(folder / "UCSB.PRCP.nc", decode_times=False) as dataset:
            rain = dataset["prcp"].values[0].astype(np.float64)
        rain = np.pad(rain, ((0, 0), (2, 2), (2, 2)), constant_values=np.nan).reshape(30, 36, 4, 41, 4)[:, ::-1]
        known = np.isfinite(rain)
        self.land = torch.from_numpy((known.sum((2, 4)) >= 8).all(0))
        self.truth = torch.from_numpy(np.where(known, rain, 0).sum((2, 4)) / known.sum((2, 4)).clip(1))[:, self.land]
        self.members = torch.from_numpy(members.copy())[:, :, self.land].movedim(1, 0)

    def without(self, year: int) -> Case:
        """Return all years as departures from the mean of the other years."""
        train = torch.tensor([other for other in YEARS if other != year])
        model = self.members.mean(0)[train]
        members = (self.members - model.mean(0)) / model.std(0)
        mean, std = self.truth[train].mean(0), self.truth[train].std(0)
        return Case(train, members, (self.truth - mean) / std, mean, std, model.std(0))

    def climatology(self, year: int) -> float:
        """CRPS in mm of the other years as an ensemble."""
        return float(Ensemble(self.truth[[other for other in YEARS if other != year]]).crps(self.truth[year]).mean())

    def on_the_grid(self, values: torch.Tensor) -> torch.Tensor:
        """Values (..., K) of the boxes on the whole grid, NaN at sea."""
        field = values.new_full((*values.shape[:-1], *self.grid.shape), torch.nan)
        field[..., self.land] = values
        return field
