"""Reading of values: every chunk is fetched and decoded once for all fields in it, several chunks at a time.

Fields of local chunks without compression are read straight into the caller's arrays. Readers hold paths and positions,
never open files, so they can be sent to other processes.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.common.threads import in_threads
from data_pipeline.formats.catalog import DOUBLE, Index, Window
from data_pipeline.formats.cf.coordinates import Horizontal
from data_pipeline.formats.cf.positions import chunked
from data_pipeline.formats.zarr.array import ZarrArray
from data_pipeline.formats.zarr.chunk_cache import ChunkCache
from data_pipeline.formats.zarr.store import local_file
from data_pipeline.grid import Grid
from data_pipeline.units import Conversion

DECODE_THREADS = 8
"""Threads that fetch and decode at once, as far as the budget allows; reading and numcodecs release Python's lock."""
FETCH_THREADS = 16
"""Threads for a store at a URL, outside the budget: they spend their time waiting for the server."""
MIN_CHUNK_BYTES = 1 << 16
"""With smaller chunks, threads spend their time waiting for the interpreter's lock."""

_cache = ChunkCache()
_absent: Counter[str] = Counter()
"""Chunks of each array that did not exist when they were read."""

Pieces = Sequence[tuple[slice, Index]]
"""Positions in the result, and positions in a chunk, along one axis."""


@dataclass(frozen=True, eq=False)
class ArrayLayout:
    """Where the fields of a block are in its array: the axes of the fields, of time, of rows and of columns.

    The last axes of an array that lacks rows or columns are additional ones, of one cell.
    """

    array: ZarrArray
    outer: tuple[int, ...]
    times: tuple[int, ...]
    rows: int
    columns: int
    horizontal: Horizontal
    conversion: Conversion

    @cached_property
    def chunk_shape(self) -> tuple[int, ...]:
        """The shape of a chunk with rows and columns."""
        shape = self.array.decoder.shape
        return shape + (1,) * (len(self.outer) + 2 - len(shape))

    @cached_property
    def spans_times(self) -> bool:
        """Whether a chunk has fields of several starts or lead times, which are read one after the other."""
        return any(self.chunk_shape[axis] > 1 for axis in self.times)

    @cached_property
    def _masks(self) -> bool:
        """Whether values may stand for missing ones."""
        limits = self.array.attributes.keys() & {"valid_min", "valid_max", "valid_range"}
        return bool(self.array.missing_values or limits)

    @cached_property
    def _linear(self) -> Conversion:
        """The conversion of stored values: scale_factor and add_offset, then the units."""
        attributes = self.array.attributes
        scale, offset = (float(attributes.get(name, k)) for name, k in (("scale_factor", 1), ("add_offset", 0)))
        return Conversion(scale * self.conversion.factor, offset * self.conversion.factor + self.conversion.offset)

    @cached_property
    def is_direct(self) -> bool:
        """Whether a field is consecutive bytes of a chunk, in our order, so that it can be read without the others."""
        return (
            self.array.decoder.is_plain
            and not self.array.store.is_remote
            and not self.array.shards
            and (self.rows, self.columns) == (len(self.chunk_shape) - 2, len(self.chunk_shape) - 1)
        )

    def jobs(self, fields: np.ndarray, targets: Sequence[np.ndarray], window: Window) -> Iterator[ChunkJob]:
        """Yield one job for each chunk that has a part of the `window` of some `fields`; `targets` are (h, w)."""
        array = self.array
        chunk = self.chunk_shape
        rows = np.atleast_1d(np.arange(self.horizontal.rows)[:: -1 if self.horizontal.south_first else 1][window[0]])
        columns = np.atleast_1d(self.horizontal.columns[window[1]])
        across = [_by_chunk(rows, chunk[self.rows]), _by_chunk(columns, chunk[self.columns])]
        positions = np.unravel_index(fields, [array.shape[axis] for axis in self.outer]) if self.outer else ()
        outer: dict[tuple[int, ...], list[tuple[np.ndarray, tuple[int, ...]]]] = {}
        for target, *position in zip(targets, *(axis.tolist() for axis in positions), strict=True):
            split = [divmod(k, chunk[axis]) for k, axis in zip(position, self.outer, strict=True)]
            outer.setdefault(tuple(k for k, _ in split), []).append((target, tuple(k for _, k in split)))
        for key in sorted(outer):
            for row_chunk, row_pieces in across[0].items():
                for column_chunk, column_pieces in across[1].items():
                    place = [0] * len(chunk)
                    for axis, k in zip(
                        (*self.outer, self.rows, self.columns), (*key, row_chunk, column_chunk), strict=True
                    ):
                        place[axis] = k
                    yield ChunkJob(self, tuple(place[: len(array.shape)]), outer[key], row_pieces, column_pieces)

    def field_of(self, values: np.ndarray, inside: Sequence[int]) -> np.ndarray:
        """Return the part of one field in a chunk, (rows, columns)."""
        values = values.reshape(self.chunk_shape)
        key: list[int | slice] = [slice(None)] * values.ndim
        for axis, k in zip(self.outer, inside, strict=True):
            key[axis] = k
        field = values[tuple(key)]
        return field if self.rows < self.columns else field.T

    def put(self, values: np.ndarray, target: np.ndarray) -> None:
        """Convert stored values to `target`; NaN where they are missing."""
        linear = self._linear
        if not self._masks and not linear.changes:
            target[...] = values
            return
        converted = values.astype(DOUBLE)
        if linear.changes:
            converted *= linear.factor
            converted += linear.offset
        if self._masks:
            converted[self._is_missing(values)] = np.nan
        target[...] = converted

    def takes_as_is(self, target: np.ndarray) -> bool:
        """Whether `target` can receive the stored bytes."""
        plain = not self._masks and not self._linear.changes and self.array.decoder.dtype == target.dtype
        return plain and target.flags.c_contiguous

    def _is_missing(self, values: np.ndarray) -> np.ndarray:
        attributes = self.array.attributes
        missing = np.zeros(values.shape, bool)
        for value in self.array.missing_values:
            missing |= values == _as_stored(value, values.dtype)
        low, high = attributes.get("valid_range", (attributes.get("valid_min"), attributes.get("valid_max")))
        if low is not None:
            missing |= values < _as_stored(low, values.dtype)
        if high is not None:
            missing |= values > _as_stored(high, values.dtype)
        return missing

    def chunk(self, position: tuple[int, ...], out: np.ndarray | None = None) -> np.ndarray | None:
        """Return the values of a chunk, None if it does not exist; `out` may be used for them."""
        stored = self._bytes(position)
        return None if stored is None else self.array.decode(position, stored, out)

    def cached_chunk(self, position: tuple[int, ...]) -> np.ndarray | None:
        """Return the values of a chunk that spans several times, from the cache if it is there."""
        try:
            return _cache.get(self._key(position), lambda: self._existing(position))
        except _AbsentChunkError:
            return None

    def _existing(self, position: tuple[int, ...]) -> np.ndarray:
        if (values := self.chunk(position)) is None:
            raise _AbsentChunkError
        return values

    def _bytes(self, position: tuple[int, ...]) -> bytes | None:
        shards = self.array.shards
        if not shards:
            return self.array.chunk_bytes(position)
        shard = tuple(k // n for k, n in zip(position, shards.counts, strict=True))
        try:
            index = _cache.get(("index", *self._key(shard)), lambda: self._index(position))
        except _AbsentChunkError:
            return None
        return self.array.chunk_bytes(position, index)

    def _index(self, position: tuple[int, ...]) -> np.ndarray:
        if (index := self.array.shard_index(position)) is None:
            raise _AbsentChunkError
        return index

    def _key(self, position: tuple[int, ...]) -> tuple:
        return (str(self.array.store.path), self.array.stamp, self.array.name, *position)


class _AbsentChunkError(Exception):
    """A chunk, or the shard that holds it, does not exist."""


@dataclass(frozen=True, eq=False)
class ChunkJob:
    """The fields to read from one chunk: for each, its (h, w) target and its position along the outer axes."""

    layout: ArrayLayout
    position: tuple[int, ...]
    fields: Sequence[tuple[np.ndarray, tuple[int, ...]]]
    rows: Pieces
    columns: Pieces

    def run(self) -> None:
        """Read the chunk and fill the targets."""
        if not (self._read_directly() if self.layout.is_direct else self._decode_into_target()):
            layout = self.layout
            values = (layout.cached_chunk if layout.spans_times else layout.chunk)(self.position)
            for target, inside in self.fields:
                self._fill(target, None if values is None else layout.field_of(values, inside))
            if values is None:
                _tell_absent(layout.array, self.position)

    def _fill(self, target: np.ndarray, field: np.ndarray | None) -> None:
        """Copy the window of a field of the chunk to its target; None stands for missing values."""
        for ours, theirs in self.rows:
            for our_columns, their_columns in self.columns:
                if field is None:
                    target[ours, our_columns] = np.nan
                else:
                    self.layout.put(field[theirs][:, their_columns], target[ours, our_columns])

    def _whole(self, target: np.ndarray) -> bool:
        """Whether the window of a field is all of it, in the order of the chunk."""
        rows, columns = (self.layout.chunk_shape[axis] for axis in (self.layout.rows, self.layout.columns))
        whole = [(slice(0, rows), slice(0, rows))], [(slice(0, columns), slice(0, columns))]
        return (list(self.rows), list(self.columns)) == whole and target.shape == (rows, columns)

    def _decode_into_target(self) -> bool:
        """Decode a chunk of one field straight into its target, if that is possible."""
        ((target, _), *others), layout = self.fields, self.layout
        decoder = layout.array.decoder
        if (
            others or layout.rows > layout.columns or target.nbytes != decoder.nbytes or not layout.takes_as_is(target)
            or decoder.axes != tuple(range(len(decoder.shape))) or not self._whole(target)
        ):  # fmt: skip
            return False
        values = layout.chunk(self.position, target)
        if values is None:
            target[...] = np.nan
            _tell_absent(layout.array, self.position)
        elif not np.shares_memory(values, target):
            target[...] = values.reshape(target.shape)
        return True

    def _read_directly(self) -> bool:
        """Read rows of a local chunk without compression; return whether that is possible."""
        layout, array = self.layout, self.layout.array
        key = array.key(self.position)
        try:
            place = array.store.place(key)
        except FileNotFoundError:
            return False
        if place is None:
            return False
        if place.size != array.decoder.nbytes:
            raise array.damaged(self.position, f"it has {place.size:,} bytes of {array.decoder.nbytes:,}")
        chunk, dtype = layout.chunk_shape, array.decoder.dtype
        width = chunk[layout.columns]
        strides = [int(np.prod(chunk[axis + 1 :])) for axis in layout.outer]
        with local_file(place.path) as descriptor:
            for target, inside in self.fields:
                start = sum(k * stride for k, stride in zip(inside, strides, strict=True))
                for ours, theirs in self.rows:
                    first, last, rows = _span(theirs)
                    part = target[ours]
                    straight = self._takes_rows(part, theirs, width)
                    values: Any = part if straight else np.empty((last - first, width), dtype)
                    offset = place.offset + (start + first * width) * dtype.itemsize
                    if os.preadv(descriptor, [values], offset) < values.nbytes:
                        raise array.damaged(self.position, "it is cut off")
                    if not straight:
                        for our_columns, their_columns in self.columns:
                            layout.put(values[rows][:, their_columns], part[:, our_columns])
        return True

    def _takes_rows(self, part: np.ndarray, rows: Index, width: int) -> bool:
        """Whether rows of the chunk are the bytes that `part` of a target needs."""
        forward = isinstance(rows, slice) and rows.step is None
        return forward and list(self.columns) == [(slice(0, width), slice(0, width))] and self.layout.takes_as_is(part)


@dataclass(frozen=True, eq=False)
class ChunkReader:
    """Reads fields of several arrays on one grid; `block` and `field` give the position of each field."""

    grid: Grid
    blocks: tuple[ArrayLayout, ...]
    block: np.ndarray
    field: np.ndarray

    def read(self, wanted: np.ndarray, out: np.ndarray, window: Window) -> None:
        """Read the `window` of each field in `wanted` (...) into `out` (..., h, w); NaN where `wanted` is negative."""
        if out.shape[: wanted.ndim] != wanted.shape:
            raise ValueError(f"the array to fill is {out.shape}, the fields asked for are {wanted.shape}")
        out[wanted < 0] = np.nan
        there = np.flatnonzero(wanted >= 0)
        fields = wanted.ravel()[there]
        blocks = self.block[fields]
        jobs: list[ChunkJob] = []
        for k in np.unique(blocks).tolist():
            mine = np.flatnonzero(blocks == k)
            places = zip(*np.unravel_index(there[mine], wanted.shape), strict=True)
            targets = [_two_axes(out[(*place, ...)], window) for place in places]
            self.blocks[k].array.refuse_if_changed()
            jobs += self.blocks[k].jobs(self.field[fields[mine]], targets, window)
        if not jobs:
            return
        array = jobs[0].layout.array
        if array.store.is_remote and len(jobs) > 1:
            with ThreadPoolExecutor(min(len(jobs), FETCH_THREADS)) as pool:
                list(pool.map(ChunkJob.run, jobs))
        else:
            large = array.decoder.nbytes >= MIN_CHUNK_BYTES
            list(in_threads(ChunkJob.run, jobs, DECODE_THREADS if large else 1))


def _two_axes(target: np.ndarray, window: Window) -> np.ndarray:
    """Return a field's target with both axes, also where the window is one row or one column."""
    for axis, index in enumerate(window):
        if isinstance(index, int | np.integer):
            target = np.expand_dims(target, axis)
    return target


def _by_chunk(positions: np.ndarray, size: int) -> dict[int, list[tuple[slice, Index]]]:
    """Return positions in the result and in the chunk, for each chunk along an axis."""
    found: dict[int, list[tuple[slice, Index]]] = {}
    for chunk, ours, theirs in chunked(positions, size):
        found.setdefault(chunk, []).append((ours, theirs))
    return found


def _span(rows: Index) -> tuple[int, int, Index]:
    """Return the first row, the row after the last, and the positions of `rows` among them."""
    if isinstance(rows, slice):
        if rows.step is None:
            return rows.start, rows.stop, slice(None)
        return 0 if rows.stop is None else rows.stop + 1, rows.start + 1, slice(None, None, -1)
    rows = np.asarray(rows)
    return int(rows.min()), int(rows.max()) + 1, rows - rows.min()


def _as_stored(value: float, dtype: np.dtype) -> np.ndarray:
    """Return a marker of missing values in the type of the values, so that -9999.9 is found among single precision."""
    return np.array(value).astype(dtype)


def _tell_absent(array: ZarrArray, position: tuple[int, ...]) -> None:
    """Warn that a chunk does not exist, the 1st, 10th, 100th... time.

    Raises an `InputError` unless its absence stands for missing values.
    """
    if not array.fills_with_missing:
        raise InputError(
            f"{array} lacks its chunk {array.key(position)}, for which Zarr gives {array.fill_value} everywhere; "
            "fetch the chunk, or write the store with write_empty_chunks=True if that is its value"
        )
    _absent[str(array)] += 1
    count = _absent[str(array)]
    if str(count).rstrip("0") == "1":
        warnings.warn(
            f"{array} lacks its chunk {array.key(position)}, "
            f"so its values are missing; chunks lacking so far: {count:,}",
            stacklevel=2,
        )
