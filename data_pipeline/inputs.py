"""Fields of all channels of a task: at the sample's lead time, other lead times, and of the analysis at the start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.protocols import ALL, Fields, FieldSource
from data_pipeline.task import Task, Variable


def input_fields(source: FieldSource, task: Task) -> Fields:
    """Open the channels of `task` to read samples from: (M, C, h, W) in the order of `Task.channels`.

    Starts for which a channel has no field at all are skipped, see `skipped_starts`.
    """
    own = source.ensemble_fields(task.inputs, task.lead_times)
    if not task.other_leads and not task.analysis:
        return own
    groups = []
    for _, same_lead in groupby(task.other_leads, lambda channel: (channel.origin, channel.hours)):
        channels = list(same_lead)
        # Each group is opened separately: files need not have a variable at a lead time that is not used.
        at = [channels[0].lead_time(lead) for lead in task.lead_times]
        fields = source.ensemble_fields([channel.variable for channel in channels], sorted(set(at)))
        group_name = f"{', '.join(map(str, channels))} of the ensemble"
        groups.append(ChannelGroup(fields, tuple(map(fields.lead_times.index, at)), _members(fields, own, group_name)))
    if task.analysis:
        fields = source.analysis_fields(task.analysis)
        groups.append(ChannelGroup(fields, (0,) * len(task.lead_times), None))
    for group in groups:
        if not own.grid.matches(group.fields.grid):
            raise InputError(
                f"task {task.name}: {', '.join(map(str, group.fields.variables))} has {group.fields.grid}, the other "
                f"inputs {own.grid}; bring all to one grid first"
            )
    complete = np.logical_and.reduce([np.isin(own.init_times, group.fields.init_times) for group in groups])
    if not complete.any():
        missing = next(group for group in groups if not np.isin(own.init_times, group.fields.init_times).any())
        raise InputError(_no_common_start(task, missing, own.init_times))
    return InputFields(own, tuple(groups), np.flatnonzero(complete))


def skipped_starts(fields: Fields) -> np.ndarray:
    """Return the starts, datetime64[s], that `input_fields` skipped because a channel has no field for them."""
    if not isinstance(fields, InputFields):
        return np.empty(0, "datetime64[s]")
    return np.delete(fields.own.init_times, fields.starts)


@dataclass(frozen=True, eq=False)
class ChannelGroup:
    """Further channels with the same lead time offset, or of the analysis.

    `leads` are positions in the lead times of `fields`, one per lead time of the task. `members` are positions of the
    ensemble's members in `fields`, None for the analysis, which all members share.
    """

    fields: Fields
    leads: tuple[int, ...]
    members: tuple[int, ...] | None


@dataclass(frozen=True, eq=False)
class InputFields:
    """Fields of all channels; implements `Fields`.

    `own` are the channels at the sample's lead time; the channels of `groups` follow. `starts` are the positions in
    `own` of the starts for which all groups have fields.
    """

    own: Fields
    groups: tuple[ChannelGroup, ...]
    starts: np.ndarray

    @property
    def grid(self) -> Grid:
        """The grid of the values; north first, west to east."""
        return self.own.grid

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The variable of each channel."""
        return sum((group.fields.variables for group in self.groups), self.own.variables)

    @property
    def init_times(self) -> np.ndarray:
        """Starts with all channels, in increasing order, datetime64[s]."""
        return self.own.init_times[self.starts]

    @property
    def lead_times(self) -> tuple[int, ...]:
        """Lead times of the samples in hours, increasing."""
        return self.own.lead_times

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of the members M."""
        return self.own.numbers

    def read(
        self, init: int, lead: int, out: np.ndarray, rows: slice = ALL, members: Sequence[int] | None = None
    ) -> None:
        """Fill `out` (M, C, h, W) with the channels of the sample at positions `init` and `lead`; see `Fields`."""
        position = int(self.starts[init])
        start, first = self.own.init_times[position], len(self.own.variables)
        self.own.read(position, lead, out[:, :first], rows, members)
        for group in self.groups:
            last = first + len(group.fields.variables)
            at = int(np.searchsorted(group.fields.init_times, start)), group.leads[lead]
            if group.members is None:
                analysis = np.empty((1, last - first, *out.shape[2:]), out.dtype)
                group.fields.read(*at, analysis, rows)
                out[:, first:last] = analysis
            else:
                selected = group.members if members is None else [group.members[m] for m in members]
                group.fields.read(*at, out[:, first:last], rows, selected)
            first = last


def _members(fields: Fields, own: Fields, group_name: str) -> tuple[int, ...]:
    """Return the positions in `fields` of the members of `own`."""
    if absent := [number for number in own.numbers if number not in fields.numbers]:
        raise InputError(
            f"{group_name} has no member {absent[0]}, which the other inputs have; add its files, or remove it from all"
        )
    return tuple(map(fields.numbers.index, own.numbers))


def _no_common_start(task: Task, group: ChannelGroup, starts: np.ndarray) -> str:
    names = ", ".join(map(str, group.fields.variables))
    kind = "analysis of" if group.members is None else "other lead time of"
    times = group.fields.init_times
    return (
        f"task {task.name}: no forecast has the {kind} {names} at its start: forecasts start between {starts.min()} "
        f"and {starts.max()}, these fields are for {times.min()} to {times.max()}; add files, or remove these inputs"
    )
