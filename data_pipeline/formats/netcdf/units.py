"""Units: from those of a file to those that GRIB has, where this is certain."""

from __future__ import annotations

import re
from typing import NamedTuple


class Scale(NamedTuple):
    """What makes GRIB's values of a file's: `value * factor + offset`."""

    factor: float = 1.0
    offset: float = 0.0


STANDARD_GRAVITY = 9.80665
"""What makes geopotential (m² s⁻²) of geopotential height (m), by definition."""

SYMBOLS = {
    "kelvin": "K", "Kelvin": "K", "degK": "K", "deg_K": "K", "degrees_K": "K",
    "C": "degC", "Celsius": "degC", "celsius": "degC", "deg_C": "degC", "degree_Celsius": "degC", "degree_C": "degC",
    "degrees_Celsius": "degC", "degrees_C": "degC", "°C": "degC",
    "pascal": "Pa", "pascals": "Pa", "hectopascal": "hPa", "hectopascals": "hPa", "mb": "hPa", "mbar": "hPa",
    "millibar": "hPa", "millibars": "hPa", "meter": "m", "meters": "m", "metre": "m", "metres": "m",
    "second": "s", "seconds": "s", "sec": "s", "percent": "%",
}  # fmt: skip
NUMBERS = ("", "1", "-", "(0 - 1)", "0 - 1", "0-1", "[0-1]", "(0-1)", "fraction", "unitless", "dimensionless")
CERTAIN = {
    ("degC", "K"): Scale(offset=273.15), ("hPa", "Pa"): Scale(100.0), ("mm", "m"): Scale(1e-3), ("%", "1"): Scale(0.01),
    ("1", "%"): Scale(100.0), ("g kg-1", "1"): Scale(1e-3), ("m", "gpm"): Scale(), ("gpm", "m"): Scale(),
}  # fmt: skip


def scale(units: str, wanted: str, standard_name: str = "") -> Scale | None:
    """Return what makes values in `wanted` of values in `units`; None where that is not certain.

    >>> scale("degC", "K")
    Scale(factor=1.0, offset=273.15)
    """
    given, target = canonical(units), canonical(wanted)
    if given == target:
        return Scale()
    if standard_name == "geopotential_height" and given in ("m", "gpm") and target == "m2 s-2":
        return Scale(STANDARD_GRAVITY)
    return CERTAIN.get((given, target))


def canonical(units: str) -> str:
    """Return one spelling for the many of the same units.

    >>> [canonical(units) for units in ("m**2 s**-2", "m^2/s^2", "kg/kg", "Kelvin")]
    ['m2 s-2', 'm2 s-2', '1', 'K']
    """
    if units.strip() in NUMBERS:
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
            symbol = SYMBOLS.get(match[1], match[1])
            powers[symbol] = powers.get(symbol, 0) + sign * int(match[2] or 1)
    ordered = sorted(powers.items(), key=lambda item: (-item[1], item[0]))
    return " ".join(f"{symbol}{power if power != 1 else ''}" for symbol, power in ordered if power) or "1"
