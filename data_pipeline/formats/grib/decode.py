"""One message into an array: by numpy where its packing is simple, by ecCodes where it is not."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import NamedTuple

import eccodes
import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.formats.catalog import SINGLE, Index, Window
from data_pipeline.formats.grib.horizontal import Layout
from data_pipeline.formats.grib.packing import BYTES, LEAD, Packing, unpack
from data_pipeline.formats.grib.scan import changed, read

IN_SINGLE = ("grid_simple", "grid_ccsds", "grid_complex", "grid_second_order")
"""The packings, by the beginning of their names, that ecCodes decodes in single precision too."""


class Place(NamedTuple):
    """Where a message is, how its values lie, and how they are packed from its byte `data` on."""

    layout: Layout
    offset: int
    length: int
    data: int
    packing: Packing


class Cutout(NamedTuple):
    """What a window cuts out of a field: of `height` rows from `first` on those numbered `rows`, and `columns`."""

    first: int
    height: int
    rows: Index
    columns: Index
    whole: bool
    """Whether all of these rows are wanted, from end to end."""

    @classmethod
    def of(cls, window: Window, shape: tuple[int, int]) -> Cutout:
        """Return what indexing a field of `shape` with rows and columns asks for."""
        rows, columns = window
        wanted, across = np.arange(shape[0])[rows], np.arange(shape[1])[columns]
        if not wanted.size or not across.size:
            return cls(0, 0, rows, columns, False)
        first, height = int(wanted.min()), int(np.ptp(wanted)) + 1
        ordered = np.array_equal(wanted, np.arange(first, first + height))
        whole = isinstance(rows, slice) and ordered and np.array_equal(across, np.arange(shape[1]))
        return cls(first, height, wanted - first, columns, whole)


def decode(message: bytes, layout: Layout, dtype: np.dtype = SINGLE) -> np.ndarray:
    """Return the values of a message as a field (H, W) of `dtype`, north first, NaN where they are missing."""
    handle = eccodes.codes_new_from_message(message)
    try:
        eccodes.codes_set_double(handle, "missingValue", np.nan)
        return layout.arrange(_values(handle, dtype))
    finally:
        eccodes.codes_release(handle)


def _values(handle: int, dtype: np.dtype) -> np.ndarray:
    """Return the values of an ecCodes message; of some packings it has double precision only."""
    if dtype == SINGLE and eccodes.codes_get_string(handle, "packingType").startswith(IN_SINGLE):
        return eccodes.codes_get_float_array(handle, "values")
    return eccodes.codes_get_double_array(handle, "values").astype(dtype, copy=False)


def fill(target: np.ndarray, descriptor: int, path: Path, place: Place, cutout: Cutout) -> None:
    """Read the `cutout` of a message of an open file into `target`, float32 or float64."""
    if place.packing.bits < 0:
        try:
            field = decode(read(descriptor, path, place.offset, place.length), place.layout, target.dtype)
        except (eccodes.CodesInternalError, ValueError) as error:
            raise InputError(
                f"{path}: the values of the message at byte {place.offset} cannot be decoded: {error}"
            ) from None
        field = field[cutout.first : cutout.first + cutout.height]
    elif cutout.whole and place.layout.straight and target.flags.c_contiguous:
        _read(target.reshape(-1), descriptor, path, place, cutout.first)
        return
    else:
        first, count = place.layout.stored_rows(cutout.first, cutout.height)
        values = np.empty(count * place.layout.columns, target.dtype)
        _read(values, descriptor, path, place, first)
        field = place.layout.arrange(values)
        if count > cutout.height:
            field = field[cutout.first : cutout.first + cutout.height]
    target[...] = field if cutout.whole else field[cutout.rows][..., cutout.columns]


def _read(out: np.ndarray, descriptor: int, path: Path, place: Place, row: int) -> None:
    """Read values, from the first of a `row` as it is stored, into `out`, flat; only their bytes are read."""
    size = BYTES.get(place.packing.bits, 0)
    buffer = _scratch(LEAD + size * len(out))
    if size:
        at = place.offset + place.data + size * row * place.layout.columns
        wanted = size * len(out)
        if os.preadv(descriptor, [buffer.data[LEAD : LEAD + wanted]], at) != wanted:
            raise changed(path, place.offset)
    unpack(buffer, place.packing, out)


_local = threading.local()


def _scratch(size: int) -> np.ndarray:
    """Return at least `size` bytes that this thread has used before: new memory costs more than the reading."""
    buffer = getattr(_local, "buffer", None)
    if buffer is None or len(buffer) < size:
        buffer = _local.buffer = np.empty(size, np.uint8)
    return buffer
