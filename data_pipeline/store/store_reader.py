"""Read values of a store at known offsets in its files; adjacent fields are read in one call."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.common.threads import BUDGET, in_threads
from data_pipeline.formats.catalog import SINGLE
from data_pipeline.grid import Grid
from data_pipeline.protocols import ALL, Window

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
