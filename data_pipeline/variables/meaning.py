"""Meaning: units of a field's values, its level, and the interval that the field covers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from data_pipeline.common.errors import InputError
from data_pipeline.formulas.formula import read_variable
from data_pipeline.task import Variable

INSTANT, UNKNOWN = 0, -1
"""Interval of an instantaneous field, and of a field whose interval is unknown or differs between starts."""
LEVEL_ATTRIBUTE = "level_of_fields"
"""Attribute of variables of xarray and NetCDF that holds `Meaning.level`."""


@dataclass(frozen=True)
class Meaning:
    """Units of a variable's values, and the interval (minutes) that its fields cover at each lead time.

    An interval ends at the valid time. It is `INSTANT` for an instantaneous field, and `UNKNOWN` if it is not known.
    Units are empty if the files state none. `level` is the level of the fields if the variable's name leaves it open,
    such as `hybrid 137` for `t`; it is empty if the files do not state it (`formats.levels`).
    """

    variable: Variable
    units: str
    intervals: tuple[int, ...]
    level: str = ""

    @classmethod
    def stated(cls, variable: Variable, lead_times: Sequence[int]) -> Meaning:
        """Return the meaning that the variable's name states.

        >>> meaning = Meaning.stated(Variable.parse("tp:24h"), [24, 48])
        >>> meaning.units, meaning.intervals, meaning.level
        ('m', (1440, 1440), '')
        """
        interval = INSTANT if variable.processing == "instant" else variable.period * 60 or UNKNOWN
        return cls(variable, variable.units, (interval,) * len(lead_times))

    def to_json(self) -> dict[str, Any]:
        """Return JSON values from which `from_json` makes an equal meaning."""
        values = {"variable": str(self.variable), "units": self.units, "intervals": list(self.intervals)}
        return values | ({"level": self.level} if self.level else {})

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Meaning:
        """Return the meaning from the values of `to_json`."""
        variable, intervals = read_variable(values["variable"]), tuple(map(int, values["intervals"]))
        return cls(variable, str(values["units"]), intervals, str(values.get("level", "")))


def check_targets(ensemble: Sequence[Meaning], truth: Sequence[Meaning], lead_times: Sequence[int]) -> None:
    """Raise `InputError` unless every target has the same units, level and intervals in the ensemble and the analysis.

    `ensemble` and `truth` are the meanings of the targets; `lead_times` are the lead times of the ensemble.
    """
    for forecast, analysis in zip(ensemble, truth, strict=True):
        variable = forecast.variable
        if forecast.units != analysis.units:
            raise InputError(
                f"{variable} is in {forecast.units or 'unknown units'} in the ensemble and in "
                f"{analysis.units or 'unknown units'} in the analysis; convert the values of one of them, for instance "
                f"with cdo -setattribute,{variable.name}@units=UNITS -mulc,FACTOR in.nc out.nc"
            )
        if _on_other_levels(forecast, analysis):
            raise InputError(
                f"{variable} lies on {forecast.level} in the ensemble and on {analysis.level} in the analysis; give "
                "files of one level, and of winds along the same axes, for both"
            )
        (verified,) = set(analysis.intervals)
        _refuse_unknown(variable, verified, "analysis")
        for lead, interval in zip(lead_times, forecast.intervals, strict=True):
            _refuse_unknown(variable, interval, "ensemble", f" at lead time {lead} h")
            if interval != verified:
                raise InputError(
                    f"each {variable} covers {interval / 60:g} h in the ensemble at lead time {lead} h and "
                    f"{verified / 60:g} h in the analysis; give the task one period for both, such as "
                    f"{replace(variable, period=24)}"
                )


def _on_other_levels(one: Meaning, two: Meaning) -> bool:
    """Whether two levels are known and differ."""
    return bool(one.level and two.level and one.level != two.level)


def _refuse_unknown(variable: Variable, interval: int, part: str, where: str = "") -> None:
    if interval == UNKNOWN:
        example = f"data.archive.intervals={{{part}: {{{replace(variable, period=0)}: 6h}}}}"
        raise InputError(
            f"the length of the intervals of {variable} in the {part}{where} is unknown, or differs between times; if "
            f"it differs, write one period in the task, such as {replace(variable, period=24)}; if files state none, "
            f"state it, for instance with '{example}', or with since_start instead of 6h for intervals that begin at "
            f"the start of the forecast; for monitor, with 'variable_names={{{replace(variable, period=0)}: "
            f"{replace(variable, period=24)}}}'"
        )


def differences(
    own: Sequence[Meaning], own_leads: Sequence[int], other: Sequence[Meaning], leads: Sequence[int]
) -> list[str]:
    """Return texts on how two sequences of meanings of the same channels differ in units, levels and intervals.

    `own_leads` and `leads` (hours) are the lead times of the intervals. Only lead times that both have are compared;
    unknown intervals and levels do not count as different.
    """
    found = []
    for one, two in zip(own, other, strict=True):
        if one.units != two.units:
            found.append(f"{one.variable} in {one.units or 'unknown units'}, not {two.units or 'unknown units'}")
        if _on_other_levels(one, two):
            found.append(f"{one.variable} on {one.level}, not {two.level}")
        first, second = dict(zip(own_leads, one.intervals, strict=True)), dict(zip(leads, two.intervals, strict=True))
        for lead in first.keys() & second.keys():
            a, b = first[lead], second[lead]
            if a != b and UNKNOWN not in (a, b):
                found.append(f"{one.variable} at lead time {lead} h over {a / 60:g} h, not {b / 60:g} h")
                break
    return found


def list_unknown(meanings: Sequence[Meaning]) -> str:
    """Return a message that counts and names the variables whose intervals are unknown; empty if there are none."""
    names = list(dict.fromkeys(str(meaning.variable) for meaning in meanings if UNKNOWN in meaning.intervals))
    if not names:
        return ""
    return (
        f"{len(names)} inputs cover intervals of unknown or varying length: {', '.join(names)}; "
        f"where files state none, data.archive.intervals can, for instance {{{names[0]}: 6h}}"
    )
