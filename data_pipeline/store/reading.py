"""Reading a store: values by their offset in a file, in as few reads as there are stretches of bytes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.formats.catalog import SINGLE, Window
from data_pipeline.grid import Grid

PLACE = np.dtype([("file", "i4"), ("offset", "i8")])
"""In which file, and at which byte, a field begins; a field at byte -1 is nowhere."""

THREADS = min(4, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
PIECE = 1 << 22
"""Bytes that are worth a thread: fresh memory costs as much as copying into it, and both go in parallel."""


@dataclass(frozen=True, eq=False)
class StoredValues:
    """Fields in several files, counted as in `places`; nothing is held open, to be sent to other processes."""

    grid: Grid
    paths: tuple[Path, ...]
    places: np.ndarray

    def read(self, wanted: np.ndarray, out: np.ndarray, window: Window) -> None:
        """Read the `window` of each field in `wanted` (...) into `out` (..., h, w), NaN where there is none.

        A row or column that is a single number takes its dimension from `out`.
        """
        if out.shape[: wanted.ndim] != wanted.shape:
            raise ValueError(f"the array to fill is {out.shape}, the fields asked for are {wanted.shape}")
        rows, columns = window
        height, width = self.grid.shape
        first, count = _band(rows, height)
        if count and _band(columns, width) == (0, width) and out.dtype == SINGLE and out.flags.c_contiguous:
            self._read_bands(wanted.ravel(), out.reshape(-1, count, width), first)
            return
        field = np.empty((1, height, width), SINGLE)
        for position in np.ndindex(wanted.shape):
            self._read_bands(wanted[position].reshape(1), field, 0)
            out[position] = field[0][rows][..., columns]

    def _read_bands(self, wanted: np.ndarray, out: np.ndarray, first: int) -> None:
        """Read the rows of each field from `first` on into `out` (n, h, W)."""
        there = (wanted >= 0) & (self.places["offset"][wanted] >= 0)
        out[~there] = np.nan
        row = out[0, 0].nbytes
        pieces: list[tuple[int, int, memoryview, int]] = []
        with ExitStack() as stack:
            opened: dict[int, int] = {}
            for begin, end in self._stretches(wanted, there, out.shape[1] == self.grid.shape[0]):
                file, offset = self.places[wanted[begin]].tolist()
                if file not in opened:
                    opened[file] = self._open(file)
                    stack.callback(os.close, opened[file])
                data = out[begin:end].reshape(-1).data.cast("B")
                for at in range(0, len(data), PIECE):
                    pieces.append((file, opened[file], data[at : at + PIECE], offset + first * row + at))
            if out.nbytes < 2 * PIECE:
                for piece in pieces:
                    self._fill(*piece)
            else:
                with ThreadPoolExecutor(THREADS) as pool:
                    list(pool.map(lambda piece: self._fill(*piece), pieces))

    def _stretches(self, wanted: np.ndarray, there: np.ndarray, whole: bool) -> Iterator[tuple[int, int]]:
        """Yield from where to where fields are `there` and, if `whole`, lie one behind the other in one file."""
        places = self.places[wanted]
        joined = np.zeros(len(wanted) + 1, bool)
        if whole:
            size = SINGLE.itemsize * self.grid.shape[0] * self.grid.shape[1]
            joined[1:-1] = there[1:] & there[:-1]
            joined[1:-1] &= (np.diff(places["file"]) == 0) & (np.diff(places["offset"]) == size)
        begins, ends = np.flatnonzero(there & ~joined[:-1]), np.flatnonzero(there & ~joined[1:]) + 1
        yield from zip(begins.tolist(), ends.tolist(), strict=True)

    def _open(self, file: int) -> int:
        try:
            return os.open(self.paths[file], os.O_RDONLY)
        except OSError as error:
            raise InputError(f"cannot read {self.paths[file]} ({error.strerror}); make the store again") from None

    def _fill(self, file: int, descriptor: int, data: memoryview, offset: int) -> None:
        """Fill `data` from `offset` on; a read may bring less than it was asked for."""
        while data:
            count = os.preadv(descriptor, [data], offset)
            if not count:
                raise InputError(f"{self.paths[file]} has become shorter since it was opened; make the store again")
            data, offset = data[count:], offset + count


def _band(rows: object, height: int) -> tuple[int, int]:
    """Return where a band of rows, or of columns, begins and how wide it is; it has no width if it is none."""
    if not isinstance(rows, slice):
        return 0, 0
    start, stop, step = rows.indices(height)
    return (start, stop - start) if step == 1 else (0, 0)
