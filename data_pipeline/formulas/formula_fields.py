"""The channels of a task with formulas, which are computed when a forecast is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.formulas.formula_values import Computed, FormulaValues
from data_pipeline.grid import Grid
from data_pipeline.protocols import ALL, FieldReader, Fields, Window
from data_pipeline.task import Channel, Task
from data_pipeline.variables.meaning import INSTANT, Meaning
from data_pipeline.variables.units import normalize_units


def without_formulas(task: Task) -> Task:
    """Return `task` without formulas, but with the fields that its formulas read as further channels."""
    leaves = dict.fromkeys(leaf for formula in task.formulas for leaf in formula.leaves)
    inputs = tuple(dict.fromkeys((*task.inputs, *(leaf.variable for leaf in leaves if leaf.origin == "lead"))))
    others = tuple(dict.fromkeys((*task.other_leads, *(leaf for leaf in leaves if leaf.origin != "lead"))))
    return replace(task, inputs=inputs, other_leads=others, formulas=())


def formula_fields(base: Fields, task: Task) -> Fields:
    """Return the fields of all channels of `task`; `base` has the fields of `without_formulas(task)`.

    Raises `InputError` for formulas that cannot be computed on the grid, or from the units of the fields.
    """
    plain = [_channels(task)[channel] for channel in replace(task, formulas=()).channels]
    *shape, count = base.cells.shape
    first = int(base.cells.max(initial=-1)) + 1
    formulas = np.arange(first, first + int(np.prod(shape)) * len(task.formulas), dtype=np.int32)
    cells = np.concatenate([base.cells[..., plain], formulas.reshape(*shape, -1)], axis=-1)
    reader = FormulaReader(base.reader, base.cells.reshape(-1, count), task, first)
    variables = tuple(channel.variable for channel in task.channels)
    return replace(base, reader=reader, variables=variables, cells=cells, meanings=_meanings(base, task, plain))


def _meanings(base: Fields, task: Task, plain: Sequence[int]) -> tuple[Meaning, ...]:
    """Return units, intervals and level of each channel; raises `InputError` for units that a formula cannot use."""
    channels, found = _channels(task), base.meanings
    units = {channel: found[k].units for channel, k in channels.items()}
    for formula in task.formulas:
        for leaf in formula.leaves:
            stated = normalize_units(leaf.variable.units) if leaf.variable.units else ""
            if units[leaf] and stated and units[leaf] != stated:
                raise InputError(
                    f"{formula} needs {leaf} in {stated}, the files have {units[leaf]}; convert them, for instance "
                    "with cdo, or remove the formula from task.formulas"
                )
    instant = (INSTANT,) * len(base.lead_times)
    formulas = [
        Meaning(
            formula, formula.units_from(units), instant,
            " and ".join(dict.fromkeys(filter(None, (found[channels[leaf]].level for leaf in formula.leaves)))),
        )
        for formula in task.formulas
    ]  # fmt: skip
    return (*(found[k] for k in plain), *formulas)


def _channels(task: Task) -> dict[Channel, int]:
    """Return the position of each channel of `without_formulas(task)`."""
    return {channel: k for k, channel in enumerate(without_formulas(task).channels)}


@dataclass(frozen=True, eq=False)
class FormulaReader:
    """Reads fields of `base`, and computes the formulas of `task`, which are numbered from `first` on.

    `cells` (n, channel) are the fields of each start, lead time and member from which its formulas are computed.

    Every member is computed separately, in double precision, from full rows and the rows around them. So mean and
    spread of a formula are those of the members' values, and a tile has the same values as the whole grid.
    """

    base: FieldReader
    cells: np.ndarray
    task: Task
    first: int

    def __post_init__(self) -> None:
        for formula in self.task.formulas:
            try:
                self._values.check(formula)
            except InputError as error:
                raise InputError(f"{formula}: {error}; remove it from task.formulas") from None

    @property
    def grid(self) -> Grid:
        """The grid of the values, north first, west to east."""
        return self.base.grid

    def read(self, wanted: np.ndarray, out: np.ndarray, window: Window) -> None:
        """Read the `window` of the fields with the numbers `wanted` (..., C); see `FieldReader`."""
        for member in np.ndindex(wanted.shape[:-1]):  # one at a time bounds the memory
            numbers, own = wanted[member], out[member]
            places = np.where(numbers >= self.first, (numbers - self.first) // len(self.task.formulas), -1)
            several = np.unique(places[places >= 0])
            if len(several) < 2:
                self._read_member(numbers, own, window)
                continue
            for place in (-1, *several):  # a reader of stations asks for fields of several members at once
                at = np.flatnonzero(places == place)
                part = np.empty((len(at), *own.shape[1:]), out.dtype)
                self._read_member(numbers[at], part, window)
                own[at] = part

    def _read_member(self, wanted: np.ndarray, out: np.ndarray, window: Window) -> None:
        """Fill `out` (C, h, w) with fields of one start, lead time and member."""
        computed_at = np.flatnonzero(wanted >= self.first)
        if not len(computed_at):
            self.base.read(wanted, out, window)
            return
        places, numbers = np.divmod(wanted[computed_at] - self.first, len(self.task.formulas))
        fields, formulas = self.cells[places[0]], [self.task.formulas[k] for k in numbers]
        height, width = self.grid.shape
        selected, columns = np.arange(height)[window[0]], window[1]
        rows = slice(int(selected[0]), int(selected[-1]) + 1)
        read = [self._values.rows_read(formula, rows) for formula in formulas]
        wide = slice(min(one.start for one in read), max(one.stop for one in read))
        values = np.empty((len(fields), wide.stop - wide.start, width), out.dtype)
        self.base.read(fields, values, (wide, ALL))

        def rows_of(field: int, needed: slice) -> np.ndarray:
            return values[field, needed.start - wide.start : needed.stop - wide.start]

        def read_rows(channel: Channel, part: slice) -> np.ndarray:
            return rows_of(self._channels[channel], part).astype(np.float64)

        for k in np.flatnonzero(wanted < self.first):
            out[k] = rows_of(int(np.flatnonzero(fields == wanted[k])[0]), rows)[:, columns]
        computed: Computed = {}
        for k, formula in zip(computed_at, formulas, strict=True):
            out[k] = self._values.compute(formula, rows, read_rows, computed)[:, columns]

    @cached_property
    def _channels(self) -> dict[Channel, int]:
        """The position of each channel in `cells`."""
        return _channels(self.task)

    @cached_property
    def _values(self) -> FormulaValues:
        return FormulaValues(self.grid, self.task.formulas)
