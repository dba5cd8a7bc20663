"""Decode the values of one message into an array: by numpy for simple packing, by ecCodes for everything else."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import NamedTuple

import eccodes
import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.formats.catalog import SINGLE
from data_pipeline.formats.grib.horizontal import ALTERNATIVE_ROWS, J_CONSECUTIVE, Layout
from data_pipeline.formats.grib.keys import get_whole, opened
from data_pipeline.formats.grib.packing import BUFFER_START, PACKED_BYTES, Packing, unpack
from data_pipeline.formats.grib.scan import changed_file, read_message
from data_pipeline.protocols import Index, Window

SINGLE_PRECISION_PACKINGS = ("grid_simple", "grid_ccsds", "grid_complex", "grid_second_order")
"""Beginnings of the names of packings that ecCodes can decode in single precision."""


class Location(NamedTuple):
    """Where a field lies in a file and how its values are stored.

    The message begins at byte `offset` of the file, the packed values at byte `data` of the message.
    """

    layout: Layout
    offset: int
    length: int
    field: int
    data: int
    packing: Packing


class Cutout(NamedTuple):
    """The part of a field that a window selects.

    The rows from `first` to `first + height` must be decoded; of these, `rows` and `columns` are selected.
    """

    first: int
    height: int
    rows: Index
    columns: Index
    complete: bool
    """Whether all columns of all decoded rows are selected, in order."""

    @classmethod
    def of(cls, window: Window, shape: tuple[int, int]) -> Cutout:
        """Return the part of a field of `shape` that the rows and columns of `window` select."""
        rows, columns = window
        wanted, across = np.arange(shape[0])[rows], np.arange(shape[1])[columns]
        if not wanted.size or not across.size:
            return cls(0, 0, rows, columns, False)
        first, height = int(wanted.min()), int(np.ptp(wanted)) + 1
        ordered = np.array_equal(wanted, np.arange(first, first + height))
        complete = isinstance(rows, slice) and ordered and np.array_equal(across, np.arange(shape[1]))
        return cls(first, height, wanted - first, columns, complete)


def decode(message: bytes, layout: Layout, dtype: np.dtype = SINGLE) -> np.ndarray:
    """Return the values of a message as a field (H, W) of `dtype`, north first, NaN where they are missing."""
    with opened(message) as handle:
        eccodes.codes_set_double(handle, "missingValue", np.nan)
        return layout.arrange(_values(handle, dtype))


def decode_in_order(message: bytes, key: str = "values") -> np.ndarray:
    """Return the values, `latitudes` or `longitudes` of all points, in the message's order; NaN where missing.

    Raises a `ValueError` for messages whose points are not stored row by row in one direction.
    """
    with opened(message) as handle:
        if get_whole(handle, "scanningMode", 0) & (ALTERNATIVE_ROWS | J_CONSECUTIVE):
            raise ValueError("its points are stored by columns or in alternating directions; read the GRIB file itself")
        eccodes.codes_set_double(handle, "missingValue", np.nan)
        return eccodes.codes_get_double_array(handle, key)


def _values(handle: int, dtype: np.dtype) -> np.ndarray:
    """Return the values of an ecCodes message; ecCodes decodes some packings in double precision only."""
    if dtype == SINGLE and eccodes.codes_get_string(handle, "packingType").startswith(SINGLE_PRECISION_PACKINGS):
        return eccodes.codes_get_float_array(handle, "values")
    return eccodes.codes_get_double_array(handle, "values").astype(dtype, copy=False)


def read_values(target: np.ndarray, descriptor: int, path: Path, location: Location, cutout: Cutout) -> None:
    """Read the `cutout` of a message of an open file into `target`, float32 or float64."""
    if location.packing.bits < 0:
        message = read_message(descriptor, path, location.offset, location.length, location.field)
        try:
            field = decode(message, location.layout, target.dtype)
        except (eccodes.CodesInternalError, ValueError) as error:
            raise InputError(
                f"{path}: the values of the message at byte {location.offset} cannot be decoded: {error}; "
                "fetch the file again"
            ) from None
        field = field[cutout.first : cutout.first + cutout.height]
    elif cutout.complete and location.layout.straight and target.flags.c_contiguous:
        _read_rows(target.reshape(-1), descriptor, path, location, cutout.first)
        return
    else:
        first, count = location.layout.stored_rows(cutout.first, cutout.height)
        values = np.empty(count * location.layout.columns, target.dtype)
        _read_rows(values, descriptor, path, location, first)
        field = location.layout.arrange(values)
        if count > cutout.height:
            field = field[cutout.first : cutout.first + cutout.height]
    target[...] = field if cutout.complete else field[cutout.rows][..., cutout.columns]


def _read_rows(out: np.ndarray, descriptor: int, path: Path, location: Location, row: int) -> None:
    """Fill the flat array `out` with values, starting at stored row `row`; read no other bytes."""
    size = PACKED_BYTES.get(location.packing.bits, 0)
    buffer = thread_buffer(BUFFER_START + size * len(out))
    if size:
        at = location.offset + location.data + size * row * location.layout.columns
        wanted = size * len(out)
        if os.preadv(descriptor, [buffer.data[BUFFER_START : BUFFER_START + wanted]], at) != wanted:
            raise changed_file(path, location.offset)
    unpack(buffer, location.packing, out)


_local = threading.local()


def thread_buffer(size: int) -> np.ndarray:
    """Return this thread's buffer of at least `size` bytes; a new allocation takes longer than reading the file."""
    buffer = getattr(_local, "buffer", None)
    if buffer is None or len(buffer) < size:
        buffer = _local.buffer = np.empty(size, np.uint8)
    return buffer
