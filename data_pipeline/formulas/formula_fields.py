"""FormulaFields: the channels of a task with formulas; formulas are computed when a forecast is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.formulas.formula_values import Computed, FormulaValues
from data_pipeline.grid import Grid
from data_pipeline.meaning import INSTANT, Meaning
from data_pipeline.protocols import ALL, Fields, MissingFields
from data_pipeline.task import Channel, Task, Variable
from data_pipeline.units import normalize_units


def without_formulas(task: Task) -> Task:
    """Return `task` without formulas, but with the fields that its formulas read as further channels."""
    leaves = dict.fromkeys(leaf for formula in task.formulas for leaf in formula.leaves)
    inputs = tuple(dict.fromkeys((*task.inputs, *(leaf.variable for leaf in leaves if leaf.origin == "lead"))))
    others = tuple(dict.fromkeys((*task.other_leads, *(leaf for leaf in leaves if leaf.origin != "lead"))))
    return replace(task, inputs=inputs, other_leads=others, formulas=())


@dataclass(frozen=True, eq=False)
class FormulaFields:
    """Fields of all channels of `task`; implements `Fields`. `base` has the fields of `without_formulas(task)`.

    Every member is computed separately, in double precision, from full rows and the rows around them. So mean and
    spread of a formula are those of the members' values, and a tile has the same values as the whole grid.
    """

    base: Fields
    task: Task

    def __post_init__(self) -> None:
        for formula in self.task.formulas:
            try:
                self._values.check(formula)
            except InputError as error:
                raise InputError(f"{formula}: {error}; remove it from task.formulas") from None
        _ = self.meanings

    @property
    def grid(self) -> Grid:
        """The grid of the values, north first, west to east."""
        return self.base.grid

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The variable of each channel."""
        return tuple(channel.variable for channel in self.task.channels)

    @property
    def init_times(self) -> np.ndarray:
        """Starts with all fields, in increasing order, datetime64[s]."""
        return self.base.init_times

    @property
    def lead_times(self) -> tuple[int, ...]:
        """Lead times of the samples in hours, increasing."""
        return self.base.lead_times

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of the M members."""
        return self.base.numbers

    @property
    def incomplete(self) -> Mapping[tuple[int, int], MissingFields]:
        """The missing fields of each incomplete forecast, including fields that only formulas read."""
        return self.base.incomplete

    @cached_property
    def meanings(self) -> tuple[Meaning, ...]:
        """Units, intervals and level of each channel; raises `InputError` for units that a formula cannot use."""
        channels, found = self._channels, self.base.meanings
        units = {channel: found[k].units for channel, k in channels.items()}
        for formula in self.task.formulas:
            for leaf in formula.leaves:
                stated = normalize_units(leaf.variable.units) if leaf.variable.units else ""
                if units[leaf] and stated and units[leaf] != stated:
                    raise InputError(
                        f"{formula} needs {leaf} in {stated}, the files have {units[leaf]}; convert them, for instance "
                        "with cdo, or remove the formula from task.formulas"
                    )
        instant = (INSTANT,) * len(self.lead_times)
        formulas = [
            Meaning(
                formula, formula.units_from(units), instant,
                " and ".join(dict.fromkeys(filter(None, (found[channels[leaf]].level for leaf in formula.leaves)))),
            )
            for formula in self.task.formulas
        ]  # fmt: skip
        return (*(found[k] for k in self._plain), *formulas)

    def read(
        self, init: int, lead: int, out: np.ndarray, rows: slice = ALL, members: Sequence[int] | None = None
    ) -> None:
        """Fill `out` (M, C, h, W) with the channels of the sample at positions `init` and `lead`; see `Fields`."""
        start, stop, _ = rows.indices(self.grid.shape[0])
        rows = slice(start, stop)
        read = [self._values.rows_read(formula, rows) for formula in self.task.formulas]
        wide = slice(min(one.start for one in read), max(one.stop for one in read))
        shape = (len(self.base.variables), wide.stop - wide.start, out.shape[-1])
        # Members are read one at a time, to bound the memory.
        values = np.empty((1, *shape), out.dtype)
        positions = range(len(self.numbers)) if members is None else members
        for own, member in zip(out, positions, strict=True):
            self.base.read(init, lead, values, wide, (member,))
            own[: len(self._plain)] = values[0, self._plain, start - wide.start : stop - wide.start]

            def field(channel: Channel, needed: slice) -> np.ndarray:
                part = values[0, self._channels[channel], needed.start - wide.start : needed.stop - wide.start]
                return part.astype(np.float64)

            computed: Computed = {}
            for k, formula in enumerate(self.task.formulas, len(self._plain)):
                own[k] = self._values.compute(formula, rows, field, computed)

    @cached_property
    def _channels(self) -> dict[Channel, int]:
        """The position in `base` of each channel of `base`."""
        return {channel: k for k, channel in enumerate(without_formulas(self.task).channels)}

    @cached_property
    def _plain(self) -> list[int]:
        """The positions in `base` of the task's channels that are not formulas."""
        return [self._channels[channel] for channel in replace(self.task, formulas=()).channels]

    @cached_property
    def _values(self) -> FormulaValues:
        return FormulaValues(self.grid, self.task.formulas)
