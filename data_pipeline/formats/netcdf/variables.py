"""GRIB shortName and units of a variable in a NetCDF file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from data_pipeline.common.errors import InputError
from data_pipeline.parameters import PARAMETERS
from data_pipeline.task import Variable

_NEAR_GROUND = {("t", 2): "2t", ("u", 10): "10u", ("v", 10): "10v"}
"""Parameters with a shortName of their own near the ground, by shortName aloft and height in m."""

_SHARED_STANDARD_NAME = {"2t": "t", "10u": "u", "10v": "v", "gh": "z"}
"""Parameters that share their standard_name with another parameter."""

_OF_SPELLING = {word: name for name, known in PARAMETERS.items() for word in (name, *known.spellings.split())}
_OF_STANDARD_NAME = {word: name for name, known in PARAMETERS.items() for word in known.standard_names.split()}


class NameMap:
    """Finds the shortName of a variable; `mapping` has the user's names, such as {"T850": "t@850"}.

    The first of these decides: the user's name; cfgrib's attribute `GRIB_shortName`; the variable's name, if it is a
    shortName or one of its usual spellings; the CF standard_name with the height above ground. Any other variable keeps
    its own name.
    """

    def __init__(self, mapping: Mapping[str, str] | None = None) -> None:
        self._given = {str(name): Variable.parse(meaning) for name, meaning in (mapping or {}).items()}

    def given(self, name: str) -> Variable | None:
        """Return the user's name for the variable `name` of a file, or None."""
        return self._given.get(name)

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


class Conversion(NamedTuple):
    """Conversion of a file's values to GRIB's units: `value * factor + offset`."""

    factor: float = 1.0
    offset: float = 0.0


_STANDARD_GRAVITY = 9.80665
"""Geopotential (m² s⁻²) per metre of geopotential height, by definition."""

_SYMBOLS = {
    "kelvin": "K", "Kelvin": "K", "degK": "K", "deg_K": "K", "degrees_K": "K",
    "C": "degC", "Celsius": "degC", "celsius": "degC", "deg_C": "degC", "degree_Celsius": "degC", "degree_C": "degC",
    "degrees_Celsius": "degC", "degrees_C": "degC", "°C": "degC",
    "pascal": "Pa", "pascals": "Pa", "hectopascal": "hPa", "hectopascals": "hPa", "mb": "hPa", "mbar": "hPa",
    "millibar": "hPa", "millibars": "hPa", "meter": "m", "meters": "m", "metre": "m", "metres": "m",
    "second": "s", "seconds": "s", "sec": "s", "percent": "%",
}  # fmt: skip
_DIMENSIONLESS = ("", "1", "-", "(0 - 1)", "0 - 1", "0-1", "[0-1]", "(0-1)", "fraction", "unitless", "dimensionless")
_CONVERSIONS = {
    ("degC", "K"): Conversion(offset=273.15), ("hPa", "Pa"): Conversion(100.0), ("mm", "m"): Conversion(1e-3),
    ("%", "1"): Conversion(0.01), ("1", "%"): Conversion(100.0), ("g kg-1", "1"): Conversion(1e-3),
    ("m", "gpm"): Conversion(), ("gpm", "m"): Conversion(),
}  # fmt: skip


def find_conversion(units: str, wanted: str, standard_name: str = "") -> Conversion | None:
    """Return the conversion from `units` to `wanted`; None if it is unknown or ambiguous.

    >>> find_conversion("degC", "K")
    Conversion(factor=1.0, offset=273.15)
    """
    given, target = normalize_units(units), normalize_units(wanted)
    if given == target:
        return Conversion()
    if standard_name == "geopotential_height" and given in ("m", "gpm") and target == "m2 s-2":
        return Conversion(_STANDARD_GRAVITY)
    return _CONVERSIONS.get((given, target))


def normalize_units(units: str) -> str:
    """Return the standard spelling of units.

    >>> [normalize_units(units) for units in ("m**2 s**-2", "m^2/s^2", "kg/kg", "Kelvin")]
    ['m2 s-2', 'm2 s-2', '1', 'K']
    """
    if units.strip() in _DIMENSIONLESS:
        return "1"
    text = units.strip().translate(str.maketrans("⁻⁰¹²³⁴", "-01234")).replace("**", "").replace("^", "")
    first, *others = [re.split(r"[\s.*·]+", part.strip()) for part in text.split("/")]
    powers: dict[str, int] = {}
    for sign, words in ((1, first), (-1, [word for part in others for word in part])):
        for word in words:
            match = re.fullmatch(r"([^\d-]+?)(-?\d+)?", word)
            if not match:
                if word != "1":
                    return units.strip()
                continue
            symbol = _SYMBOLS.get(match[1], match[1])
            powers[symbol] = powers.get(symbol, 0) + sign * int(match[2] or 1)
    ordered = sorted(powers.items(), key=lambda item: (-item[1], item[0]))
    return " ".join(f"{symbol}{power if power != 1 else ''}" for symbol, power in ordered if power) or "1"
