"""Intervals of amounts, means and extremes that the user states, because the files do not.

CF files without time bounds say nothing of the interval: hourly NetCDF files of ERA5, files that cfgrib converted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.formats.catalog import Catalog
from data_pipeline.formats.equivalents import stated_hours
from data_pipeline.task import Variable
from data_pipeline.variables.meaning import UNKNOWN
from data_pipeline.variables.parameters import PARAMETERS

Part = Literal["ensemble", "analysis"]

_OPTION = "data.archive.intervals"
_PARTS: tuple[Part, ...] = ("ensemble", "analysis")
_EXAMPLE = f"for instance '{_OPTION}={{analysis: {{tp: 1h}}, ensemble: {{tp: since_start}}}}'"
SINCE_START = None
"""Stands for intervals that begin at the start of the forecast, so that their length is the lead time."""


@dataclass(frozen=True)
class StatedIntervals:
    """The interval (minutes, or `SINCE_START`) of some variables of one part of an archive."""

    part: Part
    intervals: tuple[tuple[Variable, int | None], ...] = ()

    @classmethod
    def parse(cls, option: object, part: Part) -> StatedIntervals:
        """Return the intervals of a part from the option's value; a malformed one raises `InputError`.

        >>> StatedIntervals.parse({"tp": "6h"}, "analysis").intervals
        ((Variable(name='tp', level=0, period=0, process=''), 360),)
        """
        if option is None:
            return cls(part)
        if not isinstance(option, Mapping):
            raise InputError(f"{_OPTION} must be {{VARIABLE: INTERVAL, ...}}, got {option!r}; {_EXAMPLE}")
        if set(option) & set(_PARTS):
            if others := sorted(map(str, set(option) - set(_PARTS))):
                raise InputError(f"{_OPTION} has {others[0]} beside parts of the archive; write {_EXAMPLE}")
            return cls.parse(option.get(part), part)
        return cls(part, tuple((_variable(name), _minutes(name, text)) for name, text in option.items()))

    @property
    def described(self) -> list[list[object]]:
        """The variables and their intervals, as plain values."""
        return sorted([str(variable), minutes] for variable, minutes in self.intervals)

    def apply(self, catalog: Catalog) -> Catalog:
        """Return a catalog of files with these intervals where the files state none.

        A variable of which all files state the interval raises `InputError`: the option would have no effect.
        """
        rows = catalog.rows
        for variable, minutes in self.intervals:
            mine = np.flatnonzero(
                rows["variable"] == catalog.wanted.index(variable) if variable in catalog.wanted else []
            )
            unknown = mine[rows["interval"][mine] == UNKNOWN]
            if len(mine) and not len(unknown):
                raise InputError(
                    f"{catalog} states the intervals of {variable}, and {_OPTION} does not overrule files; leave "
                    f"{variable} out of it for the {self.part}"
                )
            if len(unknown):
                rows = rows.copy() if rows is catalog.rows else rows
                rows["interval"][unknown] = self._lengths(catalog, variable, minutes, unknown)
        return catalog if rows is catalog.rows else replace(catalog, rows=rows)  # type: ignore[type-var]

    def _lengths(self, catalog: Catalog, variable: Variable, minutes: int | None, rows: np.ndarray) -> np.ndarray:
        """Return the interval of each of some rows; the first field of a forecast, of lead time 0, has none."""
        steps = catalog.rows["step"][rows]
        forecasts = bool((steps > 0).any())
        if minutes is SINCE_START:
            if not forecasts:
                raise InputError(
                    f"{catalog}: {variable} has no lead times, so {_OPTION} cannot be since_start for the {self.part}; "
                    "write the length of its intervals, such as 1h"
                )
            return np.where(steps >= 0, steps, UNKNOWN)
        if (early := np.flatnonzero((steps > 0) & (steps < minutes))).size:
            raise InputError(
                f"{catalog.place(int(rows[early[0]]))}: {_OPTION} states {minutes // 60} h for {variable} in the "
                f"{self.part}, longer than its lead time of {steps[early[0]] / 60:g} h; write since_start if its "
                "intervals begin at the start of the forecast, otherwise their length"
            )
        return np.where((steps > 0) | (not forecasts), minutes, UNKNOWN)


def _variable(name: object) -> Variable:
    """Return the variable of an entry; `InputError` if it is unknown, instantaneous, or its name states an interval."""
    variable = Variable.parse(str(name))
    if variable.period:
        raise InputError(f"{_OPTION} names variables as the files have them, without a period; write {variable.name}")
    if variable.name not in PARAMETERS and not variable.process:
        raise InputError(f"{_OPTION}: {variable} is not a known GRIB shortName; write {_EXAMPLE}")
    if variable.processing == "instant":
        raise InputError(f"{_OPTION}: {variable} is instantaneous and has no interval; leave it out")
    if hours := stated_hours(variable):
        raise InputError(f"{_OPTION}: the name {variable} states its interval of {hours} h; leave it out")
    return variable


def _minutes(name: object, text: object) -> int | None:
    if text == "since_start":
        return SINCE_START
    if not (found := re.fullmatch(r"([1-9]\d*)h", str(text))):
        raise InputError(
            f"{_OPTION} of {name} is {text!r}; write whole hours such as 6h, or since_start for intervals that begin "
            "at the start of the forecast"
        )
    return 60 * int(found[1])
