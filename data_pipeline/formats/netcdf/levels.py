"""Levels: on which pressure surfaces the fields of a variable lie, in hPa."""

from __future__ import annotations

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.formats.netcdf.header import Coordinate, Entry, Header
from data_pipeline.formats.netcdf.names import ALOFT, surface_only
from data_pipeline.formats.netcdf.units import canonical
from data_pipeline.task import Variable

SURFACE, NAMELESS = 0, -1
"""Fields at the surface, and fields on no whole number of hPa."""
HIGHEST = 1100


def levels_of(
    header: Header, entry: Entry, outer: tuple[str, ...], short_name: str, said: Variable | None
) -> np.ndarray:
    """Return the level of each field of a variable along its `outer` dimensions.

    A level that the user has said belongs to variables on one level. Parameters that have no level, such as 2t, are
    at the surface whatever single level stands beside them.
    """
    size = dict(zip(entry.dimensions, entry.shape, strict=True))
    fields = int(np.prod([size[name] for name in outer], dtype=np.int64))
    coordinate = header.only(entry, "level")
    if coordinate is None:
        return np.full(fields, said.level if said else SURFACE)
    if _says_nothing(coordinate, short_name):
        return np.full(fields, said.level if said else SURFACE)
    found = _hectopascals(coordinate, header.place(entry))
    if surface_only(short_name):
        raise InputError(
            f"{header.place(entry)}: {short_name} lies at the surface but has {found.size} levels along "
            f"{coordinate.name}; choose one, for instance with ncks -d {coordinate.name},0"
        )
    if said and said.level and (found.size > 1 or found.item() != said.level):
        raise InputError(
            f"{header.place(entry)} has its levels along {coordinate.name}; write "
            f"data.archive.names={{{entry.name}: {said.name}}}"
        )
    return entry.spread(coordinate, found, outer)


def _says_nothing(coordinate: Coordinate, short_name: str) -> bool:
    """Whether a single level does not concern a variable.

    It stands in many files beside fields at the surface: next to variables that have no level, or without units.
    """
    single = coordinate.values is not None and coordinate.values.size == 1
    return single and (surface_only(short_name) or (short_name not in ALOFT and "units" not in coordinate.attributes))


def _hectopascals(coordinate: Coordinate, place: str) -> np.ndarray:
    """Return whole hPa; without units, values up to 1100 are hPa and others Pa, but 1, 2, 3... are no pressures."""
    values, units = coordinate.values, canonical(str(coordinate.attributes.get("units", "")))
    if values is None or values.dtype.kind not in "fiu":
        raise InputError(f"{place}: {coordinate.name} has no pressures; write them, for instance with cdo setzaxis")
    values = values.astype(np.float64)
    if units not in ("hPa", "Pa"):
        if values.size > 1 and (values.ravel() == np.arange(1, values.size + 1)).all():
            raise InputError(
                f"{place}: {coordinate.name} counts model levels, which are not read; interpolate to pressure first, "
                "for instance with cdo ml2pl, or give it the units hPa"
            )
        units = "hPa" if values.max() <= HIGHEST else "Pa"
    pressure = values if units == "hPa" else values / 100
    whole = np.round(pressure)
    named = (abs(pressure - whole) < 1e-3) & (whole >= 1) & (whole <= HIGHEST)
    return np.where(named, whole, NAMELESS).astype(np.int64)
