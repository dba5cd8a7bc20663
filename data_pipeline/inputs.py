"""Inputs: the fields of all channels of a task, whatever lead time or analysis each of them comes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.protocols import ALL, Fields
from data_pipeline.task import Task, Variable


class FieldSource(Protocol):
    """What is needed of `data_pipeline.protocols.Source`."""

    def ensemble_fields(self, variables: Sequence[Variable], lead_times: Sequence[int]) -> Fields:
        """Open the ensemble to read samples from."""

    def analysis_fields(self, variables: Sequence[Variable]) -> Fields:
        """Open the truth to read samples from."""


def input_fields(source: FieldSource, task: Task) -> Fields:
    """Open the channels of `task` to read samples from: (M, C, h, W) in the order of `Task.channels`.

    Starts for which a channel has no field at all are left out, see `left_out`.
    """
    own = source.ensemble_fields(task.inputs, task.lead_times)
    if not task.other_leads and not task.analysis:
        return own
    parts = []
    for _, group in groupby(task.other_leads, lambda channel: (channel.origin, channel.hours)):
        channels = list(group)
        # Each is opened by itself: a variable need not be in the files at a lead time at which it is no input.
        at = [channels[0].lead_time(lead) for lead in task.lead_times]
        fields = source.ensemble_fields([channel.variable for channel in channels], sorted(set(at)))
        what = f"{', '.join(map(str, channels))} of the ensemble"
        parts.append(Part(fields, tuple(map(fields.lead_times.index, at)), _members(fields, own, what)))
    if task.analysis:
        fields = source.analysis_fields(task.analysis)
        parts.append(Part(fields, (0,) * len(task.lead_times), None))
    for part in parts:
        if not own.grid.matches(part.fields.grid):
            raise InputError(
                f"task {task.name}: {', '.join(map(str, part.fields.variables))} has {part.fields.grid}, the other "
                f"inputs {own.grid}; bring all to one grid first"
            )
    complete = np.logical_and.reduce([np.isin(own.init_times, part.fields.init_times) for part in parts])
    if not complete.any():
        lacking = next(part for part in parts if not np.isin(own.init_times, part.fields.init_times).any())
        raise InputError(_nothing(task, lacking, own.init_times))
    return InputFields(own, tuple(parts), np.flatnonzero(complete))


def left_out(fields: Fields) -> np.ndarray:
    """Return the starts, datetime64[s], that `input_fields` left out because a channel has no field for them."""
    if not isinstance(fields, InputFields):
        return np.empty(0, "datetime64[s]")
    return np.delete(fields.own.init_times, fields.starts)


@dataclass(frozen=True, eq=False)
class Part:
    """Further channels: their `fields`, at `leads` the position of the lead time for each lead time of the task.

    `members` are the positions of the ensemble's members, None for the analysis, which all members share.
    """

    fields: Fields
    leads: tuple[int, ...]
    members: tuple[int, ...] | None


@dataclass(frozen=True, eq=False)
class InputFields:
    """Fields of all channels (see `Fields`): those at the sample's lead time are `own`, the `parts` follow.

    `starts` are the positions in `own` of the starts for which all parts have fields.
    """

    own: Fields
    parts: tuple[Part, ...]
    starts: np.ndarray

    @property
    def grid(self) -> Grid:
        """Where the values lie; north first, west to east."""
        return self.own.grid

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The variable of each channel."""
        return sum((part.fields.variables for part in self.parts), self.own.variables)

    @property
    def init_times(self) -> np.ndarray:
        """Starts that have all channels, in increasing order, datetime64[s]."""
        return self.own.init_times[self.starts]

    @property
    def lead_times(self) -> tuple[int, ...]:
        """Hours, in increasing order: the lead times of the samples."""
        return self.own.lead_times

    @property
    def numbers(self) -> tuple[int, ...]:
        """The members M, by their numbers."""
        return self.own.numbers

    def read(
        self, init: int, lead: int, out: np.ndarray, rows: slice = ALL, members: Sequence[int] | None = None
    ) -> None:
        """Fill `out` (M, C, h, W) with the channels of the sample at positions `init` and `lead`; see `Fields`."""
        position = int(self.starts[init])
        start, first = self.own.init_times[position], len(self.own.variables)
        self.own.read(position, lead, out[:, :first], rows, members)
        for part in self.parts:
            last = first + len(part.fields.variables)
            at = int(np.searchsorted(part.fields.init_times, start)), part.leads[lead]
            if part.members is None:
                analysis = np.empty((1, last - first, *out.shape[2:]), out.dtype)
                part.fields.read(*at, analysis, rows)
                out[:, first:last] = analysis
            else:
                chosen = part.members if members is None else [part.members[m] for m in members]
                part.fields.read(*at, out[:, first:last], rows, chosen)
            first = last


def _members(fields: Fields, own: Fields, what: str) -> tuple[int, ...]:
    """Return where the members of `own` are among those of `fields`."""
    if absent := [number for number in own.numbers if number not in fields.numbers]:
        raise InputError(
            f"{what} has no member {absent[0]}, which the other inputs have; add its files, or leave it out of all"
        )
    return tuple(map(fields.numbers.index, own.numbers))


def _nothing(task: Task, part: Part, starts: np.ndarray) -> str:
    what = ", ".join(map(str, part.fields.variables))
    kind = "analysis of" if part.members is None else "other lead time of"
    times = part.fields.init_times
    return (
        f"task {task.name}: no forecast has the {kind} {what} at its start: forecasts start between {starts.min()} and "
        f"{starts.max()}, and those fields are for {times.min()} to {times.max()}; add files, or leave these inputs out"
    )
