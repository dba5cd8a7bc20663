"""Corrected forecasts as NetCDF files for other programs: grids for WeatherBench-X and xarray, stations for verif."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from pathlib import Path

import netCDF4
import numpy as np
import torch

from data_pipeline.common.errors import InputError
from data_pipeline.common.files import atomic_path
from data_pipeline.common.progress import watched
from data_pipeline.dataset import ForecastDataset
from data_pipeline.grids.points import Points
from data_pipeline.protocols import Fields
from data_pipeline.sample import Sample
from data_pipeline.variables.meaning import LEVEL_ATTRIBUTE, Meaning
from evaluation.scoring.scoring import Forecaster
from models.device import copy_batch
from models.distribution import Distribution, Ensemble
from models.members.coupling import written_members
from models.members.options import CorrectionOptions
from models.members.past import Past
from models.parallel.mesh import Mesh
from models.provenance.noise import Noise

_DIMENSIONS = ("init_time", "lead_time", "number", "latitude", "longitude")
"""The names that WeatherBench-X expects; `lead_time` is decoded as a time difference."""


def check_writing(option: object, mesh: Mesh) -> Path | None:
    """Return the folder of the option `write_forecasts`, None without it; refuse other values, and several ranks."""
    if option is None:
        return None
    if not isinstance(option, str):
        raise InputError(f"write_forecasts must be the path of a folder, got {option!r}; write a number as ./{option}")
    if mesh.ranks > 1:
        raise InputError(
            f"write_forecasts needs one process, mesh has {mesh.ranks}; run a second command with mesh=[1,1]"
        )
    return Path(option)


@torch.no_grad()
def write_forecasts(
    folder: Path,
    models: Mapping[str, Forecaster],
    forecasts: ForecastDataset,
    options: CorrectionOptions,
    past: Past | None,
    current: Fields | None,
    device: torch.device | str,
    names: Collection[str],
    noise: Mapping[str, Noise],
) -> list[Path]:
    """Write the members that `correct` would write, a file for each of the models `names` and each target.

    On a grid, the array has the dimensions `_DIMENSIONS`. Files of stations also have observations and scores, and
    there is one of the raw ensemble. Starts and lead times that are not scored are NaN.
    """
    task, grid = forecasts.task, forecasts.grid
    stations = grid if isinstance(grid, Points) else None
    names = names if stations is None else ["raw", *names]
    starts, leads = (times.numpy() for times in forecasts.times())
    every = np.unique(starts)
    with ExitStack() as stack:
        arrays: dict[str, list[netCDF4.Variable]] = {}
        paths = []
        for name in names:
            for number, target in enumerate(task.targets):
                ending = "" if len(task.targets) == 1 else "_" + re.sub("[:@-]", "_", str(target))
                paths.append(folder / f"{name}{ending}.nc")
                file = netCDF4.Dataset(stack.enter_context(atomic_path(paths[-1])), "w")
                stack.callback(file.close)
                meaning = forecasts.meanings[task.target_channels[number]]
                if stations is None:
                    array = _define(file, meaning, forecasts, every)
                else:
                    array = _define_stations(file, meaning, forecasts, stations, every)
                arrays.setdefault(name, []).append(array)
        rows = watched(range(len(starts)), "writing forecasts: forecast")
        for row, start, lead in zip(rows, starts, leads, strict=True):
            batch = copy_batch(Sample(*(tensor[None] for tensor in forecasts[row])), device)
            for name in names:
                forecast = models[name](batch)
                members = written_members(forecast, batch, task, grid, options, past, current, noise.get(name))
                values = members.members[:, 0].cpu().numpy()
                place = int(np.searchsorted(every, start)), task.lead_times.index(int(lead))
                for k, array in enumerate(arrays[name]):
                    array[place] = values[:, k] if stations is None else values[:, k, :, 0].T
                    for field, found in _station_fields(forecast, members, batch).items() if stations else ():
                        array.group()[field][place] = found[0, k, :, 0].cpu().numpy()
    return paths


def _define(
    file: netCDF4.Dataset, meaning: Meaning, forecasts: ForecastDataset, starts: np.ndarray
) -> netCDF4.Variable:
    """Define coordinates and the array of one target; return the array."""
    variable, grid = meaning.variable, forecasts.grid
    file.Conventions = "CF-1.8"
    axes = {
        "init_time": (starts, {"standard_name": "forecast_reference_time", "units": "seconds since 1970-01-01"}),
        # xarray decodes numbers of hours as time differences if they state this type.
        "lead_time": (
            np.array(forecasts.task.lead_times),
            {"standard_name": "forecast_period", "units": "hours", "dtype": "timedelta64[ns]"},
        ),
        "number": (np.array(forecasts.numbers), {"standard_name": "realization", "units": "1"}),
        "latitude": (np.array(grid.latitudes), {"standard_name": "latitude", "units": "degrees_north"}),
        "longitude": (np.array(grid.longitudes), {"standard_name": "longitude", "units": "degrees_east"}),
    }
    for name, (values, attributes) in axes.items():
        file.createDimension(name, len(values))
        file.createVariable(name, values.dtype, (name,)).setncatts(attributes)
        file[name][:] = values
    if variable.level:
        file.createVariable("level", "i4", ()).setncatts({"standard_name": "air_pressure", "units": "hPa"})
        file["level"][...] = variable.level
    chunks = (1, 1, *(len(axes[name][0]) for name in _DIMENSIONS[2:]))
    array = file.createVariable(variable.label, "f4", _DIMENSIONS, fill_value=np.float32("nan"), chunksizes=chunks)
    array.setncatts({"units": meaning.units, "long_name": variable.title, "GRIB_shortName": variable.name})
    if meaning.level:
        array.setncattr(LEVEL_ATTRIBUTE, meaning.level)
    if variable.level:
        array.coordinates = "level"
    return array


def _station_fields(forecast: Distribution, members: Ensemble, batch: Sample) -> dict[str, torch.Tensor]:
    """Return the fields (1, T, n, 1) of a file of stations beside its members."""
    truth = batch.target
    found = {"obs": truth, "fcst": members.mean, "crps": members.crps(truth), "pit": forecast.cdf(truth)}
    return {name: torch.where(truth.isnan(), truth, values.to(truth)) for name, values in found.items()}


def _define_stations(
    file: netCDF4.Dataset, meaning: Meaning, forecasts: ForecastDataset, stations: Points, starts: np.ndarray
) -> netCDF4.Variable:
    """Define coordinates and fields as the program verif reads them; return the array of the members."""
    count = len(stations.latitudes)
    ids = stations.ids or tuple(map(str, range(count)))
    # verif reads a station as a 32-bit number; ids that are no such numbers are numbered.
    numbers = [int(name) if name.isdecimal() and len(name) < 10 else -1 for name in ids]
    if -1 in numbers or len(set(numbers)) < count:
        numbers = list(range(count))
    file.setncatts({"Conventions": "verif_1.0.0", "long_name": meaning.variable.title, "units": meaning.units})
    for name, bound in zip(("x0", "x1"), meaning.variable.bounds, strict=True):
        if bound is not None:  # the observation may have a probability of its own there, such as 0 mm of rain
            file.setncattr(name, bound)
    axes = {
        "time": ("time", starts.astype(float), {"units": "seconds since 1970-01-01"}),
        "leadtime": ("leadtime", np.array(forecasts.task.lead_times, float), {"units": "hours"}),
        "location": ("location", np.array(numbers, np.int32), {}),
        "ensemble_member": ("ensemble_member", np.arange(forecasts.members, dtype=np.int32), {}),
        "lat": ("location", np.array(stations.latitudes), {"units": "degrees_north"}),
        "lon": ("location", np.array(stations.longitudes), {"units": "degrees_east"}),
    }
    if stations.altitudes:
        axes["altitude"] = ("location", np.array(stations.altitudes), {"units": "m"})
    for name, (dimension, values, attributes) in axes.items():
        if name == dimension:
            file.createDimension(name, len(values))
        file.createVariable(name, values.dtype, (dimension,)).setncatts(attributes)
        file[name][:] = values
    file.createVariable("station", str, ("location",))[:] = np.array(ids, object)
    dims = ("time", "leadtime", "location")
    for name in ("obs", "fcst", "crps", "pit"):
        file.createVariable(name, "f4", dims, fill_value=np.float32("nan"))
    return file.createVariable("ensemble", "f4", (*dims, "ensemble_member"), fill_value=np.float32("nan"))
