"""Corrected forecasts and analyses of many days for tests of `monitor`, and the file of their corrector."""

import numpy as np
import torch
import xarray as xr
from forecast_files import write_forecasts
from scipy import stats

from data_pipeline.grid import Grid
from data_pipeline.task import Task
from models.corrector import Corrector

GRID, LEADS, MEMBERS = Grid.regular(13, 12), (24, 48), 5
FIRST = np.datetime64("2020-01-01", "s")
DAY = np.timedelta64(86_400, "s")


def write_corrector(path):
    """Write a corrector that returns the raw ensemble."""
    task = Task("t2m", ["2t"], ["2t"], list(LEADS))
    Corrector(task, GRID, {"_target_": "models.statistical.raw.Raw"}, torch.zeros(3, *GRID.shape)).save(path)
    return path


def truths(days):
    """Analyses (days, H, W) with small errors of their own, which forecasts do not know."""
    rng = np.random.default_rng(11)
    return np.float32(280 + rng.normal(size=(days, *GRID.shape)))


def write_analyses(path, days, wanted=None, units="K", grid=GRID):
    """Write the analyses of the first `days` days, or of the `wanted` ones."""
    values = truths(days)[:, : grid.shape[0]]
    times = (FIRST + np.arange(days) * DAY).astype("datetime64[ns]")
    chosen = list(range(days)) if wanted is None else wanted
    space = {
        "latitude": ("latitude", list(grid.latitudes), {"units": "degrees_north"}),
        "longitude": ("longitude", list(grid.longitudes), {"units": "degrees_east"}),
    }
    attributes = {"units": units, "GRIB_shortName": "2t"}
    data = xr.Dataset({"t2m": (("time", *space), values[chosen], attributes)}, {"time": times[chosen], **space})
    data.to_netcdf(path)
    return path


def write_members(path, days, shift_from=None, shift=1.5):
    """Write calibrated forecasts of the first `days` days; from a day on, they are too warm."""
    rng = np.random.default_rng(12)
    truth = truths(days + 3)
    scores = stats.norm.ppf((np.arange(MEMBERS) + 0.5) / MEMBERS)
    members = np.empty((days, len(LEADS), MEMBERS, *GRID.shape), np.float32)
    for day in range(days):
        for k in range(len(LEADS)):
            error = rng.normal(size=GRID.shape) + (shift if shift_from is not None and day >= shift_from else 0)
            members[day, k] = truth[day + k + 1] + error + scores[rng.permutation(MEMBERS)][:, None, None]
    attributes = {"units": "K", "GRIB_shortName": "2t", "standard_name": "air_temperature"}
    variables = {"t2m": (("number",), members, attributes)}
    further = {"number": ("number", np.arange(MEMBERS))}
    return write_forecasts(path, FIRST + np.arange(days) * DAY, LEADS, GRID, variables, further)
