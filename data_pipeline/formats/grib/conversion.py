"""Conversion of the values of each kind of message to the units of `parameters.PARAMETERS`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from data_pipeline.common.errors import InputError
from data_pipeline.formats.grib.kind import Kind
from data_pipeline.task import Variable
from data_pipeline.variables.parameters import PARAMETERS
from data_pipeline.variables.units import Conversion, find_conversion

UNKNOWN_UNITS = ("unknown", "")
"""Units that ecCodes gives to unknown parameters; if the user names one, its values must be in GRIB's units."""


def wanted_units(kind: Kind, name: str) -> str:
    """Return the units in which a variable called `name` is read; `kind` is the first kind of message that has it."""
    return PARAMETERS[name].units if name in PARAMETERS else kind.units


def find_conversions(
    kinds: Sequence[Kind], variables: Sequence[Variable | None], files: Sequence[Path]
) -> Iterator[Conversion]:
    """Yield the conversion of each kind's values; values of a kind without a variable are not converted.

    `files` holds the first file of each kind, for error messages. A variable that is not in `PARAMETERS` gets the units
    of its first kind. Units that cannot be converted raise `InputError`.
    """
    first: dict[str, int] = {}
    for k, (kind, variable) in enumerate(zip(kinds, variables, strict=True)):
        if variable is None:
            yield Conversion()
            continue
        one = first.setdefault(variable.name, k)
        wanted = wanted_units(kinds[one], variable.name)
        found = conversion_of(kind, variable, wanted)
        if found is None:
            other = "GRIB's table" if variable.name in PARAMETERS else str(files[one])
            raise InputError(
                f"{files[k]} has {variable} in {kind.units}, {other} in {wanted}, and there is no conversion between "
                "these units; leave out the file, or write its values in the other units, for instance with cdo"
            )
        yield found


def conversion_of(kind: Kind, variable: Variable, wanted: str) -> Conversion | None:
    """Return the conversion of a kind's values to the units `wanted`; None if there is none."""
    if kind.units == wanted or kind.units in UNKNOWN_UNITS:
        return Conversion()
    water = variable.name in PARAMETERS and PARAMETERS[variable.name].water
    height = "geopotential_height" if kind.short_name == "gh" else ""
    return find_conversion(kind.units, wanted, water=water, standard_name=height)
