"""Units of fields: standard spellings, and conversions by the units library pint."""

from __future__ import annotations

import re
from fractions import Fraction
from functools import cache
from typing import Any, NamedTuple

STANDARD_GRAVITY = 9.80665
"""Geopotential (m² s⁻²) per metre of geopotential height, by definition (WMO, CGPM 1901)."""

WATER_DENSITY = 1000
"""Density of water, kg m⁻³, so that 1 kg m⁻² of precipitation is 1 mm."""

_SYMBOLS = {
    "kelvin": "K", "Kelvin": "K", "degK": "K", "deg_K": "K", "degrees_K": "K",
    "C": "degC", "Celsius": "degC", "celsius": "degC", "deg_C": "degC", "degree_Celsius": "degC", "degree_C": "degC",
    "degrees_Celsius": "degC", "degrees_C": "degC", "°C": "degC", "F": "degF", "Fahrenheit": "degF",
    "pascal": "Pa", "pascals": "Pa", "hectopascal": "hPa", "hectopascals": "hPa", "mb": "hPa", "mbar": "hPa",
    "millibar": "hPa", "millibars": "hPa", "meter": "m", "meters": "m", "metre": "m", "metres": "m",
    "second": "s", "seconds": "s", "sec": "s", "percent": "%", "kt": "knot", "kts": "knot", "knots": "knot",
}  # fmt: skip
"""Spellings in weather files; pint alone would read `mb` as millibarn, `C` as coulomb and `gpm` as gallons a minute."""

_DIMENSIONLESS = ("", "1", "-", "(0 - 1)", "0 - 1", "0-1", "[0-1]", "(0-1)", "fraction", "unitless", "dimensionless")


class Conversion(NamedTuple):
    """Conversion of values to other units: `value * factor + offset`."""

    factor: float = 1.0
    offset: float = 0.0

    @property
    def inverse(self) -> Conversion:
        """The conversion in the other direction.

        >>> Conversion(1.0, 273.15).inverse
        Conversion(factor=1.0, offset=-273.15)
        """
        return Conversion(1 / self.factor, -self.offset / self.factor)

    def apply(self, values: Any) -> Any:
        """Return an array in the other units, computed in double precision, of the same type."""
        if not self.changes:
            return values
        return (values.astype("f8") * self.factor + self.offset).astype(values.dtype)

    @property
    def changes(self) -> bool:
        """Whether the conversion changes values."""
        return self != Conversion()


USUAL = {
    ("degC", "K"): Conversion(offset=273.15), ("hPa", "Pa"): Conversion(100.0), ("mm", "m"): Conversion(0.001),
    ("%", "1"): Conversion(0.01), ("g kg-1", "1"): Conversion(0.001), ("knot", "m s-1"): Conversion(1852 / 3600),
}  # fmt: skip
"""Conversions of most files, as pint computes them: importing pint takes 0.8 s, longer than reading a station."""


def find_conversion(units: str, wanted: str, *, water: bool = False, standard_name: str = "") -> Conversion | None:
    """Return the conversion from `units` to `wanted`; None if there is none, or if a unit is unknown.

    `water`: the field is an amount of water, whose mass per area (kg m⁻²) is a depth (m). A height with the CF
    `standard_name` geopotential_height is converted to geopotential.

    >>> find_conversion("degC", "K")
    Conversion(factor=1.0, offset=273.15)
    >>> find_conversion("kg m-2", "m"), find_conversion("kg m-2", "m", water=True)
    (None, Conversion(factor=0.001, offset=0.0))
    """
    given, target = (normalize_units(text).replace("gpm", "m") for text in (units, wanted))
    if given == target:
        return Conversion()
    if (found := USUAL.get((given, target))) is not None:
        return found
    if standard_name == "geopotential_height" and given == "m" and target == "m2 s-2":
        return Conversion(STANDARD_GRAVITY)
    return _convert(given, target, water)


@cache
def _convert(given: str, target: str, water: bool) -> Conversion | None:
    """Return the conversion between units in standard spelling, computed in fractions so that 1 % is 0.01 exactly."""
    quantity = _registry().Quantity
    try:
        zero, one = (quantity(Fraction(value), _pint_units(given)) for value in (0, 1))
        density = quantity(Fraction(WATER_DENSITY), "kilogram / meter ** 3")
        if water and one.dimensionality != quantity(Fraction(1), _pint_units(target)).dimensionality:
            heavy = "[mass]" in one.dimensionality
            zero, one = ((value / density if heavy else value * density) for value in (zero, one))
        offset = zero.to(_pint_units(target)).magnitude
        return Conversion(float(one.to(_pint_units(target)).magnitude - offset), float(offset))
    except Exception:  # pint raises many kinds of error for text that is no unit, also those of Python's tokenizer
        return None


@cache
def _registry() -> Any:
    """Return pint's table of units; pint is imported only here, because the import takes half a second."""
    import pint

    return pint.UnitRegistry(non_int_type=Fraction, autoconvert_offset_to_baseunit=False)


def _pint_units(units: str) -> str:
    """Return units in standard spelling as a text that pint can read."""
    if units == "1":
        return "dimensionless"
    return re.sub(r"(?<=[A-Za-z%])(-?\d+)", r"**\1", units).replace("%", "percent").replace(" ", " * ")


def normalize_units(units: str) -> str:
    """Return the standard spelling of units.

    >>> [normalize_units(units) for units in ("m**2 s**-2", "m^2/s^2", "kg/kg", "Kelvin")]
    ['m2 s-2', 'm2 s-2', '1', 'K']
    """
    if units.strip() in _DIMENSIONLESS:
        return "1"
    text = units.strip().removesuffix(" of water equivalent")
    text = text.translate(str.maketrans("⁻⁰¹²³⁴", "-01234")).replace("**", "").replace("^", "")
    first, *others = [re.split(r"[\s.*·]+", part.strip()) for part in re.split(r"/|\bper\b", text)]
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
