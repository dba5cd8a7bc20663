"""Conversion of a variable's values to GRIB's units; unknown conversions are refused.

The error message never advises to change only the units attribute: `z` in gpm and `z` in m² s⁻² differ by a factor of
9.8, so the values must be converted too.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.formats.cf.cf_header import DataVariable
from data_pipeline.variables.parameters import PARAMETERS
from data_pipeline.variables.units import STANDARD_GRAVITY, Conversion, find_conversion, normalize_units


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
