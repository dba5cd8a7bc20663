"""The statistical process of a variable, from CF's `cell_methods` and from the attributes that cfgrib writes.

CF conventions, section 7.3 and appendix E. The comment `(interval: 1 hour)` is the spacing of the data that the method
was applied to, not the length of a cell: only bounds give that length.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from data_pipeline.common.errors import InputError
from data_pipeline.formats.cf.cf_header import Role

PROCESS_OF = {
    "point": "instant", "instant": "instant", "mean": "mean", "average": "mean", "avg": "mean",
    "sum": "accumulation", "accum": "accumulation", "accumulation": "accumulation",
    "maximum": "maximum", "max": "maximum", "minimum": "minimum", "min": "minimum",
}  # fmt: skip
"""Processes by their names in `cell_methods` and in `GRIB_stepType`."""

_STATISTICS_OF_GRIB = {
    "em": "an ensemble mean", "taem": "an ensemble mean", "es": "an ensemble standard deviation",
    "taes": "an ensemble standard deviation", "ssd": "an ensemble standard deviation", "ep": "a probability",
    "pb": "a probability", "fp": "a probability", "cd": "a quantile",
    "efi": "an extreme forecast index", "efic": "an extreme forecast index", "sot": "a shift of tails",
}  # fmt: skip
"""Values of `GRIB_dataType` for fields that are neither members nor analyses."""
_STATISTIC_COORDINATES = ("percentile", "percentiles", "quantile", "quantiles", "threshold", "probability")
PRODUCT_ATTRIBUTE = "deepweather_product"
"""Attribute of variables that `correct` has written as products; its value is their kind."""
_MODIFIERS = ("detection_minimum", "number_of_observations", "standard_error", "status_flag")
"""Modifiers (second words) of a standard_name; a variable with one does not hold the named quantity itself."""


class CellMethod(NamedTuple):
    """One entry of `cell_methods`: coordinates, method, and the words after the method, such as `within days`."""

    names: tuple[str, ...]
    method: str
    qualifier: str


def parse_cell_methods(text: str) -> list[CellMethod]:
    """Return the entries of an attribute `cell_methods`, without comments.

    >>> parse_cell_methods("area: mean time: maximum within days (interval: 1 hour)")[1]
    CellMethod(names=('time',), method='maximum', qualifier='within days')
    """
    words = re.sub(r":(?=\S)", ": ", re.sub(r"\([^()]*\)", " ", text)).split()
    found: list[CellMethod] = []
    names: list[str] = []
    for word in words:
        if word.endswith(":"):
            names.append(word[:-1])
        elif names:
            found.append(CellMethod(tuple(names), word.lower(), ""))
            names = []
        elif found:
            found[-1] = found[-1]._replace(qualifier=f"{found[-1].qualifier} {word}".strip())
    return found


def stated_process(attributes: Mapping[str, object], role: Callable[[str], Role | None]) -> str | None:
    """Return the statistical process over time that attributes state; None if they state none.

    `role` gives the role of a coordinate by its name. Raises `InputError` for statistics of an ensemble, for other
    statistics than means, sums, maxima and minima, and where `cell_methods` and `GRIB_stepType` disagree.
    """
    text = str(attributes.get("cell_methods", ""))
    over_time: list[CellMethod] = []
    for entry in parse_cell_methods(text):
        roles = {role(name) for name in entry.names}
        if roles & {"number", "start"} and entry.method != "point":
            over = "members" if "number" in roles else "starts"
            raise InputError(
                f"it is the {entry.method.replace('_', ' ')} over {over} (cell_methods {text!r}), no member of an "
                "ensemble; name other variables or files"
            )
        if roles & {"time", "valid", "lead"}:
            over_time.append(entry)
    if len({entry.method for entry in over_time}) > 1 or any(
        re.search(r"\b(within|over) (days|years)", entry.qualifier) for entry in over_time
    ):
        raise InputError(
            f"it is a climatology or a statistic of a statistic over time (cell_methods {text!r}), which is not read; "
            "name other variables or files"
        )
    stated = [(f"cell_methods {text!r}", entry.method) for entry in over_time[:1]]
    grib = str(attributes.get("GRIB_stepType", ""))
    if grib and not (stated and grib == "instant"):
        # cdo computes means of instantaneous fields, adds cell_methods and keeps the other attributes.
        stated.append((f"GRIB_stepType {grib!r}", "mean" if grib.startswith("avg") else grib))
    processes: dict[str, str] = {}
    for attribute, method in stated:
        if method not in PROCESS_OF:
            raise InputError(
                f"its values are no means, sums, maxima or minima over time ({attribute}); name other variables or "
                "files"
            )
        processes[PROCESS_OF[method]] = attribute
    if len(processes) > 1:
        raise InputError(
            f"its attributes {' and '.join(processes.values())} contradict each other; leave the wrong one out of "
            "a copy, for instance with ncatted -a GRIB_stepType,NAME,d,, IN OUT"
        )
    return next(iter(processes), None)


def refuse_statistics(attributes: Mapping[str, object], coordinates: Collection[str]) -> None:
    """Raise an `InputError` for means, spreads, probabilities and quantiles of an ensemble: they are not members.

    `coordinates` are the names of the variable's dimensions and of its other coordinates.
    """
    what = ""
    if (kind := str(attributes.get("GRIB_dataType", ""))) in _STATISTICS_OF_GRIB:
        what = f"{_STATISTICS_OF_GRIB[kind]} (GRIB_dataType {kind!r})"
    elif PRODUCT_ATTRIBUTE in attributes:
        what = f"a {attributes[PRODUCT_ATTRIBUTE]} that correct has written"
    elif set(str(attributes.get("standard_name", "")).split()[1:]) & {*_MODIFIERS}:
        what = f"a statistic (standard_name {attributes['standard_name']!r})"
    elif found := [name for name in sorted(coordinates) if name.lower() in _STATISTIC_COORDINATES]:
        what = f"a statistic (it has the coordinate {found[0]})"
    if what:
        raise InputError(f"it is {what}, no member of an ensemble and no analysis; name other variables or files")
