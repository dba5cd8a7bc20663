"""PackedColumns: the messages of some variables for all members, read in bands of rows as packed bytes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_pipeline.formats.catalog import SINGLE
from data_pipeline.formats.grib.horizontal import Layout
from data_pipeline.formats.grib.packed_moments import PackedMoments
from data_pipeline.formats.grib.scan import changed_file
from data_pipeline.variables.units import Conversion

PARTS_PER_THREAD = 2
"""Parts of a sample for each thread: if the system interrupts a thread, other threads take its second part."""


class ColumnBand(NamedTuple):
    """The part of the result that a thread fills at once: some `columns`, and rows from `begin` to `end`."""

    columns: slice
    begin: int
    end: int


@dataclass(frozen=True, eq=False)
class PackedColumns:
    """Messages of K channels and M members in simple packing, on one `layout` that stores whole rows.

    A column holds the messages of one channel. `locations` (K, M) are of type `reader.LOCATION`; they refer to the
    reader's `conversions`. `channels` (K) are the positions of the channels in the result.
    """

    channels: np.ndarray
    locations: np.ndarray
    layout: Layout
    conversions: Sequence[Conversion]

    @classmethod
    def group(
        cls, channels: np.ndarray, locations: np.ndarray, layouts: Sequence[Layout], conversions: Sequence[Conversion]
    ) -> list[PackedColumns]:
        """Return the columns of each layout, from the messages (K, M) of all `channels` (K).

        A channel is left out if ecCodes decodes one of its messages, or if the rows of a band are not stored together.
        """
        numbers = locations["layout"]
        banded = np.array([layout.straight or layout.stored_rows(0, 1)[1] == 1 for layout in layouts])
        alike = (numbers == numbers[:, :1]).all(1) & (locations["bits"] >= 0).all(1) & banded[numbers[:, 0]]
        groups = {int(k): np.flatnonzero(alike & (numbers[:, 0] == k)) for k in np.unique(numbers[alike, 0])}
        return [cls(channels[own], locations[own], layouts[k], conversions) for k, own in groups.items()]

    @property
    def message_bytes(self) -> float:
        """Mean length of a message."""
        return float(self.locations["length"].mean())

    def files(self, part: slice = slice(None)) -> list[int]:
        """Return the numbers of the files that hold the messages of some columns, without repetition."""
        return list(dict.fromkeys(self.locations["file"][part].ravel().tolist()))

    def parts(self, height: int, threads: int) -> list[ColumnBand]:
        """Divide `height` rows of all columns among threads; columns are divided into bands if there are too few."""
        count, wanted = len(self.channels), PARTS_PER_THREAD * threads if threads > 1 else 1
        ends = np.linspace(0, count, min(count, wanted) + 1, dtype=int).tolist()
        rows = np.linspace(0, height, min(height, -(-wanted // count)) + 1, dtype=int).tolist()
        return [ColumnBand(slice(*columns), *band) for columns in pairwise(ends) for band in pairwise(rows)]

    @cached_property
    def _moments(self) -> PackedMoments:
        return PackedMoments.of(self.locations, self.conversions)

    @cached_property
    def _starts(self) -> np.ndarray:
        """Offset of the first packed value of each message."""
        starts: np.ndarray = self.locations["offset"] + self.locations["data"]
        return starts

    def reduce(
        self, descriptors: Mapping[int, int], paths: Sequence[Path], part: ColumnBand, first: int, out: np.ndarray
    ) -> None:
        """Fill a part of `out` (2, C, h, W), float32, whose first row is row `first` of the field.

        Only the bytes of these rows are read. Rows that are stored in another order than in a field are rearranged in
        additional memory of at most half a field.
        """
        width = out.shape[3]
        if self.layout.straight and out[0].flags.c_contiguous:
            starts = self.channels[part.columns] * out.shape[2] * width + part.begin * width
            rows = first + part.begin, part.end - part.begin
            self._fill(descriptors, paths, part.columns, *rows, out[0].reshape(-1), out[1].reshape(-1), starts)
            return
        height = part.end - part.begin if self.layout.straight else max(1, self.layout.rows // 4)
        for k, c in enumerate(self.channels[part.columns].tolist(), part.columns.start):
            for begin in range(part.begin, part.end, height):
                band = out[:, c, begin : min(begin + height, part.end)]
                stored = np.empty((2, band[0].size), SINGLE)
                rows = first + begin, band.shape[1]
                self._fill(descriptors, paths, slice(k, k + 1), *rows, stored[0], stored[1], np.zeros(1, np.intp))
                band[...] = [self.layout.arrange(values) for values in stored]

    def _fill(
        self,
        descriptors: Mapping[int, int],
        paths: Sequence[Path],
        part: slice,
        first: int,
        rows: int,
        lower: np.ndarray,
        upper: np.ndarray,
        starts: np.ndarray,
    ) -> None:
        """Fill flat arrays with stored rows of the columns of `part`; `starts` are the positions of the columns."""
        files, moments = self.locations["file"][part], self._moments.only(part)
        opened = np.array([descriptors[file] for file in files.ravel().tolist()], np.int32).reshape(files.shape)
        first, rows = self.layout.stored_rows(first, rows)
        row_bytes = moments.bits // 8 * self.layout.columns
        offsets, count = self._starts[part] + row_bytes * first, rows * self.layout.columns
        while (failed := moments.reduce(opened, offsets, count, lower, upper, starts)) is not None:
            # This read raises the system's error, if there was one. A read that a signal cut short is repeated.
            if not os.pread(opened[failed], 1, offsets[failed] + row_bytes[failed] * rows - 1):
                raise changed_file(paths[files[failed]], int(self.locations["offset"][part][failed]))
