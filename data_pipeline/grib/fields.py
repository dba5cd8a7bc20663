"""Fields of many messages as one lazy array: bytes by offset, values through ecCodes, in a few threads.

It holds paths and offsets and nothing that is open, so that it can be sent to other processes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import eccodes
import numpy as np
from xarray.backends import BackendArray
from xarray.core import indexing

from data_pipeline.errors import InputError
from data_pipeline.grib.layout import Layout
from data_pipeline.grib.scan import read

SINGLE, DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
"""Single precision is what models take; only double tells two members apart wherever the file does."""

Index = int | slice | np.ndarray
Window = tuple[Index, Index]
"""Rows and columns of a field."""

PLACE = np.dtype([("file", "i4"), ("layout", "i4"), ("offset", "i8"), ("length", "i8")])
"""Where a message is and how its values lie."""

THREADS = min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
"""ecCodes releases the interpreter's lock while it decodes."""
WORTH_A_THREAD = 1 << 16
"""Bytes of a message below which threads only wait for each other: ecCodes parses one header at a time."""


def decode(message: bytes, layout: Layout, dtype: np.dtype = SINGLE) -> np.ndarray:
    """Return the values of a message as a field (H, W) of `dtype`, north first, NaN where they are missing."""
    handle = eccodes.codes_new_from_message(message)
    try:
        eccodes.codes_set_double(handle, "missingValue", np.nan)
        get = eccodes.codes_get_float_array if dtype == SINGLE else eccodes.codes_get_double_array
        return layout.arrange(get(handle, "values"))
    finally:
        eccodes.codes_release(handle)


@dataclass(frozen=True, eq=False)
class Source:
    """Messages in several files, all on one grid."""

    paths: tuple[Path, ...]
    layouts: tuple[Layout, ...]
    places: np.ndarray

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of every field."""
        return self.layouts[0].grid.shape

    def read(self, wanted: np.ndarray, out: np.ndarray, window: Window) -> None:
        """Decode the `window` of each message in `wanted` into `out`; NaN where its number is negative."""
        out[wanted < 0] = np.nan
        order = np.argsort(wanted, kind="stable")  # messages are numbered as they stand in the files
        order = order[wanted[order] >= 0]
        threads = min(THREADS, len(order))
        if threads < 2 or self.places["length"][wanted[order]].mean() < WORTH_A_THREAD:
            self._read_part(wanted, order, out, window)
            return
        with ThreadPoolExecutor(threads) as pool:
            # Many small parts, because messages differ in what they cost.
            parts = np.array_split(order, min(len(order), 8 * threads))
            list(pool.map(lambda part: self._read_part(wanted, part, out, window), parts))

    def _read_part(self, wanted: np.ndarray, order: np.ndarray, out: np.ndarray, window: Window) -> None:
        rows, columns = window
        with ExitStack() as stack:
            opened: dict[int, int] = {}
            for k in order.tolist():
                file, layout, offset, length = self.places[wanted[k]].tolist()
                path = self.paths[file]
                try:
                    if file not in opened:
                        opened[file] = os.open(path, os.O_RDONLY)
                        stack.callback(os.close, opened[file])
                    message = read(opened[file], path, offset, length)
                except OSError as error:
                    raise InputError(f"cannot read {path} ({error.strerror})") from None
                try:
                    field = decode(message, self.layouts[layout], out.dtype)
                except (eccodes.CodesInternalError, ValueError) as error:
                    raise InputError(
                        f"{path}: the values of the message at byte {offset} cannot be decoded: {error}"
                    ) from None
                out[k] = field[rows][..., columns]


class FieldArray(BackendArray):
    """The array (..., H, W) of the messages with the numbers `cells` (...); NaN where that is negative."""

    def __init__(self, source: Source, cells: np.ndarray, dtype: np.dtype = SINGLE) -> None:
        self.source = source
        self.cells = cells
        self.shape = (*cells.shape, *source.shape)
        self.dtype = dtype

    def __getitem__(self, key: indexing.ExplicitIndexer) -> np.ndarray:
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.OUTER, self._read)

    def _read(self, key: tuple[Index, ...]) -> np.ndarray:
        *outer, rows, columns = key
        cells = _outer(self.cells, outer)
        window = np.broadcast_to(np.float32(np.nan), self.source.shape)[rows][..., columns].shape
        out = np.empty((cells.size, *window), self.dtype)
        self.source.read(cells.ravel(), out, (rows, columns))
        return out.reshape((*cells.shape, *window))


def _outer(array: np.ndarray, key: Sequence[Index]) -> np.ndarray:
    """Index every axis by itself; an integer drops its axis."""
    for axis in reversed(range(len(key))):
        array = array[(slice(None),) * axis + (key[axis],)]
    return array
