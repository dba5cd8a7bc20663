"""Weather for files in the layouts of data centres: a truth, and members that are too warm, too wet and too alike.

Every field depends on its name, its times and its member only, so a test computes the fields of a file again without
reading it. The grid is coarse; all else of a layout is as the centre writes it.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import eccodes
import numpy as np
import xarray as xr

LATITUDES = np.arange(90.0, -91.0, -30.0)
LONGITUDES = np.arange(0.0, 360.0, 30.0)
SHAPE = len(LATITUDES), len(LONGITUDES)
MISSING = 9999.0

CENTRES = {"2t": 280.0, "10u": 2.0, "10v": 0.0}
SPREADS = {"2t": 8.0, "10u": 5.0, "10v": 5.0}
ERROR = 0.1
"""Standard deviation of the members' errors, and half of their common error, in multiples of `SPREADS`."""


@dataclass(frozen=True)
class Weather:
    """Instantaneous fields and amounts of rain, (7, 12) or (stations,); amounts are in mm."""

    shape: tuple[int, ...] = SHAPE

    def truth(self, name: str, valid: np.datetime64) -> np.ndarray:
        """The analysis of a variable."""
        return CENTRES[name] + SPREADS[name] * self._normal(name, valid)

    def member(self, name: str, start: np.datetime64, lead: int, number: int) -> np.ndarray:
        """A member's forecast: the truth with a common error of 2 `ERROR` spreads, and an error of its own."""
        likely = self.truth(name, start + np.timedelta64(lead, "h"))
        return likely + ERROR * SPREADS[name] * (2 + 0.5 * self._normal(name, start, lead, number))

    def rain(self, end: np.datetime64, hours: int) -> np.ndarray:
        """The true amount of the `hours` before `end`: a sum of hourly amounts."""
        ends = [end - np.timedelta64(back, "h") for back in range(hours)]
        return sum((np.maximum(self._normal("rain", each), 0) for each in ends), np.zeros(self.shape))

    def rain_of_member(self, start: np.datetime64, begin: int, end: int, number: int) -> np.ndarray:
        """A member's amount between two lead times: one and a half times the truth, and an error in every hour."""
        found = np.zeros(self.shape)
        for lead in range(begin + 1, end + 1):
            valid = start + np.timedelta64(lead, "h")
            found += 1.5 * self.rain(valid, 1) + 0.1 * abs(self._normal("wet", start, lead, number))
        return found

    def _normal(self, *key: object) -> np.ndarray:
        return np.random.default_rng(zlib.crc32(repr(key).encode())).standard_normal(self.shape)


def moments(*dates: str) -> list[np.datetime64]:
    """Return dates as starts."""
    return [np.datetime64(date, "h") for date in dates]


def monthly(first: int, last: int, days: tuple[int, ...] = (1, 15)) -> list[np.datetime64]:
    """Return starts at 00 UTC on some days of every month, from the year `first` to `last`."""
    return moments(*(f"{y}-{m:02}-{d:02}T00" for y in range(first, last + 1) for m in range(1, 13) for d in days))


def date_of(time: np.datetime64) -> int:
    """Return a date as GRIB has it: 20190101."""
    return int(str(time.astype("datetime64[D]")).replace("-", ""))


def message(values: np.ndarray, first_longitude: float = 0.0, **keys: object) -> bytes:
    """Return a message with `keys`, in the order in which they are given; `first_longitude` shifts the columns."""
    columns = np.argsort((LONGITUDES - first_longitude) % 360)
    handle = eccodes.codes_grib_new_from_samples("regular_ll_pl_grib2")
    grid = {
        "Ni": SHAPE[1], "Nj": SHAPE[0], "iDirectionIncrementInDegrees": 30, "jDirectionIncrementInDegrees": 30,
        "latitudeOfFirstGridPointInDegrees": 90, "latitudeOfLastGridPointInDegrees": -90,
        "longitudeOfFirstGridPointInDegrees": LONGITUDES[columns[0]],
        "longitudeOfLastGridPointInDegrees": LONGITUDES[columns[-1]],
    }  # fmt: skip
    for name, value in {**grid, "dataTime": 0, **keys}.items():
        eccodes.codes_set(handle, name, value)
    field = values[:, columns]
    eccodes.codes_set(handle, "missingValue", MISSING)
    eccodes.codes_set(handle, "bitmapPresent", int(np.isnan(field).any()))
    eccodes.codes_set(handle, "bitsPerValue", 16)
    eccodes.codes_set_values(handle, np.where(np.isnan(field), MISSING, field).ravel())
    found = eccodes.codes_get_message(handle)
    eccodes.codes_release(handle)
    return found


class Field(NamedTuple):
    """The keys of a message, as texts, and its values with columns as in `LONGITUDES`."""

    keys: dict[str, str]
    values: np.ndarray


KEYS = ("shortName", "dataDate", "stepRange", "number", "packingType", "units", "class", "expver", "dataType")


def fields_of(path: Path, **wanted: str) -> list[Field]:
    """Return the messages of a file whose keys have the `wanted` values."""
    found = []
    with path.open("rb") as file:
        while (handle := eccodes.codes_grib_new_from_file(file)) is not None:
            keys = {key: eccodes.codes_get_string(handle, key) for key in KEYS if eccodes.codes_is_defined(handle, key)}
            eccodes.codes_set(handle, "missingValue", MISSING)
            values = eccodes.codes_get_values(handle).reshape(SHAPE)
            columns = np.argsort(eccodes.codes_get_array(handle, "longitudes")[: SHAPE[1]] % 360)
            if wanted.items() <= keys.items():
                found.append(Field(keys, np.where(values == MISSING, np.nan, values)[:, columns]))
            eccodes.codes_release(handle)
    return found


ERA5 = {"t2m": (167, "2t", "K", "instant"), "tp": (228, "tp", "m", "accum")}


def write_era5(path: Path, fields: dict[str, dict[np.datetime64, np.ndarray]], step_type: bool = True) -> None:
    """Write analyses by variable and valid time as the Climate Data Store's NetCDF, with `valid_time` and `expver`.

    Without `step_type`, as its daily statistics: attributes do not say that the values are means.
    """
    times = sorted({time for one in fields.values() for time in one})
    arrays = {}
    for name, one in fields.items():
        number, short_name, units, kind = ERA5[name]
        values = np.stack([one.get(time, np.full(SHAPE, np.nan)) for time in times]).astype(np.float32)
        attributes = {"GRIB_paramId": number, "GRIB_shortName": short_name, "units": units, "standard_name": "unknown"}
        attributes |= {"GRIB_stepType": kind} if step_type else {}
        arrays[name] = (("valid_time", "latitude", "longitude"), values, attributes)
    xr.Dataset(
        arrays,
        {
            "valid_time": ("valid_time", np.array(times, "M8[ns]"), {"long_name": "time", "standard_name": "time"}),
            "latitude": ("latitude", LATITUDES, {"units": "degrees_north", "standard_name": "latitude"}),
            "longitude": ("longitude", LONGITUDES, {"units": "degrees_east", "standard_name": "longitude"}),
            "number": ((), 0, {"units": "1", "standard_name": "realization"}),
            "expver": ("valid_time", ["0001"] * len(times)),
        },
        {"Conventions": "CF-1.7", "GRIB_centre": "ecmf"},
    ).to_netcdf(path, encoding={"valid_time": {"units": "seconds since 1970-01-01", "dtype": "i8"}})


def hourly(weather: Weather, end: np.datetime64, hours: int) -> dict[np.datetime64, np.ndarray]:
    """Return ERA5's amounts (m) of each of the `hours` before `end`, by their ends."""
    ends = [end - np.timedelta64(back, "h") for back in range(hours)]
    return {each: weather.rain(each, 1) / 1000 for each in ends}
