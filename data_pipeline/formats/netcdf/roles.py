"""Roles: what a coordinate of a NetCDF file counts, by its standard_name, else its units, else its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Role = Literal["start", "time", "valid", "lead", "number", "level", "height", "latitude", "longitude", "projected"]
"""`time` may be the start of a forecast or the time for which it is valid; what stands beside it decides."""

STANDARD_NAMES: dict[str, Role] = {
    "forecast_reference_time": "start", "time": "time", "forecast_period": "lead", "realization": "number",
    "air_pressure": "level", "height": "height", "latitude": "latitude", "longitude": "longitude",
    "grid_latitude": "projected", "grid_longitude": "projected", "projection_x_coordinate": "projected",
    "projection_y_coordinate": "projected", "projection_x_angular_coordinate": "projected",
    "projection_y_angular_coordinate": "projected",
}  # fmt: skip
OTHER_AXES = ("depth", "altitude", "model_level_number", "atmosphere_hybrid_sigma_pressure_coordinate")
"""standard_names of vertical axes that are not read, whatever their name would suggest."""

NORTH = ("degrees_north", "degree_north", "degree_N", "degrees_N", "degreeN", "degreesN")
EAST = ("degrees_east", "degree_east", "degree_E", "degrees_E", "degreeE", "degreesE")
PRESSURE = ("hPa", "Pa", "mb", "mbar", "millibar", "millibars", "hectopascal", "hectopascals", "pascal", "pascals")

NAMES: dict[Role, tuple[str, ...]] = {
    "start": (
        "forecast_reference_time", "init_time", "initial_time", "initialization_time", "reference_time", "reftime",
        "forecast_time0", "base_time", "basetime", "init", "start_time", "S",
    ),
    "time": ("time", "t", "T"),
    "valid": ("valid_time", "validtime", "valid"),
    "lead": (
        "step", "lead_time", "leadtime", "lead", "forecast_period", "forecast_step", "forecast_hour", "fcst_hour",
        "prediction_timedelta", "L",
    ),
    "number": (
        "number", "realization", "realisation", "member", "members", "ensemble", "ensemble_member", "ens", "M",
    ),
    "level": ("level", "lev", "plev", "isobaricInhPa", "isobaricInPa", "pressure", "pressure_level", "p", "levels"),
    "height": ("height", "heightAboveGround", "surface", "meanSea"),
    "latitude": ("latitude", "lat", "latitudes", "lats", "nlat", "Y", "y"),
    "longitude": ("longitude", "lon", "longitudes", "lons", "long", "nlon", "X", "x"),
}  # fmt: skip
"""Usual names, matched with any case where they have more than one letter."""

ROLE_OF = {name: role for role, names in NAMES.items() for name in names}
ANY_CASE = {name.lower(): role for name, role in ROLE_OF.items() if len(name) > 1}


def role_of(name: str, attributes: Mapping[str, object]) -> Role | None:
    """Return what a coordinate counts; None where nothing says so."""
    standard_name = str(attributes.get("standard_name", ""))
    named = ROLE_OF.get(name) or ANY_CASE.get(name.lower())
    if standard_name == "time" and named == "start":
        return "start"  # any point in time may bear that standard_name; such a name is not given by chance
    if standard_name in STANDARD_NAMES:
        return STANDARD_NAMES[standard_name]
    if standard_name in OTHER_AXES:
        return None
    units = str(attributes.get("units", ""))
    if units in NORTH:
        return "latitude"
    if units in EAST:
        return "longitude"
    axis = str(attributes.get("axis", ""))
    if units in PRESSURE:
        return "level" if named == "level" or axis == "Z" or "positive" in attributes else None
    if named == "level" and units:
        return None
    if " since " in units:
        return named if named in ("start", "time", "valid") else "time" if axis == "T" else None
    if named in ("latitude", "longitude") and units and units not in ("degrees", "degree"):
        return "projected"
    if axis == "E":
        return "number"
    return named
