"""Grid and pressure levels of a variable, from its coordinates."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.formats.cf.cf_header import Coordinate, DataVariable, Header
from data_pipeline.formats.cf.cf_variables import is_surface_only
from data_pipeline.formats.levels import MODEL_LEVELS, axis_level, on_model_level
from data_pipeline.grid import COORDINATE_TOLERANCE, Grid
from data_pipeline.task import Variable
from data_pipeline.variables.parameters import PARAMETERS
from data_pipeline.variables.units import normalize_units

SURFACE, NO_WHOLE_LEVEL = 0, 1 << 30
"""Level of surface fields, and of fields whose pressure is not a whole number of hPa."""
_MAX_LEVEL = 1100
"""Greatest pressure level, hPa."""


@dataclass(frozen=True, eq=False)
class Horizontal:
    """The grid of a variable and the order of its cells in the file.

    `south_first` is true if the file's rows start in the south. `columns` holds the file's column of each grid column;
    `rows` is the number of rows in the file. Points keep the file's order, row by row, and `columns` then holds all
    columns of the file.
    """

    grid: Grid
    south_first: bool
    columns: np.ndarray
    rows: int

    @classmethod
    def of(cls, latitudes: np.ndarray, longitudes: np.ndarray) -> Horizontal:
        """Order coordinates from north to south and from west to east.

        A global grid starts at its first column at or east of 0°; a last column that repeats the first is dropped. Any
        other grid starts after the widest gap between longitudes. Its first longitude is the file's, less 360° if the
        grid would otherwise extend beyond 360°.
        """
        return _ordered(latitudes.astype(np.float64).tobytes(), longitudes.astype(np.float64).tobytes())


@lru_cache(maxsize=64)
def _ordered(latitude_bytes: bytes, longitude_bytes: bytes) -> Horizontal:
    """Order coordinates for `Horizontal.of`; cached, so that thousands of files on one grid order it once."""
    latitudes, longitudes = np.frombuffer(latitude_bytes), np.frombuffer(longitude_bytes)
    if not (np.isfinite(latitudes).all() and np.isfinite(longitudes).all()):
        raise InputError("its latitudes or longitudes have missing values; replace them first")
    steps = np.diff(latitudes)
    if not ((steps > 0).all() or (steps < 0).all()):
        raise InputError("its latitudes neither increase nor decrease monotonically; sort them first")
    south_first = len(steps) > 0 and bool(steps[0] > 0)
    columns, longitudes = _eastward(longitudes)
    grid = Grid(tuple(latitudes[:: -1 if south_first else 1]), tuple(longitudes))
    return Horizontal(grid, south_first, columns, len(latitudes))


def _eastward(longitudes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the columns in eastward order, and their longitudes."""
    around = longitudes % 360
    around[around > 360 - COORDINATE_TOLERANCE] = 0.0
    order = np.argsort(around, kind="stable")
    order = order[np.diff(around[order], prepend=-1) > COORDINATE_TOLERANCE / 10]
    around = around[order]
    gaps = np.diff(around, append=around[0] + 360)
    circle = len(gaps) > 1 and abs(gaps.max() - np.median(gaps)) < np.median(gaps) / 2
    first = 0 if circle else (int(gaps.argmax()) + 1) % len(gaps)
    columns = np.roll(order, -first)
    around = np.concatenate([around[first:], around[:first] + 360])
    shift = 0.0 if circle else 360 * np.round((longitudes[columns[0]] - around[0]) / 360)
    if around[-1] + shift > 360 + COORDINATE_TOLERANCE:
        shift -= 360
    turns = np.round((around + shift - longitudes[columns]) / 360)
    return columns, longitudes[columns] + 360 * turns


def levels_of(
    header: Header, data: DataVariable, outer: tuple[str, ...], short_name: str, given: Variable | None
) -> np.ndarray:
    """Return the pressure level of each field along the `outer` dimensions (hPa), or `SURFACE` or `NO_WHOLE_LEVEL`.

    Numbers of model levels are negative.

    `given` is the user's name for the variable; its level applies to a variable without a level coordinate. A surface
    parameter, such as 2t, is at the surface even if the file gives it a scalar level.
    """
    coordinate = header.coordinate(data, "level")
    axis, numbers = model_levels(header, data)
    if coordinate is None and axis and on_model_level(short_name, "hybrid", 1) != short_name:
        return data.broadcast(axis, -numbers, outer)
    if coordinate is None or _is_irrelevant(coordinate, short_name):
        return np.full(data.sizes(outer), given.level if given else SURFACE).ravel()
    found = _hectopascals(coordinate, header.place(data))
    if is_surface_only(short_name):
        raise InputError(
            f"{header.place(data)}: {short_name} lies at the surface but has {found.size} levels along "
            f"{coordinate.name}; select one, for instance with ncks -d {coordinate.name},0"
        )
    if given and given.level and (found.size > 1 or found.item() != given.level):
        raise InputError(
            f"{header.place(data)} has its levels along {coordinate.name}; write "
            f"data.archive.variable_names={{{data.name}: {given.name}}}"
        )
    return data.broadcast(coordinate, found, outer)


def model_levels(header: Header, data: DataVariable) -> tuple[Coordinate | None, np.ndarray]:
    """Return the axis of model levels of a variable and its whole numbers; None if it has none."""
    for axis in header.vertical_axes(data):
        counted = axis.values is not None and axis.values.dtype.kind in "fiu"
        if counted and axis_level(axis.name, axis.attributes, 1.0)[0] in MODEL_LEVELS:
            values = np.asarray(axis.values)
            if (values >= 1).all() and (values == np.round(values)).all():
                return axis, values.astype(np.int64)
    return None, np.empty(0, np.int64)


def _is_irrelevant(coordinate: Coordinate, short_name: str) -> bool:
    """Whether to ignore a single level: many files give one, often without units, to surface fields."""
    known_levels = short_name in PARAMETERS and PARAMETERS[short_name].has_levels
    single = coordinate.values is not None and coordinate.values.size == 1
    return single and (is_surface_only(short_name) or (not known_levels and "units" not in coordinate.attributes))


def _hectopascals(coordinate: Coordinate, place: str) -> np.ndarray:
    """Return pressures in whole hPa, `NO_WHOLE_LEVEL` where a pressure is not whole.

    Without units, values up to 1100 are hPa and greater values Pa; 1, 2, 3... are refused as model levels.
    """
    values, units = coordinate.values, normalize_units(str(coordinate.attributes.get("units", "")))
    if values is None or values.dtype.kind not in "fiu":
        raise InputError(f"{place}: {coordinate.name} has no pressure values; add them, for instance with cdo setzaxis")
    values = values.astype(np.float64)
    if units not in ("hPa", "Pa"):
        if values.size > 1 and (values.ravel() == np.arange(1, values.size + 1)).all():
            raise InputError(
                f"{place}: {coordinate.name} may count model levels; if so, state it in a copy with ncatted -a "
                f"standard_name,{coordinate.name},o,c,model_level_number IN OUT; levels in hPa have the units hPa"
            )
        units = "hPa" if values.max() <= _MAX_LEVEL else "Pa"
    pressure = values if units == "hPa" else values / 100
    rounded = np.round(pressure)
    valid = (abs(pressure - rounded) < 1e-3) & (rounded >= 1) & (rounded <= _MAX_LEVEL)
    return np.where(valid, rounded, NO_WHOLE_LEVEL).astype(np.int64)
