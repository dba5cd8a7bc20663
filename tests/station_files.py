"""Write forecasts and observations of real stations (../shared/data) as CF files, for tests of the commands.

Two of the data sets hold mean and standard deviation of an ensemble of 50 members, not the members. They are written as
50 members with exactly this mean and standard deviation, at equally spaced quantiles of the normal distribution. Models
that read mean and spread only get what they would get from the true members, and the raw score is that of N(mean, sd).
"""

from dataclasses import dataclass, field
from pathlib import Path
from statistics import NormalDist

import numpy as np
import xarray as xr

MEMBERS = 50
SINCE = {"units": "hours since 1990-01-01 00:00:00", "calendar": "standard"}
ZERO = np.datetime64("1990-01-01", "h")


@dataclass
class StationFiles:
    """Forecasts `fields[name]` (start, lead, member, station) and observations `truth` (time, station) of stations.

    `units` are those of each field; `attributes` further ones of a field and its observation. `hours` is the length of
    the interval that the fields cover, 0 for instantaneous fields.
    """

    ids: list[str]
    latitudes: list[float]
    longitudes: list[float]
    altitudes: list[float]
    starts: np.ndarray
    leads: list[int]
    fields: dict[str, np.ndarray]
    units: dict[str, str]
    times: np.ndarray
    target: str
    truth: np.ndarray
    attributes: dict[str, str] = field(default_factory=dict)
    hours: int = 0

    def write(self, folder: Path) -> Path:
        """Write `ensemble.nc` and `analysis.nc` into a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        leads, count = np.array(self.leads), next(iter(self.fields.values())).shape[2]
        forecasts = {
            "start": (self._hours(self.starts), {"standard_name": "forecast_reference_time", **SINCE}),
            "step": (leads, {"standard_name": "forecast_period", "units": "hours"}),
            "number": (np.arange(count), {"standard_name": "realization"}),
        }
        self._write(folder / "ensemble.nc", forecasts, self.fields, "step")
        observations = {"time": (self._hours(self.times), {"standard_name": "time", **SINCE})}
        self._write(folder / "analysis.nc", observations, {self.target: self.truth}, "time")
        return folder

    def _write(self, path, axes, fields, ended):
        """Write fields along axes and stations; `ended` is the axis of the ends of intervals."""
        coordinates = {name: (name, values, attributes) for name, (values, attributes) in axes.items()} | {
            "station_id": ("station", np.array(self.ids, object), {"cf_role": "timeseries_id"}),
            "lat": ("station", self.latitudes, {"standard_name": "latitude", "units": "degrees_north"}),
            "lon": ("station", self.longitudes, {"standard_name": "longitude", "units": "degrees_east"}),
            "alt": ("station", self.altitudes, {"standard_name": "altitude", "units": "m", "positive": "up"}),
        }
        variables = {}
        for name, values in fields.items():
            known = np.where(np.isfinite(values), values, np.nan).astype("f4")
            variables[name] = (*axes, "station"), known, {"units": self.units[name], **self.attributes}
        if self.hours:
            ends = axes[ended][0]
            coordinates[ended][2]["bounds"] = "bounds"
            variables["bounds"] = (ended, "bound"), np.stack([ends - self.hours, ends], 1)
        about = {"Conventions": "CF-1.11", "featureType": "timeSeries"}
        encoding = {name: {"_FillValue": np.float32(-9999)} for name in fields}
        xr.Dataset(variables, coordinates, about).to_netcdf(path, encoding=encoding)

    @staticmethod
    def _hours(times):
        return (times.astype("datetime64[h]") - ZERO).astype(np.int64)


def members_of(mean: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """Return `MEMBERS` members (..., M) with exactly this mean and unbiased standard deviation."""
    normal = NormalDist()
    z = np.array([normal.inv_cdf((k + 0.5) / MEMBERS) for k in range(MEMBERS)])
    return mean[..., None] + spread[..., None] * z / z.std(ddof=1)


def dillingen(samples: Path) -> StationFiles:
    """Temperature at 12 UTC of 2016 to 2020, 24 h ahead, from means and controls of eight variables."""
    import pyreadr

    frame = pyreadr.read_r(samples / "fo_dillingen" / "dillingen_station.RData")["station"]
    times = frame["date"].astype(str).to_numpy().astype("datetime64[h]") + np.timedelta64(12, "h")
    names = {
        "temp": ("t2m", "degC"), "pres": ("sp", "hPa"), "u": ("u10", "m s-1"), "v": ("v10", "m s-1"),
        "wspd": ("wspd", "m s-1"), "wgust": ("wgust", "m s-1"), "tcc": ("tcc", "1"), "sh": ("sh", "g kg-1"),
    }  # fmt: skip
    fields, units = {}, {}
    for own, (name, unit) in names.items():
        mean, spread, control = (frame[f"{own}_{kind}"].to_numpy(np.float64) for kind in ("mean", "sd", "ctrl"))
        fields[name], units[name] = members_of(mean, spread)[:, None, :, None], unit
        fields[f"{name}_ctrl"] = np.repeat(control[:, None, None, None], MEMBERS, 2)
        units[f"{name}_ctrl"] = unit
    row = frame.iloc[0]
    return StationFiles(
        [row["id"]], [row["lat"]], [row["lon"]], [row["elev"]], times - np.timedelta64(24, "h"), [24], fields, units,
        times, "t2m", frame["obs"].to_numpy(np.float64)[:, None],
    )  # fmt: skip


def hannover(samples: Path) -> StationFiles:
    """Temperature of 2015 to 2020, 24 to 120 h ahead; forecasts that the set lacks at its begin are missing."""
    import pyreadr

    frame = pyreadr.read_r(samples / "fo_hannover" / "hannover_station.RData")["station"]
    valid = frame["date"].astype(str).to_numpy().astype("datetime64[h]") + np.timedelta64(12, "h")
    lead = frame["lt"].to_numpy().astype(int)
    start = valid - lead.astype("timedelta64[h]")
    starts, leads, times = np.unique(start), np.unique(lead), np.unique(valid)
    values = np.full((len(starts), len(leads), MEMBERS, 1), np.nan)
    members = members_of(*(frame[name].to_numpy(np.float64) for name in ("t2m_mean", "t2m_sd")))
    values[np.searchsorted(starts, start), np.searchsorted(leads, lead), :, 0] = members
    truth = np.full((len(times), 1), np.nan)
    truth[np.searchsorted(times, valid), 0] = frame["obs"].to_numpy(np.float64)
    row = frame.iloc[0]
    return StationFiles(
        [row["id"]], [row["lat"]], [row["lon"]], [row["elev"]], starts, leads.tolist(), {"t2m": values},
        {"t2m": "degC"}, times, "t2m", truth,
    )  # fmt: skip


def innsbruck(samples: Path) -> StationFiles:
    """Precipitation of three days in mm, 2000 to 2013, 11 members, 5 to 8 days ahead (RainIbk)."""
    import pyreadr

    frame = pyreadr.read_r(samples / "fo_rainibk" / "RainIbk.rda")["RainIbk"]
    times = frame.index.to_numpy().astype("datetime64[D]").astype("datetime64[h]")
    members = frame[[f"rainfc.{k}" for k in range(1, 12)]].to_numpy(np.float64)
    return StationFiles(
        ["11120"], [47.26], [11.38], [578.0], times - np.timedelta64(192, "h"), [192],
        {"tp": members[:, None, :, None]}, {"tp": "mm"}, times, "tp", frame["rain"].to_numpy(np.float64)[:, None],
        {"cell_methods": "time: sum"}, 72,
    )  # fmt: skip
