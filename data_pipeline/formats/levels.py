"""Levels beside pressure: where the fields of a variable lie if its name does not say it, such as `t` on `hybrid 137`.

A level is a text of GRIB's typeOfLevel and its value. It is empty where nothing is stated, or where the name states it:
`2t` is at 2 m, whether a file calls this heightAboveGround 2 or surface 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.formats.catalog import Catalog
from data_pipeline.task import Variable
from data_pipeline.variables.meaning import LEVEL_ATTRIBUTE
from data_pipeline.variables.parameters import MODEL_LEVEL, PARAMETERS
from data_pipeline.variables.units import find_conversion

_NAMED_LEVEL = re.compile(r"(?:^|_)(?:i|mn|mx)?\d|l\d$")
"""Numbers in shortNames that stand for a height or a layer: `2t`, `avg_2t`, `mx2t6`, `i10fg`, `stl1`; not `no2`."""
_WITH_VALUE = re.compile(r"hybrid|sigma|eta|general|theta|potential|height|depth|soil|snow|ice|isobaric|pressureFrom")
"""Beginnings of the typeOfLevel of levels that have a value."""
MODEL_LEVELS = ("hybrid", "hybridHeight", "hybridPressure", "generalVertical", "generalVerticalLayer")
"""Types of model levels, whose number is part of a variable's name."""
_AT_THE_SURFACE = ("lnsp", "z")
"""Fields that ECMWF stores on model level 1, although they lie at the surface."""
_OWN_LEVELS = ("tropopause", "maxWind")
"""Levels without a value that are distinguished for every variable."""
_SURFACES = ("surface", "meanSea", "oceanSurface")

AXIS_STANDARD_NAMES = {
    "height": "heightAboveGround", "depth": "depthBelowLand", "model_level_number": "hybrid",
    "hybrid_sigma_pressure": "hybrid", "atmosphere_hybrid_sigma_pressure_coordinate": "hybrid",
}  # fmt: skip
"""GRIB's typeOfLevel by the standard_name of CF's vertical axes."""
_AXIS_NAMES = {"height": "heightAboveGround", "depth": "depthBelowLand", "model_level": "hybrid"}
GRID_AXES, EARTH_AXES = "the axes of the grid", "the axes of east and north"
"""Directions of vector components in a plane. A regular grid has the same axes everywhere, so they are not stated."""
LEVELS_SHOWN = 4
"""Levels that an error names."""


def states_level(variable: Variable) -> bool:
    """Whether the name of a variable says where it lies: a pressure, a height, or a parameter that has one place.

    A formula does not: it lies where the fields do that it reads.

    >>> [states_level(Variable.parse(name)) for name in ("t@850", "2t", "tp", "stl1", "t", "no2")]
    [True, True, True, True, False, False]
    """
    if type(variable) is not Variable or variable.model_level:
        return False
    known = PARAMETERS.get(variable.name)
    return bool(variable.level or (known and not known.has_levels) or _NAMED_LEVEL.search(variable.name))


def on_model_level(name: str, type_of_level: str, value: float | None) -> str:
    """Return the name of a variable with its model level if it lies on one.

    >>> on_model_level("t", "hybrid", 60.0), on_model_level("lnsp", "hybrid", 1.0), on_model_level("t", "theta", 315)
    ('t_ml60', 'lnsp', 't')
    """
    numbered = type_of_level in MODEL_LEVELS and value and value == int(value)
    numbered = numbered and name not in _AT_THE_SURFACE and not MODEL_LEVEL.search(name)
    return f"{name}_ml{value:.0f}" if numbered else name


def level_text(variable: Variable, type_of_level: str, value: float | None, bottom: float | None = None) -> str:
    """Return the level of a variable in GRIB's words; empty if the name states it, or if it is unknown.

    On a model level, whose number the name states, the level is the type. `bottom` is the other limit of a layer.
    Parameters that only exist at the surface or as one number for a column, such as `tsr`, have many encodings: all are
    `surface`.

    >>> level_text(Variable("t"), "theta", 315), level_text(Variable("tsr"), "nominalTop", 0)
    ('theta 315', 'surface')
    >>> level_text(Variable("t_ml60"), "hybrid", 60)
    'hybrid'
    """
    if variable.model_level:
        return type_of_level
    if states_level(variable) or type_of_level in ("", "unknown") or type_of_level.startswith("isobaricIn"):
        return ""
    if _WITH_VALUE.match(type_of_level):
        if value is None:
            return ""
        if not value and not bottom and type_of_level.startswith(("height", "depth")):
            return "surface"
        kind = re.sub(r"^depthBelow.*", "depth", type_of_level)
        return f"{kind} {value:.6g}" + (f"-{bottom:.6g}" if bottom is not None and bottom != value else "")
    if type_of_level in _SURFACES or not (variable.name in PARAMETERS or type_of_level in _OWN_LEVELS):
        return "surface"
    return type_of_level


def axis_level(name: str, attributes: Mapping[Any, Any], value: float) -> tuple[str, float | None]:
    """Return GRIB's typeOfLevel and the value of a vertical coordinate of one value; the type is empty for any other.

    >>> axis_level("z", {"standard_name": "height", "units": "km"}, 0.08)
    ('heightAboveGround', 80.0)
    """
    kind = AXIS_STANDARD_NAMES.get(str(attributes.get("standard_name", ""))) or _AXIS_NAMES.get(name, name)
    if kind == "hybrid":
        return kind, value if value == round(value) else None  # a coordinate between 0 and 1 does not count the levels
    if not (_WITH_VALUE.match(kind) or kind in (*_SURFACES, *_OWN_LEVELS)):
        return "", None
    if kind.startswith(("height", "depth")):
        found = find_conversion(str(attributes.get("units", "m")), "m")
        return kind, float(f"{value * found.factor:.6g}") if found else None
    return kind, value


def with_axes(variable: Variable, level: str, along_grid: bool | None) -> str:
    """Return the level of a field in a plane with the axes of vector components; None if these are unknown.

    >>> with_axes(Variable("u"), "hybrid 60", True), with_axes(Variable("2t"), "", True)
    ('hybrid 60, the axes of the grid', '')
    """
    if along_grid is None or not variable.component:
        return level
    return ", ".join(filter(None, (level, GRID_AXES if along_grid else EARTH_AXES)))


def _along_grid(attributes: Mapping[Any, Any]) -> bool | None:
    """Return whether a vector component is along the axes of its grid; None if its attributes do not state it."""
    if (flag := attributes.get("GRIB_uvRelativeToGrid")) is not None:
        return bool(flag)
    return False if str(attributes.get("standard_name", "")).startswith(("eastward", "northward")) else None


def stated_level(
    variable: Variable,
    attributes: Mapping[Any, Any],
    axes: Iterable[tuple[str, Mapping[Any, Any], np.ndarray | None]],
    plane: bool = False,
) -> str:
    """Return the level of a variable of NetCDF, Zarr or xarray; empty if it is unknown, or if the name states it.

    `axes` are its vertical axes: name, attributes and values. Those of several values do not count. Of several axes of
    one value, `GRIB_typeOfLevel` names the right one; without it, the level is unknown. Fields in a `plane` are those
    of a projected or curvilinear grid.
    """
    if stated := attributes.get(LEVEL_ATTRIBUTE):
        return "" if states_level(variable) and not variable.component else str(stated)
    single = [axis for axis in axes if axis[2] is not None and axis[2].size == 1 and axis[2].dtype.kind in "fiu"]
    found = [axis_level(name, about, float(values.item())) for name, about, values in single if values is not None]
    found = [(kind, value) for kind, value in found if kind]
    if kind := str(attributes.get("GRIB_typeOfLevel", "")):
        found = [(kind, dict(found).get(kind))]
    level = level_text(variable, *found[0]) if len(found) == 1 else ""
    return with_axes(variable, level, _along_grid(attributes)) if plane else level


def level_of(catalog: Catalog, variable: int) -> str:
    """Return the level of the variable at this position in a catalog; several raise `InputError`."""
    what = catalog.wanted[variable]
    if states_level(what) and not what.component:
        return ""
    found = catalog.levels(np.flatnonzero(catalog.rows["variable"] == variable))
    stated = sorted(((text, count) for text, count in found.items() if text), key=lambda pair: -pair[1])
    if len(stated) > 1:
        shown = ", ".join(f"{count:,} x {text}" for text, count in stated[:LEVELS_SHOWN])
        more = ", ..." if len(stated) > LEVELS_SHOWN else ""
        turned = any(text.endswith((GRID_AXES, EARTH_AXES)) for text, _ in stated)
        raise InputError(
            f"{catalog} has {what} on {len(stated)} levels, {shown}{more}, which are different variables; name files "
            f"with one of them, for instance from grib_copy -w shortName={what.name},"
            f"{'uvRelativeToGrid=0' if turned else 'typeOfLevel=TYPE'} of ecCodes or from cdo sellevel"
        )
    return stated[0][0] if stated else ""
