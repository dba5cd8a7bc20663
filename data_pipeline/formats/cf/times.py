"""Starts, lead times and valid times of the fields of a variable, from its time coordinates.

Start (S), valid time (V) and lead time (L) may each be a dimension, a coordinate along a dimension, or a scalar of the
whole file. Any two of them give the third. A coordinate called `time` is V if there is a coordinate for S, else S if
there is a coordinate `valid_time` or a dimension of lead times. Otherwise a `time` with the CF standard_name `time` is
V.

A statistic over an interval is valid at the end of the interval. Many archives give the middle or the start of the
interval instead. If a file has bounds of lead or valid times, the end of the interval replaces the file's time.

In reforecasts of many years, `time` may be the date of the model version, with another dimension for the year. Valid
times along the dimension of years then give the starts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.common.months import add_months
from data_pipeline.formats.cf.cf_header import Coordinate, DataVariable, Header, Role
from data_pipeline.variables.meaning import INSTANT, UNKNOWN

_CALENDARS = ("standard", "gregorian", "proleptic_gregorian")
_MINUTES_OF = {
    "nanosecond": 1 / 6e10, "microsecond": 1 / 6e7, "millisecond": 1 / 6e4, "second": 1 / 60, "sec": 1 / 60,
    "s": 1 / 60, "minute": 1.0, "min": 1.0, "hour": 60.0, "hr": 60.0, "h": 60.0, "day": 1440.0, "d": 1440.0,
    "week": 10080.0,
}  # fmt: skip
"""Minutes in a unit of time."""


class FieldTimes(NamedTuple):
    """Starts (seconds since 1970), lead times and intervals (minutes) of fields.

    `displaced` counts the fields whose time in the file is not the end of their interval.
    """

    starts: np.ndarray
    leads: np.ndarray
    intervals: np.ndarray
    displaced: int


@dataclass(frozen=True)
class TimeCoordinates:
    """The coordinates of start, valid time and lead time of a variable; each may be None."""

    place: str
    start: Coordinate | None
    valid: Coordinate | None
    lead: Coordinate | None

    @classmethod
    def of(cls, header: Header, data: DataVariable) -> TimeCoordinates:
        """Find the time coordinates of a variable."""
        start, time, valid, lead = (_with_values(header, data, role) for role in ("start", "time", "valid", "lead"))
        place = header.place(data)
        if time and start:
            time, valid = None, valid or time
        elif time and valid:
            time, start = None, time
        elif time and lead:
            if set(lead.dimensions) - set(time.dimensions):
                time, start = None, time
            elif time.attributes.get("standard_name") == "time":
                time, valid = None, time
            elif lead.values is not None and not np.any(lead.values):
                time, start = None, time
            else:
                raise InputError(
                    f"{place}: {time.name} may be the start or the valid time of forecasts; if the producer says that "
                    "it is the start, state it in a copy with "
                    f"ncatted -a standard_name,{time.name},o,c,forecast_reference_time IN OUT; otherwise "
                    "give it the standard_name time"
                )
        valid = valid or time
        if start and valid and lead and {*valid.dimensions} - {*start.dimensions, *lead.dimensions}:
            start = None  # valid times have one more dimension, such as the years of reforecasts
        return cls(place, start, valid, lead)

    @property
    def coordinates(self) -> list[Coordinate]:
        """The time coordinates that the variable has."""
        return [coordinate for coordinate in (self.start, self.valid, self.lead) if coordinate]

    @property
    def has_leads(self) -> bool:
        """Whether start and lead time are both known; otherwise the fields are analyses."""
        return len(self.coordinates) > 1

    @property
    def has_intervals(self) -> bool:
        """Whether the file states intervals that are longer than 0."""
        cells = [c.bounds.values for c in (self.lead, self.valid) if c and c.bounds]
        return any(values is not None and (values[..., 0] != values[..., 1]).any() for values in cells)

    def decode(self, data: DataVariable, outer: tuple[str, ...], instant: bool = True) -> FieldTimes:
        """Return the times of all fields. Instantaneous fields have the interval 0; their bounds are ignored.

        Fields with a single time coordinate are analyses: lead time 0, start = valid time.
        """
        start, lead = self._decode(self.start, data, outer), self._decode(self.lead, data, outer)
        valid = self._decode(self.valid, data, outer) if start is None or lead is None else None
        if start is not None and lead is not None:
            starts, leads = start, lead
        elif start is not None and valid is not None:
            starts, leads = start, _whole_minutes(valid - start)
        elif (times := start if start is not None else valid) is not None:
            starts, leads = (times, 0 * times) if lead is None else (times - 60 * lead, lead)
        else:
            raise InputError(f"{self.place} has no time; add it, for instance with cdo setdate,YYYY-MM-DD")
        if instant or not self.has_intervals:
            return FieldTimes(starts, leads, np.full(len(starts), INSTANT if instant else UNKNOWN), 0)
        return self._at_ends(starts, leads, data, outer)

    def _at_ends(self, starts: np.ndarray, leads: np.ndarray, data: DataVariable, outer: tuple[str, ...]) -> FieldTimes:
        """Return the times with the end of each interval as its valid time."""
        coordinate = self.lead if self.lead and self.lead.bounds else self.valid
        sides = np.array([self._decode(coordinate, data, outer, side) for side in (0, 1)])
        begins, ends = sides.min(axis=0), sides.max(axis=0)
        if coordinate is self.lead:
            return FieldTimes(starts, ends, ends - begins, int((ends != leads).sum()))
        intervals = _whole_minutes(ends - begins)
        if not self.has_leads:
            return FieldTimes(ends, leads, intervals, int((ends != starts).sum()))
        return FieldTimes(starts, _whole_minutes(ends - starts), intervals, int((ends != starts + 60 * leads).sum()))

    def _decode(
        self, coordinate: Coordinate | None, data: DataVariable, outer: tuple[str, ...], side: int | None = None
    ) -> np.ndarray | None:
        """Return the value of a coordinate, or one `side` of its bounds, for each field; None if it has no values."""
        decode = decode_lead_times if coordinate is self.lead else decode_times
        shown = coordinate.bounds if coordinate and side is not None else coordinate
        if coordinate is None or shown is None or shown.values is None:
            return None
        values = shown.values if side is None else shown.values[..., side]
        if coordinate is self.lead and _is_month(str(shown.attributes.get("units", ""))) and self.start:
            place, starts = f"{self.place}: {shown.name}", self._decode(self.start, data, outer)
            months = data.broadcast(coordinate, _whole_months(values, place), outer)
            assert starts is not None
            return (_months_later(starts, months, place) - starts) // 60
        return data.broadcast(coordinate, decode(values, shown.attributes, f"{self.place}: {shown.name}"), outer)


def _with_values(header: Header, data: DataVariable, role: Role) -> Coordinate | None:
    """Return the coordinate with this role; None if there is none or it has no values."""
    coordinate = header.coordinate(data, role)
    return coordinate if coordinate and coordinate.values is not None else None


def _whole_minutes(seconds: np.ndarray) -> np.ndarray:
    """Return durations in minutes; `UNKNOWN` (-1) where a duration is not a whole number of minutes."""
    return np.where(seconds % 60 == 0, seconds // 60, UNKNOWN)


def decode_times(values: np.ndarray, attributes: Mapping[str, object], place: str) -> np.ndarray:
    """Return dates as seconds since 1970-01-01, int64; `place` is the coordinate's name in error messages."""
    units = str(attributes.get("units", ""))
    calendar = str(attributes.get("calendar", "standard")).lower()
    unit, since, date = units.partition(" since ")
    if not since:
        raise InputError(
            f"{place} has the units {units or 'no units'!r}, not days, hours, minutes or seconds since a date; "
            "convert it, for instance with cdo -r copy"
        )
    if _is_month(unit):  # twelve of them are a year in every calendar
        begin = decode_times(np.zeros(1), {"units": f"days since {date}"}, place)
        return _months_later(begin, _whole_months(values, place), place)
    if _minutes_in(unit) is None:
        raise InputError(
            f"{place} has the units {units!r}, and a {unit.strip().rstrip('s')} has no fixed length; convert it to "
            "days or hours since a date, for instance with cdo settaxis"
        )
    if calendar not in _CALENDARS:
        raise InputError(
            f"{place} has the calendar {calendar!r}, whose dates do not match real weather; only if its days "
            "are real ones, cdo setcalendar,standard IN OUT keeps the dates"
        )
    if not np.isfinite(values.astype(float)).all():
        raise InputError(f"{place} has missing values; every field needs a time")
    # Imported here because the catalogs of all formats import this module, and few files need this decoding.
    from netCDF4 import num2date

    try:
        dates = num2date(values, units, calendar, only_use_cftime_datetimes=False, only_use_python_datetimes=True)
        times = np.array(dates, "datetime64[us]")
    except (ValueError, OverflowError, TypeError) as error:
        raise InputError(f"{place} has the units {units!r}, which cannot be decoded ({error}); correct them") from None
    return np.round(times.astype(np.int64) / 1e6).astype(np.int64)


def _is_month(unit: str) -> bool:
    return unit.strip().lower() in ("month", "months")


def _whole_months(values: np.ndarray, place: str) -> np.ndarray:
    """Return numbers of months, which must be whole."""
    if not (np.isfinite(values.astype(float)).all() and (values == np.round(values)).all()):
        raise InputError(
            f"{place} counts parts of months, and a month has no fixed length; convert it to days or hours since a "
            "date, for instance with cdo settaxis"
        )
    return values.astype(np.int64)


def _months_later(seconds: np.ndarray, months: np.ndarray, place: str) -> np.ndarray:
    """Return dates that are whole months later."""
    try:
        return add_months(seconds, months)
    except ValueError as error:
        raise InputError(f"{place} counts months, and {error}; convert it to days or hours") from None


def decode_lead_times(values: np.ndarray, attributes: Mapping[str, object], place: str) -> np.ndarray:
    """Return lead times in minutes, int64; `values` without units are hours. `place` is the name in error messages."""
    units = str(attributes.get("units", "hours"))
    factor = _minutes_in(units)
    if factor is None:
        raise InputError(
            f"{place} has the units {units!r}; convert lead times to days, hours, minutes or seconds, for instance "
            f"with ncap2 and ncatted of NCO"
        )
    if not np.isfinite(values.astype(float)).all():
        raise InputError(f"{place} has missing values; every field needs a lead time")
    spans = values.astype(np.float64) * factor
    rounded = np.round(spans)
    if (abs(spans - rounded) > 5e-3).any():
        raise InputError(f"{place} has lead times that are not whole minutes; select others")
    return rounded.astype(np.int64)


def _minutes_in(unit: str) -> float | None:
    return _MINUTES_OF.get(re.sub(r"(?<=..)s$", "", unit.strip().lower()))
