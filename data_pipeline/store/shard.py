"""Shard: a NetCDF file of consecutive samples; each sample is one contiguous block of bytes at a known offset.

Any NetCDF tool reads a shard: CF conventions, no compression, no chunks. The NetCDF library writes only the metadata.
Values are written and read directly at offsets in the file: this needs no lock, and a full disk is reported as such.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from data_pipeline.grids.grid_coordinates import grid_coordinates
from data_pipeline.store.store_plan import StorePlan

if TYPE_CHECKING:
    import netCDF4

ENSEMBLE_NAME, TARGET_NAME = "ensemble", "target"
"""Names of the NetCDF variables."""
DIMENSIONS = {ENSEMBLE_NAME: ("sample", "number", "channel"), TARGET_NAME: ("sample", "target_channel")}
"""Dimensions of the NetCDF variables that come before the dimensions of the grid."""
_GRID_ATTRIBUTES = {
    "latitude": {"standard_name": "latitude", "units": "degrees_north"},
    "longitude": {"standard_name": "longitude", "units": "degrees_east"},
    "altitude": {"standard_name": "altitude", "units": "m"},
    "model_altitude": {"long_name": "altitude in the forecast model", "units": "m"},
    "station": {"cf_role": "timeseries_id", "long_name": "id of the station"},
}


def create_shard(path: Path, plan: StorePlan, samples: range) -> dict[str, int]:
    """Create the file of `samples` without their values; return the offsets of `ensemble` and `target`."""
    import h5py
    import netCDF4
    from xarray.backends.netCDF4_ import NETCDF4_PYTHON_LOCK

    # Other threads may write shards, or read NetCDF files: the library is not thread-safe.
    with NETCDF4_PYTHON_LOCK, name_file_in_errors(path), netCDF4.Dataset(path, "w", format="NETCDF4") as file:
        _write_metadata(file, plan, samples)
    with h5py.File(path) as file:
        return {name: file[name].id.get_offset() for name in DIMENSIONS}


@contextmanager
def name_file_in_errors(path: Path) -> Iterator[None]:
    """Turn errors of the NetCDF library into an `OSError` with the file's path, which they lack."""
    try:
        yield
    except RuntimeError as error:
        raise OSError(errno.EIO, str(error), str(path)) from None


def write_at(descriptor: int, values: np.ndarray, offset: int) -> None:
    """Write all of `values` at `offset`."""
    data = np.ascontiguousarray(values).data.cast("B")
    while data:
        count = os.pwrite(descriptor, data, offset)
        data, offset = data[count:], offset + count


def _write_metadata(file: netCDF4.Dataset, plan: StorePlan, samples: range) -> None:
    file.set_fill_off()  # all values are written later
    file.Conventions = "CF-1.11"
    file.title = "Ensemble forecasts with the analyses that verify them, one contiguous block per forecast"
    file.source_fingerprint = plan.fingerprint
    starts, leads = np.array([plan.samples[k] for k in samples], np.int64).T
    since = {"units": "seconds since 1970-01-01 00:00:00", "calendar": "standard"}
    members = plan.ensemble_shape[0]
    pseudo = "pseudo-members m - s/sqrt(2) and m + s/sqrt(2) of the mean m and standard deviation s of the ensemble"
    on_grid = grid_coordinates(plan.grid)
    across = tuple(dict.fromkeys(dimension for dimension, _ in on_grid.values()))
    coordinates = {
        "init_time": ("sample", starts, {"standard_name": "forecast_reference_time", **since}),
        "lead_time": ("sample", leads, {"standard_name": "forecast_period", "units": "hours"}),
        "time": ("sample", starts + 3600 * leads, {"standard_name": "time", **since}),
        "number": (
            "number",
            np.arange(members) if plan.moments else np.array(plan.numbers),
            {"standard_name": "realization", "long_name": pseudo if plan.moments else "member of the ensemble"},
        ),
        **{name: (*values, _GRID_ATTRIBUTES[name]) for name, values in on_grid.items()},
        "channel": ("channel", _texts(plan.channels), {"long_name": "GRIB shortName, @ pressure level in hPa"}),
        "channel_units": ("channel", _texts(m.units for m in plan.meanings), {"long_name": "units of each"}),
        "target_channel": ("target_channel", _texts(plan.targets), {"long_name": "GRIB shortName, @ pressure level"}),
        "target_units": (
            "target_channel",
            _texts(m.units for m in plan.target_meanings),
            {"long_name": "units of each"},
        ),
    }  # fmt: skip
    for name, (dimension, values, attributes) in coordinates.items():
        if dimension not in file.dimensions:
            file.createDimension(dimension, len(values))
        variable = file.createVariable(name, str if values.dtype.kind in "OU" else values.dtype, (dimension,))
        variable.setncatts(attributes)
        variable[:] = values.astype(object) if values.dtype.kind == "U" else values
    further = " ".join(name for name in on_grid if name not in across)
    for name, outer in DIMENSIONS.items():
        nan, dimensions = np.float32(np.nan), (*outer, *across)
        variable = file.createVariable(name, np.float32, dimensions, contiguous=True, fill_value=nan)
        units = "channel_units" if name == ENSEMBLE_NAME else "target_units"
        variable.setncatts(
            {
                "long_name": "forecast" if name == ENSEMBLE_NAME else "verifying analysis",
                "coordinates": f"init_time lead_time time {units} {further}".strip(),
            }
        )
        variable[(0,) * len(dimensions)] = nan  # the library allocates a variable at its first write


def _texts(values: Iterable[object]) -> np.ndarray:
    return np.array([str(value) for value in values], object)
