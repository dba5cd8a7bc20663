"""Select and describe the variables of files of any format."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from itertools import product
from typing import NamedTuple

from data_pipeline.common.errors import InputError
from data_pipeline.common.messages import format_values
from data_pipeline.formats.equivalents import file_variables
from data_pipeline.task import Variable


def requested_variables(
    files: str, requested: Iterable[Variable], available: Collection[Variable]
) -> tuple[Variable, ...]:
    """Return the variables of files for the requested ones (`equivalents.file_variables`), each once.

    An empty request raises `InputError`. A variable that cannot be made is returned as it was requested.
    """
    variables = tuple(dict.fromkeys(requested))
    if not variables:
        raise InputError(f"no variable of {files} was requested; name at least one, such as 2t or t@850")
    return file_variables(variables, available)


def all_variables(available: Iterable[Variable], *, surface: bool) -> tuple[Variable, ...]:
    """Return all variables, sorted; only those at the surface if `surface`.

    A variable on pressure levels is returned on every level that any variable has, because they share a level axis.

    >>> [str(each) for each in all_variables([Variable("t", 850), Variable("z", 500), Variable("2t")], surface=False)]
    ['2t', 't@500', 't@850', 'z@500', 'z@850']
    """
    available = set(available)
    variables = {variable for variable in available if not (variable.level or (surface and variable.model_level))}
    if not surface:
        aloft = {variable for variable in available if variable.level}
        levels = {variable.level for variable in aloft}
        variables |= {replace(variable, level=level) for variable, level in product(aloft, levels)}
    return tuple(sorted(variables))


class GivenName(NamedTuple):
    """The user's name for a variable of a file, and the units of its values where the file states none.

    A period is the length of the interval that each field covers, where the file does not state it.
    """

    variable: Variable
    units: str = ""

    @classmethod
    def parse(cls, text: str) -> GivenName:
        """Parse `t@850`, `tp:24h` or `tp:24h in m`.

        >>> GivenName.parse("tp:24h in m")
        GivenName(variable=Variable(name='tp', level=0, period=24, process=''), units='m')
        """
        name, _, units = str(text).partition(" in ")
        return cls(Variable.parse(name.strip()), units.strip())


def checked_names(option: str, names: object) -> dict[str, str] | None:
    """Return an option's names of variables, from those of the files to ours, as texts; None if there are none.

    A decimal number as a name raises `InputError`, because the parameter 228.130 would become 228.13.
    """
    if names is None:
        return None
    if not isinstance(names, Mapping):
        raise InputError(f"{option} must be {{VARIABLE: shortName, ...}}, got {names!r}")
    if decimals := [name for name in names if isinstance(name, float)]:
        raise InputError(
            f"{option} has the number {decimals[0]} as a name; write a paramId, such as 228, or put the name in quotes "
            "in a YAML file, such as '228.128'"
        )
    return {str(name): str(variable) for name, variable in names.items()}


def describe_variables(variables: Iterable[Variable | str]) -> str:
    """Return the names of all variables: first variables without a level, then groups with equal pressure levels.

    >>> describe_variables([Variable("t", 850), Variable("t", 500), Variable("z", 850), Variable("z", 500), "2t"])
    '2t; t z at 850 500 hPa'
    """
    levels: dict[str, set[int]] = {}
    others: dict[str, None] = {}
    for variable in variables:
        if isinstance(variable, Variable) and variable.level:
            levels.setdefault(str(replace(variable, level=0)), set()).add(variable.level)
        else:
            others[str(variable)] = None
    groups: dict[tuple[int, ...], list[str]] = {}
    for name, found in levels.items():
        groups.setdefault(tuple(sorted(found, reverse=True)), []).append(name)
    aloft = [f"{' '.join(names)} at {format_values(found)} hPa" for found, names in groups.items()]
    return "; ".join([*([format_values(list(others))] if others else ()), *aloft])
