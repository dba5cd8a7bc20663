"""A small archive in NetCDF, one file for each variable, with fields of every kind, and any of its fields left out."""

from itertools import product

import numpy as np
import xarray as xr

from data_pipeline.archive import Archive
from data_pipeline.grid import Grid

GRID = Grid.regular(4, 8)
STARTS = np.datetime64("2020-01-01", "ns") + np.arange(6) * np.timedelta64(1, "D")
LEADS, NUMBERS, LEVELS = (0, 24, 48, 72), (0, 1, 2), (850, 500)
TIMES = np.datetime64("2020-01-01", "ns") + np.arange(8) * np.timedelta64(1, "D")
SPACE = {"latitude": list(GRID.latitudes), "longitude": list(GRID.longitudes)}
SURFACE = {"2t": "K", "msl": "Pa", "sst": "K", "tp": "m"}
ALOFT = {"t": "K", "u": "m s-1", "v": "m s-1"}
STANDARD_NAMES = {
    "init_time": "forecast_reference_time", "lead_time": "forecast_period", "number": "realization",
    "level": "air_pressure", "time": "time",
}  # fmt: skip
INTERVALS = {"ensemble": {"tp": "since_start"}, "analysis": {"tp": "24h"}}


def values(name: str) -> tuple[xr.DataArray, xr.DataArray]:
    """Return all forecasts and all analyses of a variable, in single precision; amounts in two units."""
    random, levels = np.random.default_rng([*name.encode()]), {"level": list(LEVELS)} if name in ALOFT else {}
    outer = {"init_time": STARTS, "lead_time": list(LEADS), "number": list(NUMBERS), **levels}
    found = []
    for axes in (outer, {"time": TIMES, **levels}):
        coordinates = {**axes, **SPACE}
        field = random.normal(280, 5, [len(axis) for axis in coordinates.values()])
        units = UNITS[name]
        if name == "tp" and "lead_time" in axes:
            field, units = 1000 * field.cumsum(1), "kg m-2"
        if name == "sst":  # land
            field[..., :, 5:] = np.nan
        array = xr.DataArray(field.astype("f4"), coordinates, list(coordinates), attrs={"units": units})
        found.append(array)
    return found[0], found[1]


UNITS = SURFACE | ALOFT


def write_archive(folder, gaps=(), names=tuple(UNITS), starts=6, stations=False, **options) -> Archive:
    """Write all fields but those in `gaps`, in as few files as hold them, and static fields.

    With `stations` each cell of the grid is one.
    """
    whole = {"ensemble": {}, "analysis": {}}
    for name in names:
        forecasts, analyses = values(name)
        forecasts, analyses = forecasts[:starts], analyses[: starts + 2]
        mine = {gap[1:] for gap in gaps if gap[0] == name}
        broken = {start for start, lead, _ in mine if lead is not None}
        unknown = {time for time, lead, _ in mine if lead is None}
        if broken:
            _write({name: forecasts[sorted({*range(starts)} - broken)]}, folder / f"ensemble.{name}.nc", stations)
        else:
            whole["ensemble"][name] = forecasts
        for start, member in product(broken, range(len(NUMBERS))):
            there = [lead for lead in range(len(LEADS)) if (start, lead, member) not in mine]
            if there:
                one = {name: forecasts[[start], there, [member]]}
                _write(one, folder / f"ensemble.{name}.{start}.{member}.nc", stations)
        if unknown:
            _write({name: analyses[sorted({*range(starts + 2)} - unknown)]}, folder / f"analysis.{name}.nc", stations)
        else:
            whole["analysis"][name] = analyses
    for part, arrays in whole.items():
        if arrays:
            _write(arrays, folder / f"{part}.nc", stations)
    land = np.broadcast_to(np.arange(8) >= 5, GRID.shape).astype("f4")
    _write({"lsm": xr.DataArray(land, SPACE, [*SPACE], attrs={"units": "1"})}, folder / "static.nc", stations)
    return Archive(
        [f"{folder}/ensemble*"], [f"{folder}/analysis*"], [f"{folder}/static.nc"], intervals=INTERVALS, **options
    )


def _write(arrays, path, stations) -> None:
    dataset = xr.Dataset(arrays)
    if stations:
        dataset = dataset.stack(station=[*SPACE]).reset_index("station")
        names = [f"S{k}" for k in range(dataset.sizes["station"])]
        dataset = dataset.assign_coords(name=("station", names, {"cf_role": "timeseries_id"}))
        for axis, units in zip(SPACE, ("degrees_north", "degrees_east"), strict=True):
            dataset[axis].attrs.update(standard_name=axis, units=units)
        dataset.attrs["featureType"] = "timeSeries"
    for axis in dataset.dims:
        if axis in dataset.coords:
            dataset[axis].attrs["standard_name"] = STANDARD_NAMES.get(axis, axis)
    if "lead_time" in dataset.dims:
        dataset.lead_time.attrs["units"] = "hours"
    if "level" in dataset.dims:
        dataset.level.attrs["units"] = "hPa"
    dataset.to_netcdf(path)
