"""Derived fields: requested variables that the files hold under another name, interval or as components.

Rain of 24 hours is the sum of hourly amounts, or the difference of two amounts since the start of a forecast.
Geopotential is geopotential height times standard gravity. `equivalents` has the list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import get_args

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.common.files import FileAddress
from data_pipeline.common.messages import warn_once
from data_pipeline.formats.catalog import DOUBLE, Catalog
from data_pipeline.formats.equivalents import Operation, needed
from data_pipeline.formats.recipes import Cookbook, Recipe
from data_pipeline.grid import Grid
from data_pipeline.protocols import FieldReader, Window
from data_pipeline.task import Variable
from data_pipeline.variables.parameters import PARAMETERS

DERIVED_ROW = np.dtype(
    [
        ("variable", "i4"), ("file", "i4"), ("init", "i8"), ("step", "i4"), ("interval", "i4"), ("number", "i4"),
        ("first", "i8"), ("count", "i4"), ("operation", "i1"),
    ]
)  # fmt: skip
"""One field: `count` terms from position `first` on, combined by an operation, a position in `OPERATIONS`.

`file` is the file of the first term.
"""

TERM = np.dtype([("row", "i8"), ("factor", "f8")])
"""A field of the base catalog, and its factor."""

OPERATIONS = get_args(Operation)
_JOIN: dict[str, np.ufunc] = {
    "sum": np.add, "maximum": np.maximum, "minimum": np.minimum, "norm": np.hypot,
}  # fmt: skip

BUFFER_BYTES = 1 << 26
"""Bytes of the fields that are combined at once."""

LONG_FORECAST = 24 * 60
"""Minutes after its start at which a forecast of an amount is no longer taken for an analysis without a warning."""
ROUNDING = 0.01
"""Part of the largest amount by which packing may let a growing amount decrease (8 bits: 1/255)."""
NEGLIGIBLE = {"m": 1e-4, "J m⁻²": 1e4, "s": 60.0}
"""Decreases that are never refused, by units: where nothing falls, the largest amount is a rounding error too."""


def derived(base: Catalog, wanted: Sequence[Variable], analyses: bool) -> Catalog:
    """Return a catalog of the `wanted` variables, made from the fields of `base`; see `Cookbook` for `analyses`.

    If the files hold every variable as it is wanted, this is `base`. A variable of which no field can be made raises
    `InputError`.
    """
    wanted = tuple(dict.fromkeys(wanted))
    stored = {v for v in wanted if v in base.wanted and not (analyses and v.processing != "instant")}
    if stored == {*wanted} and base.wanted == wanted:
        return base
    book = Cookbook(base, analyses)
    parts, terms, count = [], [], 0
    for k, variable in enumerate(wanted):
        if variable in stored:
            rows, used = _as_stored(base, np.flatnonzero(base.rows["variable"] == base.wanted.index(variable)))
        elif (whole := book.whole_fields(variable)) is not None:
            rows, used = _as_stored(base, whole)
            rows["interval"] = 60 * variable.period
            if analyses:
                rows["init"], rows["step"], rows["number"] = rows["init"] + 60 * rows["step"], 0, 0
        else:
            rows, used = _made(base, book.recipes(variable))
        if not len(rows):
            raise InputError(_cannot_make(base, variable, analyses))
        if analyses and variable.processing != "instant":
            _tell_long_forecasts(base, variable, rows, used)
        rows["variable"] = k
        rows["first"] += count
        count += len(used)
        parts.append(rows)
        terms.append(used)
    joined = np.concatenate(terms)
    sources, joined["row"] = np.unique(joined["row"], return_inverse=True)
    used_by_any = np.zeros(len(base.rows), bool)
    used_by_any[sources] = True
    return DerivedCatalog(base.where(used_by_any), wanted, np.concatenate(parts), joined)


def _as_stored(base: Catalog, used: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return rows and terms of the fields `used` of a catalog, each as it is."""
    rows, terms = np.zeros(len(used), DERIVED_ROW), np.ones(len(used), TERM)
    for name in ("file", "init", "step", "interval", "number"):
        rows[name] = base.rows[name][used]
    rows["first"], rows["count"], terms["row"] = np.arange(len(used)), 1, used
    return rows, terms


def _made(base: Catalog, recipes: Sequence[Recipe]) -> tuple[np.ndarray, np.ndarray]:
    """Return rows and terms of the fields of some recipes."""
    rows = np.zeros(len(recipes), DERIVED_ROW)
    terms = np.zeros(sum(len(recipe.rows) for recipe in recipes), TERM)
    if recipes:
        terms["row"] = np.concatenate([recipe.rows for recipe in recipes])
        terms["factor"] = np.concatenate([recipe.factors for recipe in recipes])
        rows["init"] = [60 * recipe.init for recipe in recipes]
        for name in ("step", "interval", "number"):
            rows[name] = [getattr(recipe, name) for recipe in recipes]
        rows["count"] = [len(recipe.rows) for recipe in recipes]
        rows["first"] = np.cumsum(rows["count"]) - rows["count"]
        rows["operation"] = [OPERATIONS.index(recipe.operation) for recipe in recipes]
        rows["file"] = base.rows["file"][terms["row"][rows["first"]]]
    return rows, terms


def _tell_long_forecasts(base: Catalog, variable: Variable, rows: np.ndarray, terms: np.ndarray) -> None:
    """Warn of analyses of a variable that are forecasts and begin `LONG_FORECAST` or more after their start."""
    ends = np.maximum.reduceat(base.rows["step"][terms["row"]], rows["first"])
    begins = ends - np.maximum(rows["interval"], 0)
    if not (long := begins >= LONG_FORECAST).any():
        return
    longest = int(begins.argmax())
    place = base.place(int(terms["row"][rows["first"][longest]]))
    warn_once(
        f"{base}: {long.sum():,} of {len(rows):,} analyses of {variable} are forecasts that begin a day or "
        f"more after their start, up to {begins[longest] / 60:g}-{ends[longest] / 60:g} h in {place}; their own errors "
        "make them a poor truth, so name files of observations or of shorter forecasts"
    )


def _cannot_make(base: Catalog, variable: Variable, analyses: bool) -> str:
    """Return the reason why no field of a variable can be made."""
    if not variable.period:
        return f"{base} has no analysis of {variable}, nor a short forecast of it; name files of analyses"
    places = [base.wanted.index(each) for each in needed(variable) if each in base.wanted]
    intervals = base.rows["interval"][np.isin(base.rows["variable"], places)]
    hours = sorted({interval / 60 for interval in intervals.tolist() if interval > 0})
    has = ", ".join(f"{hour:g}" for hour in hours[:8]) + (", ..." if len(hours) > 8 else "")
    if not hours:
        part, length = ("analysis", "1h") if analyses else ("ensemble", "since_start")
        return (
            f"{base} cannot give {variable}: it does not state the intervals of {variable.name}; state them, for "
            f"instance with 'data.archive.intervals={{{part}: {{{replace(variable, period=0)}: {length}}}}}'"
        )
    return (
        f"{base} cannot give {variable}: it has {variable.name} over intervals of {has} h, which do not add up to "
        f"{variable.period} h"
    )


@dataclass(frozen=True, eq=False)
class DerivedCatalog:
    """Implements `Catalog`: every row combines some of the `terms`, which are fields of `base`."""

    base: Catalog
    wanted: tuple[Variable, ...]
    rows: np.ndarray
    terms: np.ndarray

    @property
    def paths(self) -> tuple[FileAddress, ...]:
        """The files."""
        return self.base.paths

    def __str__(self) -> str:
        return str(self.base)

    def where(self, condition: np.ndarray) -> DerivedCatalog:
        """Return a catalog of the fields for which `condition` holds."""
        return replace(self, rows=self.rows[condition])

    def terms_of(self, row: int) -> np.ndarray:
        """Return the terms of a field, each a row of `base` with its factor."""
        first, count = (int(self.rows[name][row]) for name in ("first", "count"))
        return self.terms[first : first + count]

    def place(self, row: int) -> str:
        """Return the place of the first term of a field, for error messages."""
        return self.base.place(int(self.terms_of(row)["row"][0]))

    def units(self, name: str) -> tuple[str, str]:
        """Return units and long name of the variables called `name`."""
        if name in PARAMETERS:
            return PARAMETERS[name].units, PARAMETERS[name].long_name
        return self.base.units(name)

    def levels(self, rows: np.ndarray) -> Mapping[str, int]:
        """Return the level of the terms of the fields in some `rows`, and their number by level."""
        first, count = self.rows["first"][rows], self.rows["count"][rows]
        within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        return self.base.levels(np.unique(self.terms["row"][np.repeat(first, count) + within]))

    def refuse_contradiction(self, first: int, second: int) -> None:
        """Raise `InputError` for two fields of one place, unless they are equal; recipes never make a field twice."""
        self.base.refuse_contradiction(*(int(self.terms_of(row)["row"][0]) for row in (first, second)))

    @cached_property
    def reader(self) -> DerivedReader:
        """The reader of these fields."""
        files = np.array([str(path) for path in self.paths])[self.rows["file"]]
        return DerivedReader(self.base.reader, self.wanted, self.rows, self.terms, files)


@dataclass(frozen=True, eq=False)
class DerivedReader:
    """Implements `FieldReader`: combines the fields of another reader; see `DerivedCatalog`."""

    reader: FieldReader
    wanted: tuple[Variable, ...]
    rows: np.ndarray
    terms: np.ndarray
    files: np.ndarray

    @property
    def grid(self) -> Grid:
        """Latitudes and longitudes of the values; north first, west to east."""
        return self.reader.grid

    def read(self, wanted: np.ndarray, out: np.ndarray, window: Window) -> None:
        """Read the `window` of the fields with the numbers `wanted` (...) into `out` (..., h, w)."""
        there = wanted >= 0
        as_stored = there & self._as_stored[wanted]
        self.reader.read(np.where(as_stored, self.terms["row"][self.rows["first"][wanted]], -1), out, window)
        shape = out.shape[wanted.ndim :]
        for position in zip(*np.nonzero(there & ~as_stored), strict=True):
            out[position] = self._combine(int(wanted[position]), shape, window)

    @cached_property
    def _as_stored(self) -> np.ndarray:
        """Whether a field is one of the other reader's, unchanged."""
        return (self.rows["count"] == 1) & (self.terms["factor"][self.rows["first"]] == 1)

    def _combine(self, field: int, shape: tuple[int, ...], window: Window) -> np.ndarray:
        """Return one field, computed in double precision."""
        first, count = (int(self.rows[name][field]) for name in ("first", "count"))
        operation = OPERATIONS[self.rows["operation"][field]]
        total, largest = np.zeros(shape), 0.0
        at_once = max(1, BUFFER_BYTES // max(total.nbytes, 1))
        for begin in range(first, first + count, at_once):
            terms = self.terms[begin : min(begin + at_once, first + count)]
            values = np.empty((len(terms), *shape), DOUBLE)
            self.reader.read(terms["row"], values, window)
            values *= terms["factor"].reshape(-1, *[1] * len(shape))
            largest = max(largest, float(np.nanmax(abs(values), initial=0.0)))
            joined = _JOIN[operation].reduce(values)
            total = joined if begin == first else _JOIN[operation](total, joined)
        return self._without_rounding(field, total, largest) if operation == "sum" and count > 1 else total

    def _without_rounding(self, field: int, total: np.ndarray, largest: float) -> np.ndarray:
        """Return a sum with 0 for negative values that packing can explain, where the variable is never negative."""
        variable = self.wanted[self.rows["variable"][field]]
        if variable.bounds[0] != 0:
            return total
        lowest = float(np.nanmin(total, initial=0.0))
        if lowest < -max(ROUNDING * largest, NEGLIGIBLE.get(variable.units, 0.0)):
            raise InputError(
                f"{self.files[field]}: {variable} would be {lowest:g} {variable.units} somewhere, because the amounts "
                "decrease during the forecast; they are not amounts since its start, so check their step ranges"
            )
        return np.where(total < 0, 0.0, total)
