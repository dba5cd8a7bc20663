"""GRIB shortName and units of a variable in a NetCDF file."""

from __future__ import annotations

import re
from collections.abc import Mapping

from data_pipeline.common.errors import InputError
from data_pipeline.formats.variables import GivenName
from data_pipeline.task import Variable
from data_pipeline.variables.parameters import PARAMETERS

_NEAR_GROUND = {
    ("t", 2): "2t", ("u", 10): "10u", ("v", 10): "10v", ("ws", 10): "10si", ("ws", 100): "100si", ("gust", 10): "10fg",
}  # fmt: skip
"""shortNames of parameters near the ground, by the shortName aloft and the height in m."""

_SHARED_STANDARD_NAME = {"2t": "t", "10u": "u", "10v": "v", "gh": "z", "10si": "ws", "100si": "ws"} | dict.fromkeys(
    ("10fg", "i10fg", "10fg3", "10fg6"), "gust"
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
        return _NEAR_GROUND.get((known, round(height)), known) if known and height is not None else known or name


def is_surface_only(short_name: str) -> bool:
    """Whether a parameter never lies on pressure levels."""
    return short_name in PARAMETERS and not PARAMETERS[short_name].has_levels
