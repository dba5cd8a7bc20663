"""MessageReader: read fields from GRIB files by the positions of their messages, in several threads.

A reader holds paths and positions but no open file, so that it can be sent to other processes.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np

from data_pipeline.common.files import reading
from data_pipeline.common.threads import BUDGET, in_threads
from data_pipeline.formats.catalog import DOUBLE
from data_pipeline.formats.grib.decode import Cutout, Location, read_values
from data_pipeline.formats.grib.horizontal import Layout
from data_pipeline.formats.grib.packed_columns import ColumnBand, PackedColumns
from data_pipeline.formats.grib.packing import Packing
from data_pipeline.formats.grib.scan import changed_file
from data_pipeline.formats.grib.table import Stamp
from data_pipeline.grid import Grid
from data_pipeline.protocols import ALL, Window, fill_missing
from data_pipeline.samples.pseudo_members import reduce_members
from data_pipeline.variables.units import Conversion

LOCATION = np.dtype(
    [
        ("file", "i4"), ("layout", "i4"), ("offset", "i8"), ("length", "i8"), ("field", "i4"),
        ("conversion", "i4"), ("data", "i8"), ("bits", "i2"), ("reference", "f8"), ("binary", "i2"),
        ("decimal", "i2"),
    ]
)  # fmt: skip
"""A `Location`; file, layout and conversion are positions in the reader's `paths`, `layouts` and `conversions`."""

MIN_THREAD_BYTES = 1 << 16
"""Fewest bytes per message for which threads are used; with less, they wait for the interpreter's lock."""

FILES_AT_ONCE = 64
"""Most files that are open at once; with more, channels are read one by one (by default, a process may open 1,024)."""


@dataclass(frozen=True, eq=False)
class MessageReader:
    """Messages in several files, all on one grid; the files must still have their `stamps` when values are read.

    Values that a conversion changes are computed in double precision; all others stay as they are decoded.
    """

    paths: tuple[Path, ...]
    stamps: tuple[Stamp, ...]
    layouts: tuple[Layout, ...]
    conversions: tuple[Conversion, ...]
    locations: np.ndarray

    @property
    def grid(self) -> Grid:
        """The grid of the values, north first, west to east."""
        return self.layouts[0].grid

    def identity(self, wanted: np.ndarray) -> Hashable:
        """Return the positions of messages in their files, and their conversions; see `IdentifiedReader`."""
        own = self.locations[wanted]
        files = [(self.paths[k], self.stamps[k]) for k in own["file"].tolist()]
        conversions = [self.conversions[k] for k in own["conversion"].tolist()]
        return tuple(zip(files, own["offset"].tolist(), own["field"].tolist(), conversions, strict=True))

    def read(self, wanted: np.ndarray, out: np.ndarray, window: Window) -> None:
        """Decode the `window` of each message in `wanted` (...) into `out` (..., h, w); NaN where it is negative."""
        cutout = Cutout.of(window, self.grid.shape)
        there = fill_missing(wanted, out)
        if not cutout.height or not there.size:
            return
        order = there[np.argsort(wanted.ravel()[there], kind="stable")]  # in file order
        locations = self.locations[wanted.ravel()[order]]
        targets = [out[*index, ...] for index in zip(*np.unravel_index(order, wanted.shape), strict=True)]
        threads = min(BUDGET.total, len(order))
        if threads < 2 or locations["length"].mean() * cutout.height < MIN_THREAD_BYTES * self.grid.shape[0]:
            self._read_part(locations, targets, cutout)
            return
        # Few parts, because threads wait for the lock at the end of each; more if messages take unequal times.
        share = 8 if (locations["bits"] < 0).any() else 2
        split = np.array_split(np.arange(len(order)), min(len(order), share * threads))
        parts = [(k[0], k[-1] + 1) for k in split]
        read = lambda k: self._read_part(locations[k[0] : k[1]], targets[k[0] : k[1]], cutout)  # noqa: E731
        list(in_threads(read, parts, threads))

    def read_moments(self, wanted: np.ndarray, out: np.ndarray, window: Window) -> None:
        """Fill `out` (2, C, h, w) with the pseudo-members of the messages `wanted` (M, C); see `MomentReader`.

        A thread reads some rows of all members at a time; their packed values take at most the bytes of a field. Only
        if ecCodes must decode the messages are all members of a channel in memory, for one channel at a time.
        """
        rows, across = window
        if out.shape[-1] != (width := self.grid.shape[1]):
            whole = np.empty((*out.shape[:-1], width), out.dtype)
            self.read_moments(wanted, whole, (rows, ALL))
            out[...] = whole[..., across]
            return
        cutout = Cutout.of((rows, ALL), self.grid.shape)
        if not cutout.height:
            return
        there = np.flatnonzero((wanted >= 0).all(0))
        columns = PackedColumns.group(there, self.locations[wanted.T[there]], self.layouts, self.conversions)
        for c in set(range(wanted.shape[1])) - {c for each in columns for c in each.channels.tolist()}:
            one = slice(c, c + 1)
            if c in there:
                reduce_members(self, wanted[:, one], out[:, one], (rows, ALL))
            else:
                out[:, one] = np.nan
        for each in columns:
            self._reduce(each, out, cutout)

    def _reduce(self, columns: PackedColumns, out: np.ndarray, cutout: Cutout) -> None:
        """Fill the channels of `columns` in `out`; each file is opened once if there are at most `FILES_AT_ONCE`."""
        few = columns.message_bytes * columns.locations.shape[1] * cutout.height < MIN_THREAD_BYTES * self.grid.shape[0]
        threads = 1 if few else BUDGET.total
        shared = files if len(files := columns.files()) <= FILES_AT_ONCE else []

        def fill(part: ColumnBand) -> None:
            if shared:
                columns.reduce(opened, self.paths, part, cutout.first, out)
                return
            for k in range(part.columns.start, part.columns.stop):
                one = slice(k, k + 1)
                with self._open_all(columns.files(one)) as own:
                    columns.reduce(own, self.paths, part._replace(columns=one), cutout.first, out)

        with self._open_all(shared) as opened:
            list(in_threads(fill, columns.parts(cutout.height, threads), threads))

    @contextmanager
    def _open_all(self, files: Sequence[int]) -> Iterator[dict[int, int]]:
        """Open several files; yield their descriptors."""
        with ExitStack() as stack:
            yield {file: stack.enter_context(self._opened(file)) for file in files}

    @contextmanager
    def _opened(self, file: int) -> Iterator[int]:
        """Open a file, which must not have changed since it was scanned."""
        path = self.paths[file]
        with reading(path):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                if Stamp.of(descriptor) != self.stamps[file]:
                    raise changed_file(path)
                yield descriptor
            finally:
                os.close(descriptor)

    def _read_part(self, locations: np.ndarray, targets: Sequence[np.ndarray], cutout: Cutout) -> None:
        for file, group in groupby(zip(locations.tolist(), targets, strict=True), key=lambda pair: pair[0][0]):
            path = self.paths[file]
            with self._opened(file) as descriptor:
                for (_, layout, offset, length, field, conversion, data, *packing), target in group:
                    packed = Packing(*packing)
                    location = Location(self.layouts[layout], offset, length, field, data, packed)
                    read_values(target, descriptor, path, location, cutout)
                    if (to := self.conversions[conversion]).changes:
                        target[...] = target.astype(DOUBLE) * to.factor + to.offset
