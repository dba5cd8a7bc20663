"""GRIB shortName of a variable in a NetCDF file, and the conversion of its values to GRIB's units.

The error about unknown units never advises to change only the units attribute: `z` in gpm and `z` in m² s⁻² differ by a
factor of 9.8, so the values must be converted too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.formats.cf.cf_header import DataVariable
from data_pipeline.formats.variables import GivenName
from data_pipeline.task import Variable
from data_pipeline.variables.parameters import NEAR_GROUND, PARAMETERS
from data_pipeline.variables.units import STANDARD_GRAVITY, Conversion, find_conversion, normalize_units

_SHARED_STANDARD_NAME = (
    {"gh": "z"}
    | {name: known.aloft[0] for name, known in PARAMETERS.items() if known.aloft}
    | dict.fromkeys(("i10fg", "10fg3", "10fg6"), "gust")
)
"""For parameters that share their standard_name with another parameter, the shortName of this other parameter."""

_OF_SPELLING = {word: name for name, known in PARAMETERS.items() for word in (name, *known.spellings.split())}
_OF_STANDARD_NAME = {word: name for name, known in PARAMETERS.items() for word in known.standard_names.split()}
_OF_STANDARD_NAME["wind_speed_of_gust"] = "gust"


class NameMap:
    """Finds the shortName of a variable; `mapping` holds the user's names, such as {"T850": "t@850"}.

    The user's name may state units, for a variable without units, and the interval of an amount:
    {"rain": "tp:24h in m"}.

    The first of these that exists decides: the user's name; cfgrib's attribute `GRIB_shortName`; the variable's name,
    if it is a shortName or one of its usual spellings; the CF standard_name with the height above ground. Any other
    variable keeps its own name.
    """

    def __init__(self, mapping: Mapping[str, str] | None = None) -> None:
        self._given = {str(name): GivenName.parse(meaning) for name, meaning in (mapping or {}).items()}

    def given(self, name: str) -> Variable | None:
        """Return the user's name for the variable `name` of a file, or None."""
        found = self._given.get(name)
        return found and found.variable

    def given_units(self, name: str) -> str:
        """Return the user's units for the variable `name` of a file; empty if the user states none."""
        found = self._given.get(name)
        return found.units if found else ""

    def with_given(self, name: str, variable: Variable) -> NameMap:
        """Return the same names, with `variable` as the user's name for `name`."""
        found = NameMap()
        found._given = self._given | {name: GivenName(variable, self.given_units(name))}
        return found

    def short_name(self, name: str, attributes: Mapping[str, object], height: float | None) -> str:
        """Return the shortName of the variable `name` at `height` m above the ground (None: aloft or unknown)."""
        if given := self.given(name):
            return given.name
        if re.fullmatch(r"[A-Za-z0-9_]+", grib := str(attributes.get("GRIB_shortName", ""))):
            return grib
        own = _OF_SPELLING.get(name) or _OF_SPELLING.get(str(attributes.get("short_name", "")))
        standard = _OF_STANDARD_NAME.get(str(attributes.get("standard_name", "")))
        if own and standard and _SHARED_STANDARD_NAME.get(own, own) != _SHARED_STANDARD_NAME.get(standard, standard):
            raise InputError(
                f"{name} may be {own} by its name or {standard} by its standard_name {attributes['standard_name']}; "
                f"choose one, for instance with data.archive.variable_names={{{name}: {own}}}"
            )
        known = own or standard
        return NEAR_GROUND.get((known, round(height)), known) if known and height is not None else known or name


def is_surface_only(short_name: str) -> bool:
    """Whether a parameter never lies on pressure levels."""
    return short_name in PARAMETERS and not PARAMETERS[short_name].has_levels


def rate_conversion(short_name: str, process: str, attributes: Mapping[str, object]) -> Conversion | None:
    """Return the conversion of mean rates, such as precipitation in kg m-2 s-1, to GRIB's units per second.

    Return None for values that are not mean rates of an accumulation.

    >>> rate_conversion("tp", "mean", {"units": "kg m-2 s-1"})
    Conversion(factor=0.001, offset=0.0)
    """
    known = PARAMETERS.get(short_name)
    if known is None or known.process != "accumulation" or process != "mean":
        return None
    return find_conversion(str(attributes.get("units", "")), f"{known.units} s**-1", water=known.water)


def amount_conversion(place: str, short_name: str, rate: Conversion, intervals: np.ndarray) -> Conversion:
    """Return the conversion of mean rates over `intervals` (minutes) to amounts."""
    lengths = np.unique(intervals)
    if len(lengths) > 1 or lengths[0] <= 0:
        found = "without time bounds" if lengths[0] <= 0 else "over intervals of different lengths"
        raise InputError(
            f"{place} is a mean rate {found}, from which {short_name} cannot be computed; convert it to amounts first"
        )
    return Conversion(rate.factor * 60 * int(lengths[0]))


def find_own_conversion(place: str, short_name: str, data: DataVariable) -> Conversion:
    """Return the conversion to GRIB's units; a variable that is not in `PARAMETERS` is not converted."""
    if short_name not in PARAMETERS:
        return Conversion()
    known, own = PARAMETERS[short_name], data.attributes.get("units")
    if own is None and normalize_units(known.units) != "1":
        raise InputError(
            f"{place} has no units, GRIB has {short_name} in {known.units}; state the units of its values, for "
            f"instance data.archive.variable_names={{{data.name}: {short_name} in {normalize_units(known.units)}}}"
        )
    units, standard_name = str(own or ""), str(data.attributes.get("standard_name", ""))
    if short_name == "z" and units.strip() == "gpm":
        standard_name = "geopotential_height"
    found = find_conversion(units, known.units, water=known.water, standard_name=standard_name)
    if found is None:
        raise InputError(
            f"{place} is in {own!r}, GRIB has {short_name} in {known.units}; {_way_out(short_name, data.name, units)}"
        )
    return found


def _way_out(short_name: str, name: str, units: str) -> str:
    """Return advice for the error message on units that cannot be converted."""
    wanted = PARAMETERS[short_name].units
    if short_name == "z" and normalize_units(units) == "m":
        return (
            f"read geopotential height as gh with data.archive.variable_names={{{name}: gh}}, or multiply it by "
            f'{STANDARD_GRAVITY} with cdo -setattribute,{name}@units="{wanted}" -mulc,{STANDARD_GRAVITY} in.nc out.nc'
        )
    return (
        f'convert its values, for instance with cdo -setattribute,{name}@units="{wanted}" -addc,OFFSET -mulc,FACTOR '
        "in.nc out.nc, or give it another name with data.archive.variable_names"
    )
