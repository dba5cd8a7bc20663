"""Block: one variable of one file, as fields on a grid that belong to times, members and levels."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.formats.netcdf.clock import Clock
from data_pipeline.formats.netcdf.header import Coordinate, Entry, Header
from data_pipeline.formats.netcdf.horizontal import Horizontal
from data_pipeline.formats.netcdf.levels import NAMELESS, levels_of
from data_pipeline.formats.netcdf.names import PARAMETERS, Names
from data_pipeline.formats.netcdf.units import Scale, canonical, scale
from data_pipeline.task import UNITS, Variable

WAY_OUT = (
    "only regular latitude-longitude and Gaussian grids are read, interpolate to one of them first, for instance with "
    "cdo remapbil"
)


@dataclass(frozen=True)
class Refused:
    """A variable that cannot be read, and why."""

    short_name: str
    reason: str


@dataclass(frozen=True, eq=False)
class Block:
    """A variable whose fields are counted along its `outer` dimensions, all but latitude and longitude, in their order.

    `across` are the dimensions of its rows and columns; `levels` says for each field where it lies (hPa), `numbers` to
    which member it belongs.
    """

    header: Header
    entry: Entry
    short_name: str
    outer: tuple[str, ...]
    across: tuple[str, str]
    levels: np.ndarray
    numbers: np.ndarray
    clock: Clock
    horizontal: Horizontal

    @classmethod
    def of(cls, header: Header, entry: Entry, names: Names) -> Block | Refused | None:
        """Understand a variable; None for what does not lie on the globe."""
        found = _geography(header, entry)
        if found is None:
            return None
        short_name = entry.name
        try:
            height = None if header.along(entry, "level") else _height(header, entry)
            short_name = names.short_name(entry.name, entry.attributes, height)
            Variable(short_name)
            if isinstance(found, str):
                raise InputError(f"{short_name}: the grid is {found}; {WAY_OUT}")
            latitude, longitude = found
            horizontal = Horizontal.of(_degrees(latitude), _degrees(longitude))
            across = (latitude.dimensions[0], longitude.dimensions[0])
            outer = tuple(name for name in entry.dimensions if name not in across)
            levels = levels_of(header, entry, outer, short_name, names.said(entry.name))
            clock = Clock.of(header, entry)
            _refuse_other_dimensions(header, entry, outer, clock)
            numbers = _numbers(header, entry, outer)
            return cls(header, entry, short_name, outer, across, levels, numbers, clock, horizontal)
        except InputError as error:
            place = header.place(entry)
            return Refused(short_name, str(error) if str(error).startswith(place) else f"{place}: {error}")

    def __str__(self) -> str:
        return self.header.place(self.entry)

    @cached_property
    def variables(self) -> tuple[Variable | None, ...]:
        """The variables of the fields, each once; None for those on no whole number of hPa."""
        found = np.unique(self.levels).tolist()
        return tuple(None if level == NAMELESS else Variable(self.short_name, level) for level in found)

    @cached_property
    def times(self) -> tuple[np.ndarray, np.ndarray]:
        """Starts (seconds since 1970) and lead times (minutes) of the fields."""
        return self.clock.times(self.entry, self.outer)

    @cached_property
    def scale(self) -> Scale:
        """What makes GRIB's units of the file's; an error where this is not certain."""
        if self.short_name not in UNITS and self.short_name not in PARAMETERS:
            return Scale()
        wanted = PARAMETERS[self.short_name].units if self.short_name in PARAMETERS else UNITS[self.short_name]
        own = self.entry.attributes.get("units")
        if own is None and canonical(wanted) != "1":
            raise InputError(
                f"{self} has no units, GRIB has {self.short_name} in {wanted}; say which they are, for instance with "
                f'ncatted -a units,{self.entry.name},o,c,"{wanted}"'
            )
        found = scale(str(own or ""), wanted, str(self.entry.attributes.get("standard_name", "")))
        if found is None:
            raise InputError(
                f"{self} is in {own!r}, GRIB has {self.short_name} in {wanted}; convert it or mend its units, for "
                f'instance with ncatted -a units,{self.entry.name},o,c,"{wanted}"'
            )
        return found

    @property
    def words(self) -> tuple[str, str]:
        """Units and long name, as GRIB has them where it knows the variable."""
        if self.short_name in PARAMETERS:
            return PARAMETERS[self.short_name].units, PARAMETERS[self.short_name].long_name
        attributes = self.entry.attributes
        return str(attributes.get("units", "unknown")), str(attributes.get("long_name", self.entry.name))


def _geography(header: Header, entry: Entry) -> tuple[Coordinate, Coordinate] | str | None:
    """Return the latitudes and longitudes of a variable; the name of a grid that is not read; None without either."""
    mapping = header.mappings.get(str(entry.attributes.get("grid_mapping", "")).partition(":")[0].strip())
    if mapping not in (None, "latitude_longitude") and len(entry.dimensions) > 1:
        return mapping
    if projected := [c for c in header.along(entry, "projected") if c.dimensions]:
        return f"a projection ({' and '.join(c.name for c in projected)})"
    both = [[c for c in header.along(entry, role) if c.dimensions] for role in ("latitude", "longitude")]
    if not all(both):
        return None
    latitude, longitude = (found[0] for found in both)
    if len(latitude.dimensions) > 1 or len(longitude.dimensions) > 1:
        return f"curvilinear ({latitude.name} has {len(latitude.dimensions)} dimensions)"
    if latitude.dimensions == longitude.dimensions:
        return f"unstructured ({latitude.name} and {longitude.name} along {latitude.dimensions[0]})"
    return latitude, longitude


def _degrees(coordinate: Coordinate) -> np.ndarray:
    if coordinate.values is None:
        raise InputError(
            f"its dimension {coordinate.name} has no coordinate; write its degrees, for instance with cdo setgrid"
        )
    return coordinate.values


def _height(header: Header, entry: Entry) -> float | None:
    """Return the one height above ground (m) at which a variable lies, if the file says so."""
    values = [c.values for c in header.along(entry, "height") if c.values is not None and c.values.dtype.kind in "fiu"]
    return float(values[0].item()) if len(values) == 1 and values[0].size == 1 else None


def _numbers(header: Header, entry: Entry, outer: tuple[str, ...]) -> np.ndarray:
    """Return the member of each field: 0 where there is one forecast only, 1, 2, 3... where members have no number."""
    size = dict(zip(entry.dimensions, entry.shape, strict=True))
    member = header.only(entry, "number")
    if member is None:
        return np.zeros(int(np.prod([size[name] for name in outer], dtype=np.int64)), np.int64)
    if member.values is None:
        return entry.spread(member, np.arange(1, size[member.name] + 1), outer)
    values = member.values
    if values.dtype.kind not in "fiu":
        found = [re.search(r"\d+$", str(value)) for value in values.ravel().tolist()]
        ends = [int(match[0]) if match else None for match in found]
        if values.size == 1 and None in ends:
            ends = [0]
        if None in ends or len(set(ends)) < len(ends):
            raise InputError(
                f"its members ({member.name}) have no numbers; number them, for instance with ncap2 of NCO"
            )
        values = np.array(ends).reshape(values.shape)
    if (values != np.round(values)).any() or (values < 0).any():
        raise InputError(f"its members ({member.name}) must be whole numbers from 0, got {values.ravel()[:3].tolist()}")
    return entry.spread(member, values.astype(np.int64), outer)


def _refuse_other_dimensions(header: Header, entry: Entry, outer: tuple[str, ...], clock: Clock) -> None:
    """Refuse a dimension that is neither time, member nor level, unless there is nothing to choose along it."""
    understood = [*clock.coordinates, header.only(entry, "level"), header.only(entry, "number")]
    counted = {name for coordinate in understood if coordinate for name in coordinate.dimensions}
    for name, size in zip(entry.dimensions, entry.shape, strict=True):
        if name in outer and name not in counted and size > 1:
            raise InputError(
                f"its dimension {name} ({size} values) is neither time, member, pressure nor place, or nothing says "
                f"which; choose one value, for instance with ncks -d {name},0, or write its coordinate"
            )
