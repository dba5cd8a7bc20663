"""MessageNames: the variable of each kind of message, from the user's names or the message's short name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from data_pipeline.formats.grib.kind import Kind
from data_pipeline.formats.variables import GivenName
from data_pipeline.task import Variable

PARAMETER = re.compile(r"(\d+)(?:\.(\d+))?")
"""A paramId, such as 228, or a parameter and its table of GRIB1, such as 228.128."""
ECMWF_TABLE = 128
"""The table whose parameters keep their number as paramId."""


@dataclass(frozen=True)
class MessageNames:
    """The user's names: map a shortName, a paramId (`228`) or a parameter with table (`228.128`) to a variable.

    >>> MessageNames({"228.128": "tp"}).given
    {228: Variable(name='tp', level=0, period=0, process='')}
    """

    names: Mapping[str, str] = field(default_factory=dict)
    given: Mapping[str | int, Variable] = field(init=False)

    def __post_init__(self) -> None:
        given = {_key(key): GivenName.parse(text).variable for key, text in self.names.items()}
        object.__setattr__(self, "given", given)

    def variable(self, kind: Kind) -> Variable | None:
        """Return the variable of a kind of message; None if its messages cannot be read as one."""
        name = self.given.get(kind.parameter) or self.given.get(kind.short_name)
        return kind.named(name) if name else kind.variable


def _key(text: str) -> str | int:
    """Return a paramId as a number, a short name as it is."""
    found = PARAMETER.fullmatch(text)
    if not found:
        return text
    table = int(found[2] or ECMWF_TABLE)
    return int(found[1]) + 1000 * (0 if table == ECMWF_TABLE else table)
