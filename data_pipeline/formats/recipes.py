"""Recipes: the fields of a catalog that make up one field of a variable, for all its times and members."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.formats.catalog import Catalog
from data_pipeline.formats.equivalents import OPERATION_OF, Operation, Source, same_extreme, sources, stated_hours
from data_pipeline.formats.repeated_fields import refuse_contradictions, refuse_several_members
from data_pipeline.formats.tiling import Terms, Tiling, TimeInterval
from data_pipeline.task import Variable
from data_pipeline.variables.meaning import INSTANT, UNKNOWN


@dataclass(frozen=True)
class Recipe:
    """One field: the combined `rows` of a catalog, each times its factor; times and interval are in minutes."""

    init: int
    step: int
    interval: int
    number: int
    rows: tuple[int, ...]
    factors: tuple[float, ...]
    operation: Operation = "sum"


@dataclass(frozen=True, eq=False)
class Cookbook:
    """Makes the recipes of variables from the fields of a catalog.

    `analyses`: the fields are analyses. Those of amounts and extremes come from short forecasts: their valid time
    becomes their start, and of several for one valid time the one with the shortest lead time is taken.
    """

    catalog: Catalog
    analyses: bool

    def recipes(self, variable: Variable) -> list[Recipe]:
        """Return the recipe of every field of a variable that can be made; none if a source is absent."""
        if variable.period:
            return list(self._joined(variable))
        return next((found for source in sources(variable) if (found := list(self._combined(variable, source)))), [])

    def whole_fields(self, variable: Variable) -> np.ndarray | None:
        """Return the rows of the fields of a variable, if all cover its interval; None if fields must be joined."""
        rows = self._rows_over_time(variable) if variable.period else np.empty(0, np.int64)
        if not rows.size or (self._intervals[rows] != 60 * variable.period).any():
            return None
        ends = self.catalog.rows["init"][rows] // 60 + self._steps[rows]
        return None if self.analyses and len(np.unique(ends)) < len(rows) else rows

    def _combined(self, variable: Variable, source: Source) -> Iterator[Recipe]:
        """Yield the fields for which the catalog has every variable of a source."""
        parts = [self._by_time(each, variable.processing != "instant") for each in source.variables]
        for key in parts[0].keys() & set.intersection(*(set(part) for part in parts)):
            rows = tuple(part[key] for part in parts)
            init, step, number = key
            interval = int(self._intervals[rows[0]])
            yield Recipe(init, step, interval, number, rows, (source.factor,) * len(rows), source.operation)

    def _by_time(self, variable: Variable, over_time: bool) -> dict[tuple[int, int, int], int]:
        """Return the row of a variable for each start, step and member."""
        rows = self._rows_of((variable,))
        if over_time and self.analyses:
            rows = rows[self._intervals[rows] != INSTANT]
            refuse_several_members(self.catalog, rows)
        part = self.catalog.rows[rows]
        starts, steps, numbers = part["init"] // 60, part["step"].astype(np.int64), part["number"]
        if over_time and self.analyses:
            starts, steps, numbers = starts + steps, 0 * steps, 0 * numbers
        found: dict[tuple[int, int, int], int] = {}
        for start, step, number, row in zip(
            starts.tolist(), steps.tolist(), numbers.tolist(), rows.tolist(), strict=True
        ):
            other = found.setdefault((start, step, number), row)
            if self._intervals[other] != self._intervals[row]:
                raise self._several_intervals(variable, other, row)
            if self._steps[row] < self._steps[other]:
                found[start, step, number] = row
        return found

    def _joined(self, variable: Variable) -> Iterator[Recipe]:
        """Yield the fields whose interval, `variable.period` hours, is made up of intervals in the catalog."""
        length, operation = 60 * variable.period, OPERATION_OF[variable.processing]
        made: dict[tuple[TimeInterval, ...], list[tuple[int, list[int], tuple[float, ...]]]] = {}
        for (init, number), (spans, rows) in self._groups(variable).items():
            own = tuple(spans)
            if own not in made:  # most members of an archive have the same steps
                made[own] = []
                for end, terms in _tile(Tiling(own, operation == "sum"), length):
                    lengths = [own[k].end - own[k].begin for k, _ in terms]
                    weights = [part / length if variable.processing == "mean" else 1.0 for part in lengths]
                    factors = tuple(sign * weight for (_, sign), weight in zip(terms, weights, strict=True))
                    made[own].append((end, [k for k, _ in terms], factors))
            for end, places, factors in made[own]:
                start, step = (end, 0) if self.analyses else (init, end)
                yield Recipe(start, step, length, number, tuple(rows[k] for k in places), factors, operation)

    def _groups(self, variable: Variable) -> dict[tuple[int, int], tuple[list[TimeInterval], list[int]]]:
        """Return, by start and member, intervals and rows of the fields that may be joined.

        Times are relative to the start. Analyses form one group with start 0.
        """
        rows = self._rows_over_time(variable)
        starts, numbers = self.catalog.rows["init"][rows] // 60, self.catalog.rows["number"][rows]
        inits = starts
        if self.analyses:
            inits, numbers = 0 * starts, 0 * numbers
        ends = starts - inits + self._steps[rows]
        spans = map(TimeInterval, (ends - self._intervals[rows]).tolist(), ends.tolist(), (starts - inits).tolist())
        groups: dict[tuple[int, int], tuple[list[TimeInterval], list[int]]] = defaultdict(lambda: ([], []))
        for key, span, row in zip(
            zip(inits.tolist(), numbers.tolist(), strict=True), spans, rows.tolist(), strict=True
        ):
            groups[key][0].append(span)
            groups[key][1].append(row)
        return groups

    def _rows_over_time(self, variable: Variable) -> np.ndarray:
        """Return the rows of fields of known intervals; analyses with several members raise `InputError`."""
        rows = self._rows_of(same_extreme(variable))
        rows = rows[self._intervals[rows] > 0]
        if self.analyses:
            refuse_several_members(self.catalog, rows)
        return rows

    def _rows_of(self, variables: tuple[Variable, ...]) -> np.ndarray:
        """Return the rows of some variables, by time; of repeated fields, which must be equal, the first."""
        places = [k for k, variable in enumerate(self.catalog.wanted) if variable in variables]
        rows = np.flatnonzero(np.isin(self.catalog.rows["variable"], places))
        part = self.catalog.rows[rows]
        keys = [self._intervals[rows], part["number"], self._steps[rows], part["init"], part["variable"]]
        order = np.lexsort(keys)
        rows, keys = rows[order], [key[order] for key in keys]
        repeated = np.logical_and.reduce([np.diff(key, prepend=key[:1] - 1) == 0 for key in keys])
        again = np.flatnonzero(repeated)
        refuse_contradictions(self.catalog, np.stack([rows[again - 1], rows[again]], 1))
        return rows[~repeated]

    @cached_property
    def _steps(self) -> np.ndarray:
        return self.catalog.rows["step"].astype(np.int64)

    @cached_property
    def _intervals(self) -> np.ndarray:
        """The interval of each row; where the file does not state it, that of the variable's name."""
        stated = np.array([60 * stated_hours(variable) or UNKNOWN for variable in self.catalog.wanted], np.int64)
        intervals = self.catalog.rows["interval"].astype(np.int64)
        return np.where(intervals == UNKNOWN, stated[self.catalog.rows["variable"]], intervals)

    def _several_intervals(self, variable: Variable, *rows: int) -> InputError:
        hours = sorted({self._intervals[row] / 60 for row in rows})
        names = " or ".join(f"{variable.name}:{hour:g}h" for hour in hours if hour > 0) or "another variable"
        return InputError(
            f"{self.catalog.place(rows[0])} and {self.catalog.place(rows[1])} both hold {variable} for one time, "
            f"over {' and '.join(f'{hour:g} h' if hour >= 0 else 'an unknown interval' for hour in hours)}; "
            f"write {names} in the task"
        )


def _tile(tiling: Tiling, length: int) -> Iterator[tuple[int, Terms]]:
    """Yield every end for which an interval of this length can be made, and its spans."""
    for end in sorted({span.end for span in tiling.spans}):
        if (terms := tiling.find(end - length, end)) is not None:
            yield end, terms
