"""Header of a CF file, NetCDF or Zarr: its data variables, its coordinates, and the role of each coordinate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.common.files import FileAddress
from data_pipeline.formats.levels import AXIS_STANDARD_NAMES

Role = Literal[
    "start", "time", "valid", "lead", "number", "level", "height", "latitude", "longitude", "projected", "altitude",
    "model_altitude", "station", "quantile", "vertical",
]  # fmt: skip
"""What a coordinate means. `time` is the start or the valid time of a forecast: see `times.TimeCoordinates`.

`vertical` is any vertical axis other than pressure and height.
"""

_ROLE_OF_STANDARD_NAME: dict[str, Role] = {
    "forecast_reference_time": "start", "time": "time", "forecast_period": "lead", "realization": "number",
    **dict.fromkeys(AXIS_STANDARD_NAMES, "vertical"),
    "air_pressure": "level", "height": "height", "latitude": "latitude", "longitude": "longitude",
    "grid_latitude": "projected", "grid_longitude": "projected", "projection_x_coordinate": "projected",
    "projection_y_coordinate": "projected", "projection_x_angular_coordinate": "projected",
    "projection_y_angular_coordinate": "projected", "altitude": "altitude", "surface_altitude": "altitude",
}  # fmt: skip
_NORTH_UNITS = ("degrees_north", "degree_north", "degree_N", "degrees_N", "degreeN", "degreesN")
_EAST_UNITS = ("degrees_east", "degree_east", "degree_E", "degrees_E", "degreeE", "degreesE")
_PRESSURE_UNITS = (
    "hPa", "Pa", "mb", "mbar", "millibar", "millibars", "hectopascal", "hectopascals", "pascal", "pascals",
)  # fmt: skip

_USUAL_NAMES: dict[Role, tuple[str, ...]] = {
    "start": (
        "forecast_reference_time", "init_time", "initial_time", "initialization_time", "reference_time", "reftime",
        "forecast_time0", "base_time", "basetime", "init", "start_time", "start", "S",
    ),
    "time": ("time", "t", "T"),
    "valid": ("valid_time", "validtime", "valid"),
    "lead": (
        "step", "lead_time", "leadtime", "lead", "forecast_period", "forecast_step", "forecast_hour", "fcst_hour",
        "prediction_timedelta", "L",
    ),
    "number": (
        "number", "realization", "realisation", "member", "members", "ensemble", "ensemble_member", "ens", "sample",
        "M",
    ),
    "level": ("level", "lev", "plev", "isobaricInhPa", "isobaricInPa", "pressure", "pressure_level", "p", "levels"),
    "height": ("height", "heightAboveGround", "surface", "meanSea"),
    "vertical": (
        "depth", "depthBelowLand", "depthBelowLandLayer", "depthBelowSea", "depthBelowSeaLayer", "generalVertical",
        "generalVerticalLayer", "heightAboveGroundLayer", "heightAboveSea", "hybrid", "hybridLayer", "isobaricLayer",
        "maxWind", "model_level", "potentialVorticity", "pressureFromGroundLayer", "sigma", "sigmaLayer", "soilLayer",
        "theta", "tropopause",
    ),
    "latitude": ("latitude", "lat", "latitudes", "lats", "nlat", "station_latitude", "Y", "y"),
    "longitude": ("longitude", "lon", "longitudes", "lons", "long", "nlon", "station_longitude", "X", "x"),
    "altitude": ("altitude", "alt", "elevation", "station_altitude"),
    "model_altitude": ("model_altitude", "model_orography", "model_elevation"),
    "station": ("station", "stations", "station_id", "wmo_id"),
    "quantile": ("quantile", "quantiles", "quantile_level", "percentile", "percentiles"),
}  # fmt: skip
"""Usual names of coordinates. Names of one letter are case-sensitive, longer names are not."""

_ROLE_OF_NAME = {name: role for role, names in _USUAL_NAMES.items() for name in names}
_ROLE_OF_LOWER_NAME = {name.lower(): role for name, role in _ROLE_OF_NAME.items() if len(name) > 1}


class CFFile(Protocol):
    """A file, folder or URL that holds variables."""

    @property
    def path(self) -> FileAddress:
        """The address of the file, for messages."""

    def stored_fields(self, data: DataVariable, outer: tuple[str, ...]) -> np.ndarray | None:
        """Return a mask (n,) of the fields along the `outer` dimensions whose values exist; None if all exist."""


@dataclass(frozen=True, eq=False)
class StoredVariable:
    """A variable as stored in a file; `values()` reads it, `kind` is `numpy.dtype.kind` of its values."""

    dimensions: tuple[str, ...]
    shape: tuple[int, ...]
    kind: str
    attributes: Mapping[str, Any]
    values: Callable[[], np.ndarray]


@dataclass(frozen=True, eq=False)
class Coordinate:
    """A coordinate of any number of dimensions; `values` is None for a dimension without a coordinate variable.

    `bounds` holds the limits (..., 2) of the intervals of a time coordinate, or None.
    """

    name: str
    role: Role
    dimensions: tuple[str, ...]
    values: np.ndarray | None
    attributes: Mapping[str, Any]
    bounds: Coordinate | None = None


@dataclass(frozen=True, eq=False)
class DataVariable:
    """A variable that is not a coordinate."""

    name: str
    dimensions: tuple[str, ...]
    shape: tuple[int, ...]
    attributes: Mapping[str, Any]

    @property
    def coordinate_names(self) -> tuple[str, ...]:
        """The names in the variable's attribute `coordinates`."""
        return tuple(str(self.attributes.get("coordinates", "")).split())

    def sizes(self, dimensions: Iterable[str]) -> tuple[int, ...]:
        """Return the sizes of some of its dimensions."""
        return tuple(self.shape[self.dimensions.index(name)] for name in dimensions)

    def broadcast(self, coordinate: Coordinate, values: np.ndarray, outer: tuple[str, ...]) -> np.ndarray:
        """Return `values` of a coordinate for each field of this variable along its `outer` dimensions, (n,)."""
        sizes = self.sizes(outer)
        order = [coordinate.dimensions.index(name) for name in outer if name in coordinate.dimensions]
        shape = [size if name in coordinate.dimensions else 1 for name, size in zip(outer, sizes, strict=True)]
        return np.broadcast_to(values.transpose(order).reshape(shape), sizes).ravel()


@dataclass(frozen=True, eq=False)
class Header:
    """Coordinates and numeric variables of one file, without bounds and grid mappings."""

    file: CFFile
    coordinates: tuple[Coordinate, ...]
    variables: tuple[DataVariable, ...]
    mappings: Mapping[str, Mapping[str, Any]]
    """The attributes of each grid mapping."""

    @classmethod
    def of(cls, file: CFFile, dimensions: Iterable[str], variables: Mapping[str, StoredVariable]) -> Header:
        """Sort the variables of a file into coordinates and data, and read the values of coordinates."""
        helpers = {
            str(stored.attributes[key])
            for stored in variables.values()
            for key in ("bounds", "climatology", "grid_mapping", "formula_terms")
            if key in stored.attributes
        }
        texts = [str(stored.attributes.get("coordinates", "")) for stored in variables.values()]
        listed = {name for text in texts for name in text.split()}
        coordinates: list[Coordinate] = []
        for name, stored in variables.items():
            if name not in helpers and (role := _coordinate_role(name, stored, variables, name in listed)):
                bounds = _bounds(stored, role, variables)
                values = stored.values()
                coordinates.append(Coordinate(name, role, stored.dimensions, values, stored.attributes, bounds))
        known = {coordinate.name for coordinate in coordinates}
        of_dimensions = {c.dimensions for c in coordinates}
        dimensions = tuple(dimensions)
        for name in dimensions:
            if (name,) not in of_dimensions and name not in variables and (role := role_of(name, {})):
                coordinates.append(Coordinate(name, role, (name,), None, {}))
        data = [
            DataVariable(name, stored.dimensions, stored.shape, stored.attributes)
            for name, stored in variables.items()
            if name not in known | helpers and name not in dimensions and stored.kind in "fiu"
        ]
        mappings = {name: one.attributes for name, one in variables.items() if "grid_mapping_name" in one.attributes}
        return cls(file, tuple(coordinates), tuple(data), mappings)

    def place(self, data: DataVariable) -> str:
        """Return `PATH (VARIABLE)`, for messages."""
        return f"{self.file.path} ({data.name})"

    def coordinate(self, data: DataVariable, role: Role) -> Coordinate | None:
        """Return the variable's coordinate with this role, or None; several such coordinates raise an `InputError`."""
        found = self.coordinates_of(data, role)
        if len(found) > 1:
            raise InputError(
                f"{self.place(data)}: {' and '.join(c.name for c in found)} could each be its {role}; list one in "
                f"its attribute coordinates, or remove the others, for instance with ncks -C -x -v {found[1].name}"
            )
        return found[0] if found else None

    def coordinates_of(self, data: DataVariable, role: Role) -> list[Coordinate]:
        """Return the variable's coordinates with this role.

        Of several, dimension coordinates take precedence, then coordinates in the variable's attribute `coordinates`.
        """
        found = [c for c in self.coordinates if c.role == role and set(c.dimensions) <= set(data.dimensions)]
        if any(c.values is not None for c in found):
            found = [c for c in found if c.values is not None]
        for preferred in (lambda c: c.dimensions == (c.name,), lambda c: c.name in data.coordinate_names):
            if len(found) > 1 and (chosen := [c for c in found if preferred(c)]):
                found = chosen
        return found

    def vertical_axes(self, data: DataVariable) -> list[Coordinate]:
        """Return the variable's vertical coordinates other than pressure.

        A scalar coordinate that other variables list in their attribute `coordinates` does not belong to a variable
        that does not list it.
        """
        listed = {name for each in self.variables for name in each.coordinate_names}
        return [
            axis
            for axis in (*self.coordinates_of(data, "height"), *self.coordinates_of(data, "vertical"))
            if axis.dimensions or axis.name in data.coordinate_names or axis.name not in listed
        ]


def _bounds(stored: StoredVariable, role: Role, variables: Mapping[str, StoredVariable]) -> Coordinate | None:
    """Return the bounds of a time coordinate, or None. Attributes that the bounds lack are the coordinate's."""
    name = str(stored.attributes.get("bounds") or stored.attributes.get("climatology") or "")
    if role not in ("time", "valid", "lead") or name not in variables or variables[name].shape != (*stored.shape, 2):
        return None
    found = variables[name]
    return Coordinate(name, role, found.dimensions, found.values(), {**stored.attributes, **found.attributes})


def _coordinate_role(
    name: str, stored: StoredVariable, variables: Mapping[str, StoredVariable], listed: bool
) -> Role | None:
    """Return the role of a variable, or None if it is not a coordinate.

    A coordinate has the name of its dimension. Otherwise it has at most two dimensions, and either its attributes give
    its role or a variable lists it in the attribute `coordinates` (`listed`). Valid times may have more dimensions.
    """
    role = role_of(name, stored.attributes)
    if role in ("altitude", "model_altitude", "station"):
        return role if len(stored.dimensions) < 2 else None
    if stored.dimensions == (name,) or role is None:
        return role
    if role == "vertical":
        return role if not stored.dimensions else None
    count = len(stored.dimensions)
    if not (stored.attributes.keys() & {"standard_name", "units", "axis"} or count == 0 or listed):
        return None
    if count > 2 and named_role(name) != "valid":
        return None
    if count == 2 and role not in ("latitude", "longitude", "time", "valid", "lead"):
        return None
    across = {role_of(d, variables[d].attributes if d in variables else {}) for d in stored.dimensions}
    return None if len(across & {"latitude", "longitude"}) == 2 and role not in ("latitude", "longitude") else role


def named_role(name: str) -> Role | None:
    """Return the role that the usual name of a coordinate stands for."""
    return _ROLE_OF_NAME.get(name) or _ROLE_OF_LOWER_NAME.get(name.lower())


def role_of(name: str, attributes: Mapping[str, object]) -> Role | None:
    """Return the role of a coordinate by its standard_name, else units or axis, else name; None if unknown."""
    if attributes.get("cf_role") == "timeseries_id":
        return "station"
    standard_name = str(attributes.get("standard_name", ""))
    named = named_role(name)
    if standard_name == "time" and named == "start":
        return "start"  # files give any kind of time this standard_name; a name such as init_time is more specific
    if named == "model_altitude":
        return named  # its standard_name is often that of the station's altitude
    if standard_name in _ROLE_OF_STANDARD_NAME:
        return _ROLE_OF_STANDARD_NAME[standard_name]
    units = str(attributes.get("units", ""))
    if units in _NORTH_UNITS:
        return "latitude"
    if units in _EAST_UNITS:
        return "longitude"
    axis = str(attributes.get("axis", ""))
    if units in _PRESSURE_UNITS:
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
