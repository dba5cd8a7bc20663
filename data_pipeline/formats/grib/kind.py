"""Kind: what many messages have in common."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from data_pipeline.formats.grib.horizontal import Layout
from data_pipeline.task import Variable


@dataclass(frozen=True)
class Kind:
    """What messages of one variable on one level and one grid have in common; `version` is ECMWF's expver."""

    short_name: str
    long_name: str
    units: str
    type_of_level: str
    level: float
    data_type: str
    version: str
    layout: Layout

    @cached_property
    def variable(self) -> Variable | None:
        """The variable; None where it has no name or lies on a pressure level that is no whole number of hPa.

        Only pressure levels are told apart. Everything else is one field per name, such as `2t` or `stl1`.
        """
        if not re.fullmatch(r"[A-Za-z0-9_]+", self.short_name):
            return None
        units = {"isobaricInhPa": 1, "isobaricInPa": 100}.get(self.type_of_level)
        if units is None:
            return Variable(self.short_name)
        level, rest = divmod(self.level, units)
        return Variable(self.short_name, int(level)) if 1 <= level <= 1100 and not rest else None

    def __str__(self) -> str:
        return str(self.variable or f"{self.short_name} ({self.type_of_level} {self.level:g})")
