"""Names of dimensions in datasets of xarray that other programs made, and lead times in hours."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from data_pipeline.common.errors import InputError

if TYPE_CHECKING:
    import xarray as xr

DIMENSION_NAMES = {
    "init_time": ("init_time", "forecast_reference_time", "start", "time"),
    "lead_time": ("lead_time", "step", "forecast_period", "prediction_timedelta"),
    "valid_time": ("valid_time", "time"),
    "number": ("number", "realization", "member", "ensemble", "ensemble_member", "sample"),
    "quantile": ("quantile", "percentile", "quantile_level"),
    "level": ("level", "isobaricInhPa", "pressure_level"),
    "latitude": ("latitude", "lat"),
    "longitude": ("longitude", "lon"),
}
"""Accepted names of each dimension, best first. Levels are in hPa."""


def find_dimension(array: xr.DataArray | xr.Dataset, role: str) -> str | None:
    """Return the name that a dimension of `DIMENSION_NAMES` has in an array; None if the array lacks it."""
    return next((name for name in DIMENSION_NAMES[role] if name in array.dims), None)


def whole_hours(leads: xr.DataArray, what: str) -> list[int]:
    """Return lead times in whole hours, from timedeltas or numbers of hours; `what` begins the error.

    >>> import xarray as xr
    >>> whole_hours(xr.DataArray(np.array([6, 12], "timedelta64[h]")), "score")
    [6, 12]
    """
    values = leads.values
    hours = values / np.timedelta64(1, "h") if values.dtype.kind == "m" else values.astype(float)
    if (hours != np.round(hours)).any() or (hours < 0).any() or len(np.unique(hours)) < hours.size:
        raise InputError(f"{what}: lead_time must be different whole hours or timedeltas, got {values[:5]}")
    return [int(hour) for hour in hours.tolist()]
