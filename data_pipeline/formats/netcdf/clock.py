"""Clock: when the fields of a variable start and are valid, however the file says so.

Starts (S), times of validity (V) and lead times (L) may each be a dimension, stand beside one, or be there once for the
whole file. Any two of them make the third. A coordinate called `time` is S beside a dimension of lead times or a
`valid_time`, and V beside S; CF's standard_name `time` means V where the lead time is no dimension of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.formats.netcdf.header import Coordinate, Entry, Header
from data_pipeline.formats.netcdf.roles import Role
from data_pipeline.formats.netcdf.times import minutes, seconds

Decode = Callable[[np.ndarray, Mapping[str, Any], str], np.ndarray]


@dataclass(frozen=True)
class Clock:
    """The coordinates that tell starts, times of validity and lead times; at most one of these is None, or all."""

    place: str
    start: Coordinate | None
    valid: Coordinate | None
    lead: Coordinate | None

    @classmethod
    def of(cls, header: Header, entry: Entry) -> Clock:
        """Find out which coordinate of a variable tells what."""
        start, time, valid, lead = (_counted(header, entry, role) for role in ("start", "time", "valid", "lead"))
        place = header.place(entry)
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
                    f"{place}: {time.name} may tell when forecasts start or when they are valid; give it the "
                    "standard_name forecast_reference_time or time, for instance with "
                    f"ncatted -a standard_name,{time.name},o,c,forecast_reference_time"
                )
        return cls(place, start, valid or time, lead)

    @property
    def coordinates(self) -> list[Coordinate]:
        """Those that there are."""
        return [coordinate for coordinate in (self.start, self.valid, self.lead) if coordinate]

    @property
    def forecasts(self) -> bool:
        """Whether it is known when the forecasts started and how long they run."""
        return len(self.coordinates) > 1

    def times(self, entry: Entry, outer: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Return starts (seconds since 1970) and lead times (minutes) of all fields.

        Where there is but one kind of time, the fields are analyses: they start when they are valid.
        """
        start, lead = self._read(self.start, seconds, entry, outer), self._read(self.lead, minutes, entry, outer)
        if start is not None and lead is not None:
            return start, lead
        valid = self._read(self.valid, seconds, entry, outer)
        if start is not None and valid is not None:
            span = valid - start
            return start, np.where(span % 60 == 0, span // 60, -1)
        times = start if start is not None else valid
        if times is None:
            raise InputError(f"{self.place} says nothing of the time; add it, for instance with cdo setdate,YYYY-MM-DD")
        return (times, 0 * times) if lead is None else (times - 60 * lead, lead)

    def _read(
        self, coordinate: Coordinate | None, decode: Decode, entry: Entry, outer: tuple[str, ...]
    ) -> np.ndarray | None:
        if coordinate is None or coordinate.values is None:
            return None
        place = f"{self.place}: {coordinate.name}"
        return entry.spread(coordinate, decode(coordinate.values, coordinate.attributes, place), outer)


def _counted(header: Header, entry: Entry, role: Role) -> Coordinate | None:
    """Return the coordinate of a role; None also for a dimension of that name without values."""
    coordinate = header.only(entry, role)
    return coordinate if coordinate and coordinate.values is not None else None
