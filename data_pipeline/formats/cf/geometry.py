"""Positions of a variable's cells: on a regular grid, at stations, or on a curvilinear or projected grid.

Stations follow chapter 9 of the CF conventions (discrete sampling geometries) with orthogonal arrays: all stations
share their times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.formats.cf.cf_header import Coordinate, DataVariable, Header, Role, named_role
from data_pipeline.formats.cf.coordinates import Horizontal
from data_pipeline.formats.cf.projection import is_eastward, unproject
from data_pipeline.grids.points import Points
from data_pipeline.variables.units import normalize_units

_OF_FIELDS: tuple[Role, ...] = ("start", "time", "valid", "lead", "number", "level")
_METRES = {"m": 1.0, "km": 1000.0}
_Pair = tuple[Coordinate, Coordinate]


@dataclass(frozen=True, eq=False)
class Geometry:
    """The coordinates of a variable's cells: latitudes `y` and longitudes `x`, or coordinates of a projection.

    `y` and `x` have one dimension each (a regular grid), the same dimensions (points), or none (a single point).
    `mapping` holds the attributes of the projection.
    """

    y: Coordinate
    x: Coordinate
    mapping: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, header: Header, data: DataVariable) -> Geometry | None:
        """Find the coordinates of a variable; None if it has no positions."""
        name = str(data.attributes.get("grid_mapping", "")).partition(":")[0].strip()
        mapping = header.mappings.get(name, {})
        regular, paired = _latitude_longitude(header, data)
        if mapping.get("grid_mapping_name", "latitude_longitude") == "latitude_longitude":
            mapping = {}
        if regular and not mapping:
            return cls(*regular)
        if paired:
            return cls(*paired)
        projected = [c for c in header.coordinates_of(data, "projected") if len(c.dimensions) == 1]
        if len(projected) == 2:
            y, x = sorted(projected, key=is_eastward)
            return cls(y, x, mapping)
        if mapping and len(data.dimensions) > 1:
            raise InputError(
                f"it is on the grid {mapping['grid_mapping_name']}, whose coordinates are missing; add latitudes and "
                "longitudes of all cells, for instance with cdo"
            )
        return None

    @property
    def dimensions(self) -> tuple[str, ...]:
        """The dimensions of the cells: rows and columns, or the dimensions of the points."""
        return tuple(dict.fromkeys((*self.y.dimensions, *self.x.dimensions)))

    def horizontal(self, header: Header, data: DataVariable) -> Horizontal:
        """Return the grid or the points, and their order in the file."""
        if self.y.dimensions != self.x.dimensions and self.mapping is None:
            return Horizontal.of(_degrees(self.y), _degrees(self.x))
        latitudes, longitudes = self._positions()
        if not (np.isfinite(latitudes).all() and np.isfinite(longitudes).all()):
            raise InputError("its latitudes or longitudes have missing values; replace them first")
        further: dict[str, Any] = {}
        if len(self.dimensions) < 2:
            self._refuse_shared_dimension(header, data)
            further = {
                "altitudes": self._altitudes(header, "altitude"),
                "ids": self._ids(header, data),
                "model_altitudes": self._altitudes(header, "model_altitude"),
            }
        points = Points(tuple(latitudes.ravel()), tuple(longitudes.ravel()), **further)
        columns = latitudes.shape[1] if latitudes.ndim > 1 else 1
        return Horizontal(points, False, np.arange(columns), len(points.latitudes) // columns)

    def _positions(self) -> tuple[np.ndarray, np.ndarray]:
        """Return latitude and longitude of each point, in the order of `dimensions`."""
        if self.mapping is None:
            return _degrees(self.y), _degrees(self.x)
        return unproject(self.mapping, self.y, self.x)

    def _refuse_shared_dimension(self, header: Header, data: DataVariable) -> None:
        """Raise `InputError` if times, members or levels lie along the dimension of the points."""
        for role in _OF_FIELDS:
            for other in header.coordinates_of(data, role):
                if shared := set(other.dimensions) & set(self.dimensions):
                    raise InputError(
                        f"its {other.name} and its positions share the dimension {shared.pop()}; only stations that do "
                        "not move and have the same times are read: write it as an array (time, station), for instance "
                        "with xarray"
                    )

    def _altitudes(self, header: Header, role: Role) -> tuple[float, ...]:
        """Return the altitude of each point (m), or that of its cell in the model; empty if one is unknown."""
        for coordinate in self._along(header, role):
            factor = _METRES.get(normalize_units(str(coordinate.attributes.get("units", "m"))))
            if factor is None:
                raise InputError(f"its altitudes ({coordinate.name}) are in {coordinate.attributes['units']}, not in m")
            values = np.atleast_1d(_values(coordinate)).astype(np.float64) * factor
            return tuple(values) if np.isfinite(values).all() else ()
        return ()

    def _ids(self, header: Header, data: DataVariable) -> tuple[str, ...]:
        """Return the ids of the points, empty if there are none.

        They are the values of the coordinate with `cf_role = "timeseries_id"`, else of another station coordinate.
        """
        found = self._along(header, "station")
        found.sort(key=lambda c: (c.attributes.get("cf_role") != "timeseries_id", c.dimensions != (c.name,)))
        for coordinate in found:
            values = np.atleast_1d(_values(coordinate)).tolist()
            if coordinate.attributes.get("cf_role") != "timeseries_id" and _is_numbering(values):
                continue
            return tuple(str(value).strip() for value in values)
        return ()

    def _along(self, header: Header, role: Role) -> list[Coordinate]:
        return [
            c for c in header.coordinates if c.role == role and c.dimensions == self.dimensions and c.values is not None
        ]


def _latitude_longitude(header: Header, data: DataVariable) -> tuple[_Pair | None, _Pair | None]:
    """Return two pairs of latitude and longitude, or None for each: axes of a regular grid, and positions of cells."""
    own: list[list[Coordinate]] = []
    for role in ("latitude", "longitude"):
        dimensions = set(data.dimensions)
        own.append([c for c in header.coordinates if c.role == role and set(c.dimensions) <= dimensions])
    pairs = [(y, x) for y in own[0] for x in own[1] if y.dimensions == x.dimensions]
    pairs = [pair for pair in pairs if pair[0].values is not None and pair[1].values is not None]
    most = max((len(y.dimensions) for y, _ in pairs), default=0)
    pairs = [pair for pair in pairs if len(pair[0].dimensions) == most]
    if named := [pair for pair in pairs if {c.name for c in pair} <= {*data.coordinate_names}]:
        pairs = named
    if usual := [pair for pair in pairs if all(named_role(c.name) == c.role for c in pair)]:
        pairs = usual
    if len(pairs) > 1:
        raise InputError(
            f"{' and '.join(y.name for y, _ in pairs)} could each be its latitudes; list one, and its longitudes, in "
            "its attribute coordinates"
        )
    axes = [
        [c for c in header.coordinates_of(data, role) if len(c.dimensions) == 1] for role in ("latitude", "longitude")
    ]
    regular = (axes[0][0], axes[1][0]) if all(axes) and axes[0][0].dimensions != axes[1][0].dimensions else None
    # If each cell has a latitude and a longitude, axes called y and x may be mere row and column numbers.
    if regular and most == 2 and not all(c.attributes.keys() & {"units", "standard_name"} for c in regular):
        regular = None
    return regular, pairs[0] if pairs else None


def _values(coordinate: Coordinate) -> np.ndarray:
    if coordinate.values is None:
        raise InputError(
            f"its dimension {coordinate.name} has no coordinate variable; add it, for instance with cdo setgrid"
        )
    return coordinate.values


def _degrees(coordinate: Coordinate) -> np.ndarray:
    values, units = _values(coordinate).astype(np.float64), str(coordinate.attributes.get("units", ""))
    if units in ("radian", "radians", "rad"):
        return np.degrees(values)
    if units and not units.lower().startswith("deg"):
        raise InputError(f"its {coordinate.name} is in {units!r}, not in degrees or radians; convert it")
    return values


def _is_numbering(values: list) -> bool:
    """Whether the values are 0, 1, 2... or 1, 2, 3...: numbers of a dimension, not ids of stations."""
    return values in ([*range(len(values))], [*range(1, len(values) + 1)])
