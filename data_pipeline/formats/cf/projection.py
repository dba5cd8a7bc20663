"""Latitudes and longitudes of the cells of a projected grid, from its projection coordinates and `grid_mapping`.

Projections are inverted here, because forecasts on them are often published without the positions of their cells. The
package pyproj would invert all, but the PROJ libraries of pyproj and ecCodes crash in one process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.formats.cf.cf_header import Coordinate
from data_pipeline.grids.conformal import Conformal

_EARTH_RADIUS = 6_371_229.0
"""Radius (m) of the sphere of most weather models, for files that state no ellipsoid."""
_METRES = {"m": 1.0, "meter": 1.0, "metre": 1.0, "meters": 1.0, "metres": 1.0, "km": 1000.0}
_DEGREES = {"degrees": 1.0, "degree": 1.0, "degrees_north": 1.0, "degrees_east": 1.0}
_STRAIGHT = "straight_vertical_longitude_from_pole"
_EASTWARD = ("projection_x_coordinate", "grid_longitude")

Degrees = tuple[np.ndarray, np.ndarray]
"""Latitudes and longitudes."""


def is_eastward(coordinate: Coordinate) -> bool:
    """Return whether a projection coordinate increases along columns (eastward) rather than along rows."""
    attributes = coordinate.attributes
    if "standard_name" in attributes:
        return attributes["standard_name"] in _EASTWARD
    return str(attributes.get("axis", "")) == "X" or coordinate.name.lower().startswith(("x", "rlon", "lon"))


def unproject(mapping: Mapping[str, Any], y: Coordinate, x: Coordinate) -> Degrees:
    """Return latitude and longitude (H, W) of each cell of a grid with the projection coordinates y (H,) and x (W,).

    `mapping` holds the attributes of the file's grid mapping (CF conventions, appendix F).
    """
    name = str(mapping.get("grid_mapping_name", "unknown"))
    if name not in _INVERSES:
        raise InputError(
            f"it is on a grid of the projection {name} ({y.name} and {x.name}) without the positions of its cells; add "
            "latitudes and longitudes of all cells as variables along both dimensions"
        )
    inverse, factors = _INVERSES[name]
    rows, columns = (_values(coordinate, factors) for coordinate in (y, x))
    try:
        return inverse(mapping, rows[:, None], columns[None, :])
    except KeyError as missing:
        raise InputError(f"its grid mapping {name} lacks the attribute {missing}; add it") from None


def from_rotated_pole(mapping: Mapping[str, Any], latitude: np.ndarray, longitude: np.ndarray) -> Degrees:
    """Return positions of points from their rotated coordinates; `mapping` gives the rotated north pole."""
    pole, pole_longitude = np.radians(float(mapping["grid_north_pole_latitude"])), mapping["grid_north_pole_longitude"]
    lat = np.radians(latitude)
    lon = np.radians(longitude - float(mapping.get("north_pole_grid_longitude", 0.0)))
    # Rotate the unit vector of each point about an axis in the equator that brings the rotated pole to its latitude.
    along, across, up = np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat) + 0 * lon
    north = np.sin(pole) * up + np.cos(pole) * along
    towards = np.sin(pole) * along - np.cos(pole) * up
    east = np.degrees(np.arctan2(across, towards)) + float(pole_longitude) + 180
    return np.degrees(np.arcsin(north.clip(-1, 1))), (east + 180) % 360 - 180


def from_lambert_equal_area(mapping: Mapping[str, Any], y: np.ndarray, x: np.ndarray) -> Degrees:
    """Return positions of points (m) of the Lambert azimuthal equal-area projection (Snyder 1987, pages 187 to 190)."""
    radius, e2 = _ellipsoid(mapping)
    origin = np.radians(float(mapping["latitude_of_projection_origin"]))
    y = y - float(mapping.get("false_northing", 0.0))
    x = x - float(mapping.get("false_easting", 0.0))
    area_of_pole = _authalic(np.pi / 2, e2)
    middle = np.arcsin(_authalic(origin, e2) / area_of_pole)  # authalic latitude of the origin
    authalic_radius = radius * np.sqrt(area_of_pole / 2)
    at_pole = np.cos(origin) < 1e-9
    stretch = (
        1.0
        if at_pole
        else radius * np.cos(origin) / np.sqrt(1 - e2 * np.sin(origin) ** 2) / (authalic_radius * np.cos(middle))
    )
    x, y = x / stretch, y * stretch
    distance = np.hypot(x, y)
    angle = 2 * np.arcsin((distance / (2 * authalic_radius)).clip(0, 1))
    ratio = np.divide(y, distance, out=np.zeros_like(distance), where=distance > 0)
    beta = np.arcsin((np.cos(angle) * np.sin(middle) + ratio * np.sin(angle) * np.cos(middle)).clip(-1, 1))
    east = np.arctan2(x * np.sin(angle), distance * np.cos(middle) * np.cos(angle) - y * np.sin(middle) * np.sin(angle))
    latitude = (
        beta
        + (e2 / 3 + 31 * e2**2 / 180 + 517 * e2**3 / 5040) * np.sin(2 * beta)
        + (23 * e2**2 / 360 + 251 * e2**3 / 3780) * np.sin(4 * beta)
        + 761 * e2**3 / 45360 * np.sin(6 * beta)
    )
    longitude = np.degrees(east) + float(mapping["longitude_of_projection_origin"])
    return np.degrees(latitude), (longitude + 180) % 360 - 180


def from_conformal(mapping: Mapping[str, Any], y: np.ndarray, x: np.ndarray) -> Degrees:
    """Return positions of points (m) of Lambert's conformal, the polar stereographic and Mercator's projection."""
    kind, earth = mapping["grid_mapping_name"], _ellipsoid(mapping)
    parallels = np.atleast_1d(mapping.get("standard_parallel", ())).astype(float).tolist()
    if not parallels and float(mapping.get("scale_factor_at_projection_origin", 1)) != 1:
        raise InputError(f"its grid mapping {kind} has a scale factor in place of a standard parallel; add positions")
    north = 0.0
    if kind == "lambert_conformal_conic":
        origin = float(mapping["latitude_of_projection_origin"])
        first, second = (parallels * 2 or [origin] * 2)[:2]
        projection = Conformal.lambert(*earth, float(mapping["longitude_of_central_meridian"]), first, second)
        north = float(projection.project(np.array(origin), np.array(projection.meridian))[1])
    elif kind == "mercator":
        meridian = float(mapping["longitude_of_projection_origin"])
        projection = Conformal.mercator(*earth, meridian, *(parallels or [0.0]))
    else:
        pole, meridian = (float(mapping[name]) for name in ("latitude_of_projection_origin", _STRAIGHT))
        projection = Conformal.stereographic(*earth, meridian, *(parallels or [pole]))
    y, x = np.broadcast_arrays(y - float(mapping.get("false_northing", 0)), x - float(mapping.get("false_easting", 0)))
    return projection.positions(x, y + north)


_CONFORMAL = ("lambert_conformal_conic", "polar_stereographic", "mercator")
_INVERSES: dict[str, tuple[Callable[[Mapping[str, Any], np.ndarray, np.ndarray], Degrees], dict[str, float]]] = {
    "rotated_latitude_longitude": (from_rotated_pole, _DEGREES),
    "lambert_azimuthal_equal_area": (from_lambert_equal_area, _METRES),
    **dict.fromkeys(_CONFORMAL, (from_conformal, _METRES)),
}
"""For each grid mapping, its inverse and the factors that convert the coordinates to the inverse's units."""


def _values(coordinate: Coordinate, factors: Mapping[str, float]) -> np.ndarray:
    units = str(coordinate.attributes.get("units", ""))
    if coordinate.values is None or units not in factors:
        raise InputError(
            f"its projection coordinate {coordinate.name} has the units {units!r}, not {' or '.join(factors)}; add "
            "latitudes and longitudes of all cells as variables along both dimensions"
        )
    return coordinate.values.astype(np.float64) * factors[units]


def _ellipsoid(mapping: Mapping[str, Any]) -> tuple[float, float]:
    """Return the semi-major axis (m) of the Earth, and its eccentricity squared."""
    major = float(mapping.get("semi_major_axis", mapping.get("earth_radius", _EARTH_RADIUS)))
    if "semi_minor_axis" in mapping:
        return major, 1 - (float(mapping["semi_minor_axis"]) / major) ** 2
    if float(mapping.get("inverse_flattening", 0.0)) > 0:
        flattening = 1 / float(mapping["inverse_flattening"])
        return major, flattening * (2 - flattening)
    return major, 0.0


def _authalic(latitude: float, e2: float) -> float:
    """Return the area between the equator and a latitude, divided by π a² (Snyder's q)."""
    sine = float(np.sin(latitude))
    if e2 < 1e-12:
        return 2 * sine
    e = e2**0.5
    ends = np.log((1 - e * sine) / (1 + e * sine)) / (2 * e)
    return float((1 - e2) * (sine / (1 - e2 * sine**2) - ends))
