"""Thresholds: parse events such as `> 0 degC` or `< 10 %` (a percentile of the climatology) from options."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from data_pipeline.common.errors import InputError
from data_pipeline.task import Task, Variable
from data_pipeline.variables.parameters import PARAMETERS
from data_pipeline.variables.units import find_conversion

Side = Literal[">=", "<=", ">", "<"]

_FORM = re.compile(
    r"(?:(?P<target>\S*[^\s<>=])\s+)?(?P<side>[<>]=?)\s*"
    r"(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)\s*(?P<units>.*)",
    re.IGNORECASE,
)
_EXAMPLES = "write one such as '> 0 degC', '>= 1 mm', '< 10 %' (a percentile of the climatology) or '2t > 273.15'"


@dataclass(frozen=True)
class Threshold:
    """The event that a value lies on one `side` of a number.

    `value` is in the units of the target. If `climatological`, it is a probability, and the number is this quantile of
    the climatology reference for the cell and the season. `label` is the text in tables and figures.
    """

    side: Side
    value: float
    climatological: bool = False
    label: str = ""

    def __post_init__(self) -> None:
        if self.side not in get_args(Side):
            raise InputError(f"thresholds: {self.side!r} is not one of {', '.join(get_args(Side))}; {_EXAMPLES}")
        if not math.isfinite(self.value):
            raise InputError(f"thresholds: {self.value} is not a finite number; {_EXAMPLES}")
        if self.climatological and not 0 < self.value < 1:
            raise InputError(
                f"thresholds: {100 * self.value:g} % is not a percentile of the climatology; choose one between 0 and "
                "100"
            )
        if not self.label:
            number = f"{100 * self.value:g} %" if self.climatological else f"{self.value:g}"
            object.__setattr__(self, "label", f"{self.side} {number}")

    @property
    def above(self) -> bool:
        """Whether the event lies above the number."""
        return self.side.startswith(">")

    @property
    def closed(self) -> bool:
        """Whether the number itself belongs to the event."""
        return self.side.endswith("=")


def without_climatology(thresholds: tuple[tuple[Threshold, ...], ...]) -> tuple[tuple[Threshold, ...], ...]:
    """Return the thresholds that need no climatology."""
    return tuple(tuple(one for one in of_target if not one.climatological) for of_target in thresholds)


def parse_thresholds(option: object, task: Task, *, fitting: bool = False) -> tuple[tuple[Threshold, ...], ...]:
    """Return the thresholds of each target of `task` from a list of texts.

    A text is `SIDE NUMBER UNITS`, such as `>= 1 mm`, optionally after the name of a target. The units `%` stand for a
    percentile of the climatology. Without units, the number is in the units of the target. With `fitting`, a threshold
    that applies to no target is left out instead of refused; this is for the default thresholds of a task whose targets
    were replaced.
    """
    if isinstance(option, str) or not isinstance(option, Iterable):
        raise InputError(f"thresholds must be a list, got {option!r}; {_EXAMPLES}")
    found: list[list[Threshold]] = [[] for _ in task.targets]
    for text in option:
        form = _FORM.fullmatch(str(text).strip())
        if not form:
            raise InputError(f"thresholds: cannot read {str(text)!r}; {_EXAMPLES}")
        names = [str(target) for target in task.targets]
        if form["target"] and form["target"] not in names:
            if fitting:
                continue
            raise InputError(
                f"thresholds: {text!r} is about {form['target']}, which is not a target of the task {task.name}; its "
                f"targets are {', '.join(names)}"
            )
        chosen = [t for t, name in enumerate(names) if form["target"] in (None, name)]
        if not form["units"] and len(chosen) > 1:
            raise InputError(
                f"thresholds: {text!r} has no units, and the task {task.name} has several targets; begin with the name "
                f"of one of {', '.join(names)}"
            )
        applied = 0
        for t in chosen:
            threshold = _of_target(form, task.targets[t], str(text))
            if threshold is None:
                continue
            if threshold.label in [other.label for other in found[t]]:
                raise InputError(f"thresholds: {text!r} is given twice; remove one")
            found[t].append(threshold)
            applied += 1
        if not applied and not fitting:
            raise InputError(
                f"thresholds: {form['units']!r} of {text!r} cannot be converted to the units of "
                + ", ".join(
                    f"{name} ({task.targets[t].units or 'unknown'})" for t, name in enumerate(names) if t in chosen
                )
            )
    return tuple(tuple(of_target) for of_target in found)


def _of_target(form: re.Match[str], target: Variable, text: str) -> Threshold | None:
    """Return the threshold in the units of `target`; None if the units of the text cannot be converted to them."""
    side, number, units = form["side"], float(form["number"]), form["units"].strip()
    if units == "%":
        return Threshold(side, number / 100, climatological=True, label=f"{side} {number:g} %")  # type: ignore[arg-type]
    value = number
    if units:
        water = target.name in PARAMETERS and PARAMETERS[target.name].water
        conversion = find_conversion(units, target.units, water=water) if target.units else None
        if conversion is None:
            return None
        value = number * conversion.factor + conversion.offset
    for bound, outside in zip(target.bounds, (float.__lt__, float.__gt__), strict=True):
        if bound is not None and (outside(value, bound) or (value == bound and not target.near_bound)):
            raise InputError(
                f"thresholds: {text!r} is {value:g} {target.units}, and {target} has no values beyond {bound:g}; give "
                "other units or another number"
            )
    return Threshold(side, value, label=f"{side} {number:g} {units or target.units}".rstrip())  # type: ignore[arg-type]
