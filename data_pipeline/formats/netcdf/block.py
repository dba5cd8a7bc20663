"""The fields of one variable of one file: which time, member and level each field belongs to."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.formats.netcdf.coordinates import NO_WHOLE_LEVEL, Horizontal, levels_of
from data_pipeline.formats.netcdf.header import Coordinate, DataVariable, Header
from data_pipeline.formats.netcdf.times import TimeCoordinates
from data_pipeline.formats.netcdf.variables import Conversion, NameMap, find_conversion, normalize_units
from data_pipeline.parameters import PARAMETERS
from data_pipeline.task import Variable

_REMAP = (
    "only regular latitude-longitude and Gaussian grids are read; interpolate to one of them first, for instance with "
    "cdo remapbil"
)


@dataclass(frozen=True)
class RefusedVariable:
    """A variable that cannot be read, and the reason."""

    short_name: str
    reason: str


@dataclass(frozen=True, eq=False)
class FieldBlock:
    """The fields of a variable, in the file's order along its `outer` dimensions: all but latitude and longitude.

    `across` are the dimensions of rows and columns. `levels` (hPa) and `numbers` (members) have one entry per field.
    """

    header: Header
    data: DataVariable
    short_name: str
    outer: tuple[str, ...]
    across: tuple[str, str]
    levels: np.ndarray
    numbers: np.ndarray
    time: TimeCoordinates
    horizontal: Horizontal

    @classmethod
    def of(cls, header: Header, data: DataVariable, names: NameMap) -> FieldBlock | RefusedVariable | None:
        """Interpret a variable; None if it has no latitudes and longitudes."""
        found = _latitude_longitude(header, data)
        if found is None:
            return None
        short_name = data.name
        try:
            height = None if header.coordinates_of(data, "level") else _height(header, data)
            short_name = names.short_name(data.name, data.attributes, height)
            Variable(short_name)
            if isinstance(found, str):
                raise InputError(f"{short_name}: the grid is {found}; {_REMAP}")
            latitude, longitude = found
            horizontal = Horizontal.of(_degrees(latitude), _degrees(longitude))
            across = (latitude.dimensions[0], longitude.dimensions[0])
            outer = tuple(name for name in data.dimensions if name not in across)
            levels = levels_of(header, data, outer, short_name, names.given(data.name))
            time = TimeCoordinates.of(header, data)
            _refuse_other_dimensions(header, data, outer, time)
            numbers = _numbers(header, data, outer)
            return cls(header, data, short_name, outer, across, levels, numbers, time, horizontal)
        except InputError as error:
            place = header.place(data)
            return RefusedVariable(short_name, str(error) if str(error).startswith(place) else f"{place}: {error}")

    def __str__(self) -> str:
        return self.header.place(self.data)

    @cached_property
    def variables(self) -> tuple[Variable | None, ...]:
        """The different variables of the fields; None for fields whose pressure is not a whole number of hPa."""
        found = np.unique(self.levels).tolist()
        return tuple(None if level == NO_WHOLE_LEVEL else Variable(self.short_name, level) for level in found)

    @cached_property
    def times(self) -> tuple[np.ndarray, np.ndarray]:
        """Starts (seconds since 1970) and lead times (minutes) of the fields."""
        return self.time.decode(self.data, self.outer)

    @cached_property
    def conversion(self) -> Conversion:
        """The conversion from the file's units to GRIB's; an `InputError` if it is unknown."""
        if self.short_name not in PARAMETERS:
            return Conversion()
        wanted = PARAMETERS[self.short_name].units
        own = self.data.attributes.get("units")
        if own is None and normalize_units(wanted) != "1":
            raise InputError(
                f"{self} has no units, GRIB has {self.short_name} in {wanted}; add them, for instance with "
                f'ncatted -a units,{self.data.name},o,c,"{wanted}"'
            )
        found = find_conversion(str(own or ""), wanted, str(self.data.attributes.get("standard_name", "")))
        if found is None:
            raise InputError(
                f"{self} is in {own!r}, GRIB has {self.short_name} in {wanted}; convert it or correct its units, for "
                f'instance with ncatted -a units,{self.data.name},o,c,"{wanted}"'
            )
        return found

    @property
    def units_and_long_name(self) -> tuple[str, str]:
        """Units and long name: GRIB's for a known parameter, else the file's."""
        if self.short_name in PARAMETERS:
            return PARAMETERS[self.short_name].units, PARAMETERS[self.short_name].long_name
        attributes = self.data.attributes
        return str(attributes.get("units", "unknown")), str(attributes.get("long_name", self.data.name))


def _latitude_longitude(header: Header, data: DataVariable) -> tuple[Coordinate, Coordinate] | str | None:
    """Return latitudes and longitudes of a variable, or the name of an unsupported grid; None without coordinates."""
    mapping = header.mappings.get(str(data.attributes.get("grid_mapping", "")).partition(":")[0].strip())
    if mapping not in (None, "latitude_longitude") and len(data.dimensions) > 1:
        return mapping
    if projected := [c for c in header.coordinates_of(data, "projected") if c.dimensions]:
        return f"a projection ({' and '.join(c.name for c in projected)})"
    both = [[c for c in header.coordinates_of(data, role) if c.dimensions] for role in ("latitude", "longitude")]
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
            f"its dimension {coordinate.name} has no coordinate variable; add it, for instance with cdo setgrid"
        )
    return coordinate.values


def _height(header: Header, data: DataVariable) -> float | None:
    """Return the height of a variable above the ground (m) if the file has a scalar height, else None."""
    values = [
        c.values for c in header.coordinates_of(data, "height") if c.values is not None and c.values.dtype.kind in "fiu"
    ]
    return float(values[0].item()) if len(values) == 1 and values[0].size == 1 else None


def _numbers(header: Header, data: DataVariable, outer: tuple[str, ...]) -> np.ndarray:
    """Return the member of each field: 0 without a member dimension, 1, 2, 3... if members have no numbers."""
    size = dict(zip(data.dimensions, data.shape, strict=True))
    member = header.coordinate(data, "number")
    if member is None:
        return np.zeros(int(np.prod([size[name] for name in outer], dtype=np.int64)), np.int64)
    if member.values is None:
        return data.broadcast(member, np.arange(1, size[member.name] + 1), outer)
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
        raise InputError(
            f"its members ({member.name}) must have whole numbers from 0, got {values.ravel()[:3].tolist()}"
        )
    return data.broadcast(member, values.astype(np.int64), outer)


def _refuse_other_dimensions(header: Header, data: DataVariable, outer: tuple[str, ...], time: TimeCoordinates) -> None:
    """Raise an `InputError` if a dimension of more than one value is neither time, member nor level."""
    understood = [*time.coordinates, header.coordinate(data, "level"), header.coordinate(data, "number")]
    counted = {name for coordinate in understood if coordinate for name in coordinate.dimensions}
    for name, size in zip(data.dimensions, data.shape, strict=True):
        if name in outer and name not in counted and size > 1:
            raise InputError(
                f"its dimension {name} ({size} values) is not recognised as time, member, pressure, latitude or "
                f"longitude; select one value, for instance with ncks -d {name},0, or add its coordinate"
            )
