"""Forecasts in NetCDF files and Zarr stores for tests, written with xarray: independent of the code under test."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import xarray as xr

from data_pipeline.grid import Grid

Values = tuple[Sequence[str], np.ndarray, Mapping[str, object]]


def write_forecasts(
    path: Path,
    starts: np.ndarray,
    leads: Sequence[int],
    grid: Grid,
    variables: Mapping[str, Values],
    further: Mapping[str, Values] | None = None,
) -> Path:
    """Write variables over start, lead time, their own dimensions and the grid; `further` are other coordinates."""
    space = {
        "latitude": ("latitude", list(grid.latitudes), {"units": "degrees_north"}),
        "longitude": ("longitude", list(grid.longitudes), {"units": "degrees_east"}),
    }
    times = {
        "init_time": ("init_time", np.asarray(starts, "datetime64[ns]"), {"standard_name": "forecast_reference_time"}),
        "lead_time": ("lead_time", np.asarray(leads), {"units": "hours", "standard_name": "forecast_period"}),
    }
    arrays = {
        name: (("init_time", "lead_time", *own, *space), np.asarray(values, np.float32), dict(attributes))
        for name, (own, values, attributes) in variables.items()
    }
    data = xr.Dataset(arrays, {**times, **space, **(further or {})})
    if path.suffix == ".zarr":
        data.to_zarr(path, zarr_format=2)
    else:
        data.to_netcdf(path)
    return path
