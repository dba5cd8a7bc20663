"""StoreCatalog: the fields of a store as a `Catalog`, so that a store is opened and read like any other format."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.common.messages import joined
from data_pipeline.common.threads import BUDGET, in_threads
from data_pipeline.formats.catalog import SINGLE
from data_pipeline.grid import Grid
from data_pipeline.protocols import ALL, Window
from data_pipeline.store.manifest import Manifest
from data_pipeline.store.shard import ENSEMBLE_NAME, TARGET_NAME
from data_pipeline.store.store_plan import VALUE_BYTES, StorePlan
from data_pipeline.task import Variable

FIELD_LOCATION = np.dtype([("file", "i4"), ("offset", "i8")])
"""File and offset of the first byte of a field; the offset is -1 if the field is not stored."""

PIECE_BYTES = 1 << 22
"""Bytes per task of a thread. Threads help even with cached files, because clearing memory takes as long as copying."""


@dataclass(frozen=True, eq=False)
class StoreReader:
    """Reads fields by their index in `locations`; keeps no file open, so that it can be sent to other processes."""

    grid: Grid
    paths: tuple[Path, ...]
    locations: np.ndarray

    def read(self, wanted: np.ndarray, out: np.ndarray, window: Window) -> None:
        """Read the `window` of each field in `wanted` (...) into `out` (..., h, w); NaN where a field is not stored.

        If the window is a single row or column, `out` lacks that dimension.
        """
        if out.shape[: wanted.ndim] != wanted.shape:
            raise ValueError(f"the output array has shape {out.shape}, the array of fields {wanted.shape}")
        rows, columns = window
        height, width = self.grid.shape
        first, count = _band(rows, height)
        if count and _band(columns, width) == (0, width) and out.dtype == SINGLE and out.flags.c_contiguous:
            self._read_bands(wanted.ravel(), out.reshape(-1, count, width), first)
            return
        first, count, rows = (first, count, ALL) if count else (0, height, rows)
        field = np.empty((1, count, width), SINGLE)
        for position in np.ndindex(wanted.shape):
            self._read_bands(wanted[position].reshape(1), field, first)
            out[position] = field[0][rows][..., columns]

    def _read_bands(self, wanted: np.ndarray, out: np.ndarray, first: int) -> None:
        """Read h rows of each field, starting at row `first`, into `out` (n, h, W)."""
        stored = (wanted >= 0) & (self.locations["offset"][wanted] >= 0)
        out[~stored] = np.nan
        row_bytes = out[0, 0].nbytes
        pieces: list[tuple[int, int, memoryview, int]] = []
        with ExitStack() as stack:
            descriptors: dict[int, int] = {}
            for begin, end in self._adjacent(wanted, stored, out.shape[1] == self.grid.shape[0]):
                file, offset = self.locations[wanted[begin]].tolist()
                if file not in descriptors:
                    descriptors[file] = self._open(file)
                    stack.callback(os.close, descriptors[file])
                data = out[begin:end].reshape(-1).data.cast("B")
                for at in range(0, len(data), PIECE_BYTES):
                    part = data[at : at + PIECE_BYTES]
                    pieces.append((file, descriptors[file], part, offset + first * row_bytes + at))
            if out.nbytes < 2 * PIECE_BYTES:
                for piece in pieces:
                    self._read_piece(*piece)
            else:
                list(in_threads(lambda piece: self._read_piece(*piece), pieces, BUDGET.total))

    def _adjacent(self, wanted: np.ndarray, stored: np.ndarray, all_rows: bool) -> Iterator[tuple[int, int]]:
        """Yield begin and end of each run of stored fields that are adjacent in one file.

        Unless `all_rows` are read, every field is a separate run, because unread rows lie between two fields.
        """
        locations = self.locations[wanted]
        joined = np.zeros(len(wanted) + 1, bool)
        if all_rows:
            size = SINGLE.itemsize * self.grid.shape[0] * self.grid.shape[1]
            joined[1:-1] = stored[1:] & stored[:-1]
            joined[1:-1] &= (np.diff(locations["file"]) == 0) & (np.diff(locations["offset"]) == size)
        begins, ends = np.flatnonzero(stored & ~joined[:-1]), np.flatnonzero(stored & ~joined[1:]) + 1
        yield from zip(begins.tolist(), ends.tolist(), strict=True)

    def _open(self, file: int) -> int:
        try:
            return os.open(self.paths[file], os.O_RDONLY)
        except OSError as error:
            raise InputError(f"cannot read {self.paths[file]} ({error.strerror}); make the store again") from None

    def _read_piece(self, file: int, descriptor: int, data: memoryview, offset: int) -> None:
        """Fill `data` with the bytes at `offset`, in several calls if a call returns fewer bytes."""
        while data:
            count = os.preadv(descriptor, [data], offset)
            if not count:
                raise InputError(f"{self.paths[file]} has become shorter since it was opened; make the store again")
            data, offset = data[count:], offset + count


def _band(rows: object, height: int) -> tuple[int, int]:
    """Return start and length of a slice of rows or columns; length 0 unless it is a slice with step 1."""
    if not isinstance(rows, slice):
        return 0, 0
    start, stop, step = rows.indices(height)
    return (start, stop - start) if step == 1 else (0, 0)


STORE_ROW = np.dtype(
    [("variable", "i4"), ("init", "i8"), ("step", "i4"), ("interval", "i4"), ("number", "i4"), *FIELD_LOCATION.descr]
)  # fmt: skip
"""Variable, start, step, interval and member of a field, and the location of its values."""
Slots = dict[Variable, dict[tuple[int, int], tuple[str, int, int]]]
"""For each variable, by start (seconds) and step (minutes): the NetCDF variable, the sample and the channel."""
Stated = dict[tuple[Variable, int], tuple[str, int, str]]
"""Units, interval and level in the archive, by variable and step (minutes)."""
NOT_STORED = ENSEMBLE_NAME, -1, 0
"""The slot of a field that belongs to no sample."""
SAMPLE_SHAPES: dict[str, Callable[[StorePlan], tuple[int, ...]]] = {
    ENSEMBLE_NAME: lambda plan: plan.ensemble_shape,
    TARGET_NAME: lambda plan: plan.target_shape,
}


@dataclass(frozen=True, eq=False)
class StoreCatalog:
    """The fields of the `wanted` variables in the files of a store, one row for each.

    The rows include all starts and lead times of the store; fields outside the store's samples get offset -1.
    """

    folder: Path
    paths: tuple[Path, ...]
    grid: Grid
    wanted: tuple[Variable, ...]
    rows: np.ndarray
    units_of: Mapping[str, str]
    """Units by the name of the variable."""
    level_of: Mapping[Variable, str]
    """The level of each variable, as in `Meaning`."""

    @classmethod
    def ensemble(
        cls, folder: Path, manifest: Manifest, variables: Sequence[Variable], lead_times: Sequence[int]
    ) -> StoreCatalog:
        """List the forecast fields of `variables`; raise if one is absent at some of `lead_times`."""
        plan = manifest.plan
        slots: Slots = {}
        starts = sorted({start for start, _ in plan.samples})
        forecasts = [(c, channel) for c, channel in enumerate(plan.channels) if channel.origin != "analysis"]
        for c, channel in forecasts:
            of_variable = slots.setdefault(channel.variable, {})
            for k, (start, lead) in enumerate(plan.samples):
                of_variable.setdefault((start, 60 * channel.lead_time(lead)), (ENSEMBLE_NAME, k, c))
        stated: Stated = {
            (channel.variable, 60 * channel.lead_time(lead)): (plan.meanings[c].units, interval, plan.meanings[c].level)
            for c, channel in forecasts
            for lead, interval in zip(plan.lead_times, plan.meanings[c].intervals, strict=True)
        }
        for (variable, step), start in product(stated, starts):
            slots[variable].setdefault((start, step), NOT_STORED)
        all_steps = {step for _, step in stated}
        for variable in variables:
            steps = {step for other, step in stated if other == variable}
            if steps and (absent := [lead for lead in lead_times if 60 * lead in all_steps and 60 * lead not in steps]):
                raise InputError(
                    f"the store {folder} has no {variable} at the lead time {absent[0]} h; "
                    "make a store for this task, or leave out data.store"
                )
        numbers = range(plan.ensemble_shape[0]) if plan.moments else plan.numbers
        return cls(folder, *_fields(folder, manifest, "the store", variables, slots, stated, numbers))

    @classmethod
    def truth(cls, folder: Path, manifest: Manifest, variables: Sequence[Variable]) -> StoreCatalog:
        """List the analyses of `variables`; an analysis is listed once even if several forecasts are valid at its time.

        Analyses at the start of a forecast are channels of the forecast's ensemble, equal in every member.
        """
        plan = manifest.plan
        slots: Slots = {}
        stated: Stated = {}
        for c, (target, meaning) in enumerate(zip(plan.targets, plan.target_meanings, strict=True)):
            stated[target, 0] = meaning.units, meaning.intervals[0], meaning.level
            of_target = slots.setdefault(target, {})
            for k, (start, lead) in enumerate(plan.samples):
                of_target[start + 3600 * lead, 0] = TARGET_NAME, k, c
        for c, (channel, meaning) in enumerate(zip(plan.channels, plan.meanings, strict=True)):
            if channel.origin == "analysis":
                stated[channel.variable, 0] = meaning.units, meaning.intervals[0], meaning.level
                of_variable = slots.setdefault(channel.variable, {})
                for k, (start, _) in enumerate(plan.samples):
                    of_variable.setdefault((start, 0), (ENSEMBLE_NAME, k, c))
        wanted = [slots[variable] for variable in variables if variable in slots]
        for time in {time for of_variable in wanted for time in of_variable}:
            for of_variable in wanted:
                of_variable.setdefault(time, NOT_STORED)
        return cls(folder, *_fields(folder, manifest, "the truth in the store", variables, slots, stated, (0,)))

    def __str__(self) -> str:
        return f"the store {self.folder}"

    @cached_property
    def reader(self) -> StoreReader:
        """The reader of the fields' values, by their index in `rows`."""
        locations = np.empty(len(self.rows), FIELD_LOCATION)
        for name in FIELD_LOCATION.names or ():
            locations[name] = self.rows[name]
        return StoreReader(self.grid, self.paths, locations)

    def where(self, condition: np.ndarray) -> StoreCatalog:
        """Return only the fields for which `condition` holds."""
        return replace(self, rows=self.rows[condition])

    def place(self, row: int) -> str:
        """Return file and offset of a field, for messages."""
        return f"{self.paths[self.rows['file'][row]]} (byte {self.rows['offset'][row]})"

    def units(self, name: str) -> tuple[str, str]:
        """Return units and long name of the variables called `name`."""
        return self.units_of[name], name

    def levels(self, rows: np.ndarray) -> dict[str, int]:
        """Return the number of fields on each level, counting only `rows`."""
        numbers, counts = np.unique(self.rows["variable"][rows], return_counts=True)
        return {self.level_of[self.wanted[k]]: int(n) for k, n in zip(numbers, counts, strict=True)}

    def refuse_contradiction(self, first: int, second: int) -> None:
        """Raise an error: a store never has two fields of the same variable, time and member."""
        raise AssertionError(f"{self.place(first)} and {self.place(second)} are the same field")


def _fields(
    folder: Path,
    manifest: Manifest,
    what: str,
    variables: Sequence[Variable],
    slots: Slots,
    stated: Stated,
    numbers: Collection[int],
) -> tuple[tuple[Path, ...], Grid, tuple[Variable, ...], np.ndarray, dict[str, str], dict[Variable, str]]:
    """Return paths, grid, variables, rows, units and levels of the fields of `variables`, for all members `numbers`."""
    plan = manifest.plan
    wanted = tuple(dict.fromkeys(variables))
    if not wanted:
        raise InputError(f"no variable of the store {folder} was requested; name at least one, such as 2t or t@850")
    if missing := [variable for variable in wanted if variable not in slots]:
        raise InputError(
            f"{what} {folder} has no {joined(missing)}; it has {joined(sorted(slots, key=str))}; "
            "make a store for this task, or leave out data.store"
        )
    shards = {kind: np.array([manifest.files[name].offsets[kind] for name in plan.shards]) for kind in SAMPLE_SHAPES}
    field_bytes = VALUE_BYTES * int(np.prod(plan.grid.shape))
    rows = np.empty((sum(len(slots[variable]) for variable in wanted), len(numbers)), STORE_ROW)
    rows["number"] = np.array(numbers)
    first = 0
    for v, variable in enumerate(wanted):
        of_variable = rows[first : first + len(slots[variable])]
        first += len(of_variable)
        of_variable["variable"] = v
        of_variable["interval"] = np.array([stated[variable, step][1] for _, step in slots[variable]])[:, None]
        for name, column in zip(("init", "step"), zip(*slots[variable], strict=True), strict=True):
            of_variable[name] = np.array(column)[:, None]
        kinds, samples, channels = (np.array(column) for column in zip(*slots[variable].values(), strict=True))
        file, within = np.divmod(samples, plan.shard_samples)
        of_variable["file"], of_variable["offset"] = file[:, None], -1
        for kind, shape in SAMPLE_SHAPES.items():
            stored = (kinds == kind) & (samples >= 0)
            members, count = shape(plan)[:2]
            # An analysis has one member, the first of the equal members in the ensemble.
            member = np.arange(len(numbers))
            position = (within[stored, None] * members + member) * count + channels[stored, None]
            of_variable["offset"][stored] = shards[kind][file[stored], None] + position * field_bytes
    units = {variable.name: unit for (variable, _), (unit, _, _) in stated.items()}
    levels = {variable: level for (variable, _), (_, _, level) in stated.items()}
    return tuple(folder / name for name in plan.shards), plan.grid, wanted, rows.ravel(), units, levels
