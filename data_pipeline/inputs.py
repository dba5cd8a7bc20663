"""Open the fields that samples of a task are read from: all channels, the truth and the static fields."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.dates import Dates
from data_pipeline.formulas.formula_fields import FormulaFields, without_formulas
from data_pipeline.grid import Grid, how_to_regrid
from data_pipeline.grid_coordinates import static_on
from data_pipeline.meaning import UNKNOWN, Meaning, check_targets
from data_pipeline.points import Points
from data_pipeline.protocols import ALL, DataSource, Fields, FieldSource, FormulaSource, MissingFields
from data_pipeline.task import POSITION, Channel, Task, Variable
from data_pipeline.tile_reader import read_moments

if TYPE_CHECKING:
    import xarray as xr


class OpenedTask(NamedTuple):
    """The channels of a task, the analyses of its targets, and its static fields (S, H, W)."""

    inputs: Fields
    truth: Fields
    static: np.ndarray


def open_task(source: DataSource, task: Task, dates: Dates, moments: bool = False) -> OpenedTask:
    """Open all fields that samples of `task` are read from; with `moments`, mean and spread of the members suffice.

    All code opens a task with this function, so an unsuitable task is always refused with the same `InputError`: for
    absent fields, for different grids, units or intervals in ensemble and analysis, and for absent static fields.
    """
    source.check_available(task, dates, moments)
    inputs, truth = input_fields(source, task), source.analysis_fields(task.targets)
    if not inputs.grid.matches(truth.grid):
        advice = how_to_regrid(inputs.grid, truth.grid)
        raise InputError(f"the ensemble has {inputs.grid}, the analysis {truth.grid}; {advice}")
    meanings = inputs.meanings
    check_targets([meanings[k] for k in task.target_channels], truth.meanings, task.lead_times)
    return OpenedTask(inputs, truth, static_values(inputs.grid, task, source.static))


def input_fields(source: FieldSource, task: Task) -> Fields:
    """Open the channels of `task` to read samples from: (M, C, h, W) in the order of `Task.channels`.

    Starts at which a channel has no field at all are left out, see `starts_without_input`. Formulas are computed when a
    sample is read, unless the source holds their values.
    """
    if not task.formulas:
        return _read_fields(source, task)
    held = source.formulas if isinstance(source, FormulaSource) else ()
    if {*task.formulas} <= {*held}:
        return _read_fields(source, task)
    return FormulaFields(_read_fields(source, without_formulas(task)), task)


def _read_fields(source: FieldSource, task: Task) -> Fields:
    """Open the channels of a task whose formulas the source holds."""
    own = source.ensemble_fields(task.inputs, task.lead_times)
    if not task.other_leads and not task.analysis and not task.formulas:
        return own
    groups = []
    for _, same_lead in groupby(task.other_leads, lambda channel: (channel.origin, channel.hours)):
        channels = list(same_lead)
        # Each group is opened separately: files need not have a variable at a lead time that is not used.
        at = [channels[0].lead_time(lead) for lead in task.lead_times]
        there = sorted({lead for lead in at if lead >= 0})
        fields = source.ensemble_fields([channel.variable for channel in channels], there)
        leads = tuple(fields.lead_times.index(lead) if lead >= 0 else BEFORE_START for lead in at)
        members = _members(fields, own, channels)
        groups.append(ChannelGroup(tuple(channels), fields, leads, members))
    if task.analysis:
        fields = source.analysis_fields(task.analysis)
        channels = [Channel(variable, "analysis") for variable in task.analysis]
        groups.append(ChannelGroup(tuple(channels), fields, (0,) * len(task.lead_times), None))
    if task.formulas:
        fields = source.ensemble_fields(task.formulas, task.lead_times)
        channels = list(map(Channel, task.formulas))
        members = _members(fields, own, channels)
        groups.append(ChannelGroup(tuple(channels), fields, tuple(range(len(task.lead_times))), members))
    for group in groups:
        if not own.grid.matches(group.fields.grid):
            raise InputError(
                f"task {task.name}: {', '.join(map(str, group.fields.variables))} has {group.fields.grid}, the other "
                f"inputs {own.grid}; {how_to_regrid(own.grid, group.fields.grid)}"
            )
    complete = np.logical_and.reduce([np.isin(own.init_times, group.fields.init_times) for group in groups])
    if not complete.any():
        missing = next(group for group in groups if not np.isin(own.init_times, group.fields.init_times).any())
        raise InputError(_no_common_start(task, missing, own.init_times))
    return InputFields(own, tuple(groups), np.flatnonzero(complete))


def starts_without_input(fields: Fields, empty: bool = False) -> dict[np.datetime64, tuple[str, ...]]:
    """Return the starts at which a group of channels has no field at all, with the names of these channels.

    In files, such fields are absent, and `input_fields` has left out their starts. In datasets of xarray, all their
    values may be missing instead; with `empty`, these starts are returned too, for which all values are read.
    """
    fields = fields.base if isinstance(fields, FormulaFields) else fields
    found: dict[np.datetime64, tuple[str, ...]] = {}
    if not isinstance(fields, InputFields):
        return found
    for group in fields.groups:
        incomplete = group.fields.incomplete if empty else {}
        lacking = Counter(init for (init, _), lacks in incomplete.items() if lacks.count == lacks.of)
        gone = [init for init, count in lacking.items() if count == len(group.fields.lead_times)]
        known = np.delete(group.fields.init_times, gone)
        for start in fields.own.init_times[~np.isin(fields.own.init_times, known)]:
            found[start] = found.get(start, ()) + tuple(map(str, group.channels))
    return found


def static_values(grid: Grid, task: Task, available: xr.Dataset) -> np.ndarray:
    """Return the static channels of a task, (S, H, W): position on the unit sphere, then fields of the archive.

    The field `altitude` of points is taken from their coordinates.
    """
    lat, lon = np.radians(grid.cell_latitudes), np.radians(grid.cell_longitudes)
    known = dict(
        zip(POSITION, (np.sin(lat) + 0 * lon, np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon)), strict=True)
    )
    if isinstance(grid, Points) and grid.altitudes:
        known["altitude"] = np.array(grid.altitudes)[:, None]
    for name in task.static:
        if name in known:
            continue
        if name not in available:
            raise InputError(
                f"task {task.name} needs the static field {name}, the data source has "
                f"{', '.join(map(str, available)) or 'none'}; "
                "add its file to data.archive.static_fields or remove it from task.static"
            )
        known[name] = static_on(grid, available, name)
    return np.stack([known[name] for name in task.static_names]).astype(np.float32)


BEFORE_START = -1
"""Position that stands for a lead time before the start of a forecast."""


@dataclass(frozen=True, eq=False)
class ChannelGroup:
    """Further channels of one kind: at one other lead time, of the analysis, or formulas that the source holds.

    `leads` has for each lead time of the task its position in the lead times of `fields`, or `BEFORE_START` if the
    channel would be before the start of the forecast, where its values are missing. `members` are positions of the
    ensemble's members in `fields`; None for the analysis, which all members share.
    """

    channels: tuple[Channel, ...]
    fields: Fields
    leads: tuple[int, ...]
    members: tuple[int, ...] | None


@dataclass(frozen=True, eq=False)
class InputFields:
    """Fields of all channels; implements `Fields`.

    `own` has the channels at the sample's lead time; the channels of `groups` follow. `starts` are positions in `own`
    of the starts at which all groups have fields.
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
        """The numbers of the M members."""
        return self.own.numbers

    @property
    def meanings(self) -> tuple[Meaning, ...]:
        """Units and intervals of each channel; for each lead time of the samples, the interval of the field read."""
        found = list(self.own.meanings)
        for group in self.groups:
            for meaning in group.fields.meanings:
                # Without a field there is no interval that could differ.
                intervals = tuple(UNKNOWN if lead == BEFORE_START else meaning.intervals[lead] for lead in group.leads)
                found.append(replace(meaning, intervals=intervals))
        return tuple(found)

    @cached_property
    def incomplete(self) -> Mapping[tuple[int, int], MissingFields]:
        """The missing fields of each incomplete forecast, the channels at the sample's lead time first."""
        position = {start: init for init, start in enumerate(self.starts.tolist())}
        size = len(self.variables) * len(self.numbers)
        found = {
            (position[start], lead): replace(missing, of=size)
            for (start, lead), missing in self.own.incomplete.items()
            if start in position
        }
        for group in self.groups:
            if not group.fields.incomplete:
                continue
            names = {str(channel.variable): str(channel) for channel in group.channels}
            at = np.searchsorted(group.fields.init_times, self.init_times).tolist()
            for (init, start), (lead, place) in product(enumerate(at), enumerate(group.leads)):
                if missing := group.fields.incomplete.get((start, place)):
                    before = found.get((init, lead), replace(missing, channels=(), count=0, of=size))
                    channels = before.channels + tuple(names[channel] for channel in missing.channels)
                    found[init, lead] = replace(before, channels=channels, count=before.count + missing.count)
        return found

    def read(
        self, init: int, lead: int, out: np.ndarray, rows: slice = ALL, members: Sequence[int] | None = None
    ) -> None:
        """Fill `out` (M, C, h, W) with the channels of the sample at positions `init` and `lead`; see `Fields`."""
        for part in self.parts(init, lead):
            if part.lead == BEFORE_START:
                out[:, part.channels] = np.nan
            elif part.members is None:
                analysis = np.empty((1, part.channels.stop - part.channels.start, *out.shape[2:]), out.dtype)
                part.fields.read(part.init, part.lead, analysis, rows)
                out[:, part.channels] = analysis
            else:
                selected = part.members if members is None else [part.members[m] for m in members]
                part.fields.read(part.init, part.lead, out[:, part.channels], rows, selected)

    def read_moments(
        self, init: int, lead: int, out: np.ndarray, rows: slice = ALL, members: Sequence[int] | None = None
    ) -> None:
        """Fill `out` (2, C, h, W) with the pseudo-members of the channels; see `ReducingFields`."""
        for part in self.parts(init, lead):
            if part.lead == BEFORE_START:
                out[:, part.channels] = np.nan
                continue
            # The analysis has one member, so both of its pseudo-members equal it.
            selected = part.members if members is None or part.members is None else [part.members[m] for m in members]
            read_moments(part.fields, part.init, part.lead, out[:, part.channels], rows, members=selected)

    def parts(self, init: int, lead: int) -> Iterator[ChannelSource]:
        """Yield the sources of all channels of the sample at positions `init` and `lead`."""
        position, last = int(self.starts[init]), len(self.own.variables)
        yield ChannelSource(self.own, position, lead, tuple(range(len(self.own.numbers))), slice(0, last))
        start = self.own.init_times[position]
        for group in self.groups:
            channels = slice(last, last := last + len(group.fields.variables))
            at = int(np.searchsorted(group.fields.init_times, start)), group.leads[lead]
            yield ChannelSource(group.fields, *at, group.members, channels)


class ChannelSource(NamedTuple):
    """The source of some `channels` of a sample: the positions `init` and `lead` in `fields`.

    `members` are positions of the sample's members in `fields`; None for an analysis, which all members share. `lead`
    is `BEFORE_START` if the channels have no values.
    """

    fields: Fields
    init: int
    lead: int
    members: tuple[int, ...] | None
    channels: slice


def _members(fields: Fields, own: Fields, channels: Sequence[Channel]) -> tuple[int, ...]:
    """Return the positions in `fields` of the members of `own`."""
    if absent := [number for number in own.numbers if number not in fields.numbers]:
        raise InputError(
            f"{', '.join(map(str, channels))} of the ensemble has no member {absent[0]}, which the other inputs have; "
            "add its files, or remove it from all"
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
