"""Equivalents: variables that can be computed from other variables without approximation."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Literal

from data_pipeline.task import Variable
from data_pipeline.variables.parameters import PARAMETERS
from data_pipeline.variables.units import STANDARD_GRAVITY

Operation = Literal["sum", "maximum", "minimum", "norm"]
"""How the fields of a recipe are combined; the norm is the square root of the sum of squares."""

OPERATION_OF: dict[str, Operation] = {"accumulation": "sum", "mean": "sum", "maximum": "maximum", "minimum": "minimum"}
"""How the intervals of a variable's processing are joined; means are weighted with their lengths."""

_SCALED = {"z": ("gh", STANDARD_GRAVITY), "gh": ("z", 1 / STANDARD_GRAVITY)}
"""Variables that are a multiple of another one: geopotential is geopotential height times standard gravity."""

_SPEEDS = {"10si": ("10u", "10v"), "100si": ("100u", "100v")}
"""Wind speeds and their components; only of instantaneous winds, because a mean speed is no speed of the mean wind."""

_EXTREMES = {
    ("2t", "maximum"): ("mx2t", "mx2t3", "mx2t6"), ("2t", "minimum"): ("mn2t", "mn2t3", "mn2t6"),
    ("10fg", "maximum"): ("10fg", "10fg3", "10fg6"),
}  # fmt: skip
"""Names for one extreme over different intervals, by the name of the instantaneous variable or of the first."""


@dataclass(frozen=True)
class Source:
    """Variables of files from which another variable is computed: `factor` times the combined fields."""

    variables: tuple[Variable, ...]
    factor: float = 1.0
    operation: Operation = "sum"


def sources(variable: Variable) -> list[Source]:
    """Return the ways to compute a variable, best first; the first is the variable itself, as files name it.

    Humidity is never converted: relative humidity depends on the saturation formula of the model that made the file.

    >>> [str(source.variables[0]) for source in sources(Variable("z", 500))]
    ['z@500', 'gh@500']
    """
    own = replace(variable, period=0)
    found = [Source((own,))]
    if variable.name in _SCALED and variable.level and not variable.process:
        name, factor = _SCALED[variable.name]
        found.append(Source((Variable(name, variable.level),), factor))
    if variable.name in _SPEEDS and not variable.process and not variable.level:
        found.append(Source(tuple(map(Variable, _SPEEDS[variable.name])), 1.0, "norm"))
    return found


def needed(variable: Variable) -> tuple[Variable, ...]:
    """Return all variables of files that could be needed to make a variable."""
    if variable.period:
        return same_extreme(variable)
    return tuple(dict.fromkeys(each for source in sources(variable) for each in source.variables))


def file_variables(wanted: Iterable[Variable], available: Collection[Variable]) -> tuple[Variable, ...]:
    """Return the variables of files from which the `wanted` variables are made; a variable in the files is kept.

    A variable that cannot be made from the `available` ones is returned itself, so that its absence is noticed.

    >>> wanted, available = [Variable("z", 500), Variable("tp", period=24)], [Variable("gh", 500), Variable("tp")]
    >>> [str(each) for each in file_variables(wanted, available)]
    ['gh@500', 'tp']
    """
    found: list[Variable] = []
    for variable in wanted:
        if variable.period:
            made = [each for each in same_extreme(variable) if each in available]
        else:
            ways = [source.variables for source in sources(variable)]
            made = list(next((way for way in ways if all(each in available for each in way)), ()))
        found += made or [variable]
    return tuple(dict.fromkeys(found))


def same_extreme(variable: Variable) -> tuple[Variable, ...]:
    """Return the variables whose fields are the same extreme over some interval, the variable itself first.

    >>> [str(each) for each in same_extreme(Variable("mx2t", period=24))]
    ['mx2t', '2t:maximum', 'mx2t3', 'mx2t6']
    """
    own = replace(variable, period=0)
    for (name, process), names in _EXTREMES.items():
        instant = (Variable(name, process=process),) if name not in names else ()
        group = (*instant, *map(Variable, names))
        if own in group:
            return (own, *(each for each in group if each != own))
    return (own,)


def stated_hours(variable: Variable) -> int:
    """Return the hours of the interval that the name of a variable states, 0 if it states none."""
    return PARAMETERS[variable.name].hours if variable.name in PARAMETERS else 0
