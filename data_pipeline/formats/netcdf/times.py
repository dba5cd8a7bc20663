"""Times: starts, lead times and times of validity as whole numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping

import netCDF4
import numpy as np

from data_pipeline.common.errors import InputError

CALENDARS = ("standard", "gregorian", "proleptic_gregorian")
MINUTES = {
    "nanosecond": 1 / 6e10, "microsecond": 1 / 6e7, "millisecond": 1 / 6e4, "second": 1 / 60, "sec": 1 / 60,
    "s": 1 / 60,
    "minute": 1.0, "min": 1.0, "hour": 60.0, "hr": 60.0, "h": 60.0, "day": 1440.0, "d": 1440.0, "week": 10080.0,
}  # fmt: skip


def seconds(values: np.ndarray, attributes: Mapping[str, object], place: str) -> np.ndarray:
    """Return points in time as seconds since 1970, int64; `place` names the coordinate in errors."""
    units = str(attributes.get("units", ""))
    calendar = str(attributes.get("calendar", "standard")).lower()
    unit, since, _ = units.partition(" since ")
    if not since:
        raise InputError(
            f"{place} counts time in {units or 'no units'!r}, not in days, hours, minutes or seconds since a date; "
            "write it so, for instance with cdo -r copy"
        )
    if _minutes(unit) is None:
        raise InputError(
            f"{place} counts time in {units!r}, and a {unit.strip().rstrip('s')} has no fixed length; write it in days "
            "or hours since a date, for instance with cdo settaxis"
        )
    if calendar not in CALENDARS:
        raise InputError(
            f"{place} has the calendar {calendar!r}, whose dates are not those of real weather; write it in the "
            "standard calendar, for instance with cdo setcalendar,standard"
        )
    if not np.isfinite(values.astype(float)).all():
        raise InputError(f"{place} has missing values; every field needs its time")
    try:
        dates = netCDF4.num2date(
            values, units, calendar, only_use_cftime_datetimes=False, only_use_python_datetimes=True
        )
        times = np.array(dates, "datetime64[us]")
    except (ValueError, OverflowError, TypeError) as error:
        raise InputError(f"{place} counts time in {units!r}, which cannot be decoded ({error}); mend it") from None
    return np.round(times.astype(np.int64) / 1e6).astype(np.int64)


def minutes(values: np.ndarray, attributes: Mapping[str, object], place: str) -> np.ndarray:
    """Return spans of time as minutes, int64; without units they are hours; `place` names the coordinate in errors."""
    units = str(attributes.get("units", "hours"))
    factor = _minutes(units)
    if factor is None:
        raise InputError(
            f"{place} counts lead times in {units!r}; write them in days, hours, minutes or seconds, for instance "
            f"with ncap2 and ncatted of NCO"
        )
    if not np.isfinite(values.astype(float)).all():
        raise InputError(f"{place} has missing values; every field needs its lead time")
    spans = values.astype(np.float64) * factor
    whole = np.round(spans)
    if (abs(spans - whole) > 5e-3).any():
        raise InputError(f"{place} has lead times that are no whole number of minutes; choose others")
    return whole.astype(np.int64)


def _minutes(unit: str) -> float | None:
    return MINUTES.get(re.sub(r"(?<=..)s$", "", unit.strip().lower()))
