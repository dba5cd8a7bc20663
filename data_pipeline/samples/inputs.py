"""Open the fields that samples of a task are read from: all channels, the truth and the static fields."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, pairwise, product
from typing import NamedTuple

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.common.messages import joined
from data_pipeline.dates import Dates
from data_pipeline.formulas.formula import IN_GROUP, Formula
from data_pipeline.formulas.formula_fields import formula_fields, without_formulas
from data_pipeline.grid import Grid, how_to_regrid, unit_vectors
from data_pipeline.grids.grid_coordinates import static_on
from data_pipeline.grids.points import station_fields
from data_pipeline.protocols import (
    DataSource,
    FieldReader,
    Fields,
    FieldSource,
    FormulaSource,
    IdentifiedReader,
    MissingFields,
    Window,
)
from data_pipeline.regridding.regridded_reader import RegriddedReader, on_forecasts_grid
from data_pipeline.samples.group_fields import check_members, group_fields, group_members, membership_fields
from data_pipeline.samples.pseudo_members import read_moments
from data_pipeline.task import POSITION, Channel, Task
from data_pipeline.variables.meaning import UNKNOWN, Meaning, check_targets


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
    check_members(source.moments or inputs.numbers, task.formulas)
    meanings = inputs.meanings
    check_targets([meanings[k] for k in task.target_channels], truth.meanings, task.lead_times)
    return OpenedTask(inputs, truth, static_values(inputs.grid, task, source))


def input_fields(source: FieldSource, task: Task, earlier: FieldSource | None = None) -> Fields:
    """Open the channels of `task` to read samples from: (M, C, h, W) in the order of `Task.channels`.

    `earlier` has the forecasts of earlier starts, if the `source` does not. Starts at which a channel has no field at
    all are left out, see `starts_without_input`. Formulas are computed when a sample is read, unless the source holds
    their values.
    """
    if not task.formulas:
        return _read_fields(source, task)
    held = source.formulas if isinstance(source, FormulaSource) else ()
    if {*task.formulas} <= {*held}:
        return _read_fields(source, task)
    members_alone = replace(task, formulas=tuple(one for one in task.formulas if not one.members))
    if members_alone != task:
        base = input_fields(source, members_alone)
        return _with_groups(base, source, earlier or source, members_alone, task)
    base = _read_fields(source, without_formulas(task))
    if (own := on_forecasts_grid(base.reader)) is None:
        return formula_fields(base, task)
    # The neighbours of a station's cells are on the grid.
    found = formula_fields(replace(base, reader=own), task)
    return replace(found, reader=RegriddedReader(found.reader, base.grid))


def _read_fields(source: FieldSource, task: Task) -> Fields:
    """Open the channels of a task whose formulas the source holds."""
    own = source.ensemble_fields(task.inputs, task.lead_times)
    if not task.other_leads and not task.analysis and not task.formulas:
        return own
    own_channels = tuple(map(Channel, task.inputs))
    groups = [ChannelGroup(own_channels, own, tuple(range(len(task.lead_times))), tuple(range(len(own.numbers))))]
    for _, same_lead in groupby(task.other_leads, lambda channel: (channel.origin, channel.hours)):
        channels = tuple(same_lead)
        # Each group is opened separately: files need not have a variable at a lead time that is not used.
        at = [channels[0].lead_time(lead) for lead in task.lead_times]
        there = sorted({lead for lead in at if lead >= 0})
        fields = source.ensemble_fields([channel.variable for channel in channels], there)
        leads = tuple(fields.lead_times.index(lead) if lead >= 0 else BEFORE_START for lead in at)
        groups.append(ChannelGroup(channels, fields, leads, _members(fields, own, channels)))
    if task.analysis:
        fields = source.analysis_fields(task.analysis)
        channels = tuple(Channel(variable, "analysis") for variable in task.analysis)
        groups.append(ChannelGroup(channels, fields, (0,) * len(task.lead_times), (0,) * len(own.numbers)))
    if task.formulas:
        fields, channels = source.ensemble_fields(task.formulas, task.lead_times), tuple(map(Channel, task.formulas))
        groups.append(ChannelGroup(channels, fields, groups[0].leads, _members(fields, own, channels)))
    return _of_groups(task, groups)


def _of_groups(task: Task, groups: Sequence[ChannelGroup]) -> InputFields:
    """Return the channels of all groups at the starts that all of them have; `InputError` if there are none."""
    own = groups[0].fields
    for group in groups:
        if not own.grid.matches(group.fields.grid):
            raise InputError(
                f"task {task.name}: {joined(group.fields.variables)} has {group.fields.grid}, the other "
                f"inputs {own.grid}; {how_to_regrid(own.grid, group.fields.grid)}"
            )
    complete = np.logical_and.reduce([np.isin(own.init_times, group.fields.init_times) for group in groups])
    if not complete.any():
        missing = next(group for group in groups if not np.isin(own.init_times, group.fields.init_times).any())
        raise InputError(_no_common_start(task, missing, own.init_times))
    return _joined(groups, own.init_times[complete])


def _with_groups(base: Fields, source: FieldSource, earlier: FieldSource, own: Task, task: Task) -> InputFields:
    """Return the channels of `task`. `base` has the channels of `own`, the task without formulas of groups."""
    leads, everyone = tuple(range(len(task.lead_times))), tuple(range(len(base.numbers)))
    groups = [ChannelGroup(own.channels, base, leads, everyone)]
    formulas = task.formulas[len(own.formulas) :]
    first = base.groups[0].fields if isinstance(base, InputFields) else base
    for (leaf, lag, membership), same in groupby(
        formulas, lambda one: (one.leaves[0], one.lag, one if one.operation == IN_GROUP else None)
    ):
        if membership:
            found, members = membership_fields(first, membership), group_members(base, membership)
        else:
            lead_times = [lead + lag for lead in task.lead_times]
            read = (earlier if lag else source).ensemble_fields([leaf.variable], lead_times)
            found, members = group_fields(read, tuple(same)), (0,) * len(everyone)
        channels = tuple(Channel(variable) for variable in found.variables)
        groups.append(ChannelGroup(channels, found, leads, members, derived=not lag))
    joined = _of_groups(task, groups)
    return replace(joined, groups=(*base.groups, *joined.groups[1:])) if isinstance(base, InputFields) else joined


def _joined(groups: Sequence[ChannelGroup], starts: np.ndarray) -> InputFields:
    """Return the channels of all groups at some `starts`."""
    own = groups[0].fields
    sizes = [len(group.channels) for group in groups]
    cells = np.empty((len(starts), len(groups[0].leads), len(own.numbers), sum(sizes)), np.int32)
    firsts = [0]
    for group, channels in zip(groups, np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1]), strict=True):
        at = np.searchsorted(group.fields.init_times, starts)
        part = group.fields.cells[np.ix_(at, np.array(group.leads), np.array(group.members))]
        part[:, np.array(group.leads) == BEFORE_START] = -1
        cells[..., channels] = np.where(part >= 0, part + firsts[-1], -1)
        firsts.append(firsts[-1] + int(group.fields.cells.max(initial=-1)) + 1)
    readers = tuple(group.fields.reader for group in groups)
    on_grid = tuple(one for one in map(on_forecasts_grid, readers) if one is not None)
    joined: FieldReader = JoinedReader(readers, np.array(firsts[:-1]))
    if len(on_grid) == len(readers) and all(one.grid.matches(on_grid[0].grid) for one in on_grid):
        joined = RegriddedReader(JoinedReader(on_grid, np.array(firsts[:-1])), readers[0].grid)
    return InputFields(
        joined,
        sum((group.fields.variables for group in groups), ()),
        starts,
        own.lead_times,
        own.numbers,
        tuple(meaning for group in groups for meaning in group.meanings),
        cells,
        groups=tuple(replace(group, fields=replace(group.fields, cells=cells[:0])) for group in groups),
    )


def starts_without_input(fields: Fields, empty: bool = False) -> dict[np.datetime64, tuple[str, ...]]:
    """Return the starts at which a group of channels has no field at all, with the names of these channels.

    In files, such fields are absent, and `input_fields` has left out their starts. In datasets of xarray, all their
    values may be missing instead; with `empty`, these starts are returned too, for which all values are read.
    """
    found: dict[np.datetime64, tuple[str, ...]] = {}
    if not isinstance(fields, InputFields):
        return found
    own, *others = fields.groups
    for group in others:
        incomplete = group.fields.incomplete if empty and not group.derived else {}
        lacking = Counter(init for (init, _), lacks in incomplete.items() if lacks.count == lacks.of)
        gone = [init for init, count in lacking.items() if count == len(group.fields.lead_times)]
        known = np.delete(group.fields.init_times, gone)
        for start in own.fields.init_times[~np.isin(own.fields.init_times, known)]:
            found[start] = found.get(start, ()) + tuple(map(str, group.channels))
    return found


def static_values(grid: Grid, task: Task, source: DataSource) -> np.ndarray:
    """Return the static channels of a task, (S, H, W): position on the unit sphere, then fields of the archive.

    The fields of `station_fields` are taken from the coordinates of points.
    """
    position = unit_vectors(grid.cell_latitudes, grid.cell_longitudes)
    known = dict(zip(POSITION, np.moveaxis(position, -1, 0), strict=True))
    known |= {name: values[:, None] for name, values in station_fields(grid).items()}
    for name in task.static:
        if name in known:
            continue
        available = source.static
        if name not in available:
            raise InputError(
                f"task {task.name} needs the static field {name}, the data source has "
                f"{joined(available) or 'none'}; "
                "add its file to data.archive.static_fields or remove it from task.static"
            )
        known[name] = static_on(grid, available, name)
    return np.stack([known[name] for name in task.static_names]).astype(np.float32)


BEFORE_START = -1
"""Position that stands for a lead time before the start of a forecast."""


@dataclass(frozen=True, eq=False)
class ChannelGroup:
    """Channels with the same lead time offset, of the analysis, or formulas that the source holds.

    `leads` are positions in the lead times of `fields`, one per lead time of the task; `BEFORE_START` where the channel
    is before the start of the forecast, so that its values are missing. `members` are positions of the ensemble's
    members in `fields`; all of them have the analysis.
    """

    channels: tuple[Channel, ...]
    fields: Fields
    leads: tuple[int, ...]
    members: tuple[int, ...]
    derived: bool = False
    """Whether all fields are computed from fields of other groups, whose missing fields are counted."""

    @property
    def meanings(self) -> list[Meaning]:
        """Units and intervals of each channel, at its own lead time for each lead time of the samples."""
        # Without a field there is no interval that could differ.
        return [
            replace(one, intervals=tuple(UNKNOWN if k == BEFORE_START else one.intervals[k] for k in self.leads))
            for one in self.fields.meanings
        ]


@dataclass(frozen=True, eq=False, kw_only=True)
class InputFields(Fields):
    """The channels of several groups, in `groups` without their cells; the first are those at the sample's lead time.

    Starts are those for which all groups have fields.
    """

    groups: tuple[ChannelGroup, ...]

    @cached_property
    def incomplete(self) -> Mapping[tuple[int, int], MissingFields]:
        """The missing fields of each forecast that lacks one, the channels at the sample's lead time first."""
        size = sum(len(group.channels) for group in self.groups if not group.derived) * len(self.numbers)
        found: dict[tuple[int, int], MissingFields] = {}
        for group in self.groups:
            if group.derived or not group.fields.incomplete:
                continue
            names = {str(channel.variable): str(channel) for channel in group.channels}
            at = np.searchsorted(group.fields.init_times, self.init_times).tolist()
            for (init, start), (lead, place) in product(enumerate(at), enumerate(group.leads)):
                if missing := group.fields.incomplete.get((start, place)):
                    # Channels of groups, and with them models, follow the members at the sample's lead time.
                    own = missing.gone if group is self.groups[0] else ()
                    before = found.get((init, lead), replace(missing, channels=(), count=0, of=size, gone=own))
                    channels = before.channels + tuple(names[channel] for channel in missing.channels)
                    gone = before.gone if {*missing.gone} and {*missing.gone} <= {*before.gone} else ()
                    count = before.count + missing.count
                    found[init, lead] = replace(before, channels=channels, count=count, gone=gone)
        return found


@dataclass(frozen=True, eq=False)
class JoinedReader:
    """Reads the fields of several readers on one grid; the numbers of reader k begin at `firsts[k]`.

    All fields of a channel, the last axis of the numbers, are of one reader.
    """

    readers: tuple[FieldReader, ...]
    firsts: np.ndarray

    @property
    def grid(self) -> Grid:
        """The grid of all readers."""
        return self.readers[0].grid

    def read(self, wanted: np.ndarray, out: np.ndarray, window: Window) -> None:
        """Read the `window` of the fields with the numbers `wanted` (..., C); see `FieldReader`."""
        for reader, numbers, channels in self._parts(wanted):
            own = out[..., channels, :, :]
            if numbers.ndim > 1 and len(numbers) > 1 and (numbers == numbers[:1]).all():
                one = np.empty((1, *own.shape[1:]), out.dtype)  # an analysis is read once for all members
                reader.read(numbers[:1], one, window)
                own[...] = one
            else:
                reader.read(numbers, own, window)

    def read_moments(self, wanted: np.ndarray, out: np.ndarray, window: Window) -> None:
        """Fill `out` (2, C, h, w) with the pseudo-members of the fields `wanted` (M, C); see `MomentReader`."""
        for reader, numbers, channels in self._parts(wanted):
            # An analysis has one member, so both of its pseudo-members equal it.
            numbers = numbers[:1] if (numbers == numbers[:1]).all() else numbers
            read_moments(reader, numbers, out[:, channels], window)

    def identity(self, wanted: np.ndarray) -> Hashable | None:
        """Return the identity that their reader gives the fields of one channel; see `IdentifiedReader`."""
        ((reader, numbers, _),) = self._parts(wanted[:, None])
        return reader.identity(numbers[:, 0]) if isinstance(reader, IdentifiedReader) else None

    def _parts(self, wanted: np.ndarray) -> Iterator[tuple[FieldReader, np.ndarray, slice]]:
        """Yield each reader, its numbers of some neighbouring channels, and the channels."""
        last = wanted.reshape(-1, wanted.shape[-1]).max(0)
        owners = np.searchsorted(self.firsts, last, side="right") - 1
        for k in range(1, len(owners)):
            owners[k] = owners[k] if last[k] >= 0 else owners[k - 1]  # a missing channel divides no reading
        borders = [0, *(np.flatnonzero(np.diff(owners)) + 1).tolist(), len(owners)]
        for begin, end in pairwise(borders):
            first, numbers = self.firsts[max(owners[begin], 0)], wanted[..., begin:end]
            yield self.readers[max(owners[begin], 0)], np.where(numbers < 0, -1, numbers - first), slice(begin, end)


def _members(fields: Fields, own: Fields, channels: Sequence[Channel]) -> tuple[int, ...]:
    """Return the positions in `fields` of the members of `own`."""
    if absent := [number for number in own.numbers if number not in fields.numbers]:
        raise InputError(
            f"{joined(channels)} of the ensemble has no member {absent[0]}, which the other inputs have; "
            "add its files, or remove it from all"
        )
    return tuple(map(fields.numbers.index, own.numbers))


def _no_common_start(task: Task, group: ChannelGroup, starts: np.ndarray) -> str:
    names = joined(group.fields.variables)
    kind = "analysis of" if group.channels[0].origin == "analysis" else "other lead time of"
    if isinstance(group.channels[0].variable, Formula):
        kind = "fields of"
    times = group.fields.init_times
    return (
        f"task {task.name}: no forecast has the {kind} {names} at its start: forecasts start between {starts.min()} "
        f"and {starts.max()}, these fields are for {times.min()} to {times.max()}; add files, or remove these inputs"
    )
