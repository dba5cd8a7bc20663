"""The fields in Zarr stores, and their values: one selection for each chunk of times, with all members and levels.

Readers hold paths and positions, never open files, so they can be sent to other processes.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from threading import Lock

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.common.files import FileAddress
from data_pipeline.common.threads import in_threads
from data_pipeline.formats.catalog import DOUBLE
from data_pipeline.formats.cf.block import FieldBlock, RefusedVariable
from data_pipeline.formats.cf.cf_catalog import BlockCatalog
from data_pipeline.formats.cf.cf_header import Header
from data_pipeline.formats.cf.cf_variables import NameMap
from data_pipeline.formats.cf.coordinates import Horizontal
from data_pipeline.formats.cf.positions import compact, runs
from data_pipeline.formats.zarr.anemoi import AnemoiFile, anemoi_blocks, is_anemoi
from data_pipeline.formats.zarr.array import ZarrArray
from data_pipeline.formats.zarr.zarr_header import ZarrFile, zarr_header
from data_pipeline.grid import Grid
from data_pipeline.grids.reduced_grid import ReducedGrid
from data_pipeline.protocols import Window, fill_missing
from data_pipeline.variables.units import Conversion

READ_THREADS = 8
"""Most regions that are read at once; the thread budget may allow fewer."""
FETCH_THREADS = 16
"""Regions of a store at a URL that are fetched at once. Their threads wait for the server, so the thread budget does
not count them."""
REGION_CACHE_BYTES = 256 << 20
"""Most bytes of decoded regions that a process keeps."""

_absent: Counter[str] = Counter()
"""The number of absent chunks that were read so far, by array."""


class KeptRegions:
    """A cache of the last regions of whole chunks, up to `max_bytes`.

    A chunk with several times is decoded once, even if its times are read one by one. While a thread reads a region,
    other threads wait. The arrays are shared and must not be changed.
    """

    def __init__(self, max_bytes: int = REGION_CACHE_BYTES) -> None:
        self.max_bytes = max_bytes
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def get(self, key: Hashable, read: Callable[[], np.ndarray]) -> np.ndarray:
        """Return the region of a key; call `read` if the region is not in the cache."""
        with self._lock:
            found = self._regions.get(key)
            self._regions[key] = region = read() if found is None else found
            self._regions.move_to_end(key)
            while sum(each.nbytes for each in self._regions.values()) > self.max_bytes:
                self._regions.popitem(last=False)
            return region

    def _forget(self) -> None:
        """Empty the cache and make a new lock: in a forked process, no thread would ever release the old lock."""
        self._regions: OrderedDict[Hashable, np.ndarray] = OrderedDict()
        self._lock = Lock()


_kept = KeptRegions()


@dataclass(frozen=True, eq=False)
class ArrayLayout:
    """Where the fields of a block are in its array: the `outer` axes, the axes of `times`, of rows and of columns.

    If the array lacks an axis of rows or columns, an additional last axis of length 1 stands for it. If all cells are
    along the axis of rows, row by row, `width` is the number of columns; otherwise it is 0.
    """

    array: ZarrArray
    outer: tuple[int, ...]
    times: tuple[int, ...]
    rows: int
    columns: int
    horizontal: Horizontal
    conversion: Conversion
    width: int

    @cached_property
    def _masks(self) -> bool:
        """Whether some stored values may mark missing data."""
        limits = self.array.attributes.keys() & {"valid_min", "valid_max", "valid_range"}
        return bool(self.array.missing_values or limits)

    @cached_property
    def _linear(self) -> Conversion:
        """The conversion of stored values: scale_factor and add_offset, then the conversion of units."""
        attributes = self.array.attributes
        scale, offset = (float(attributes.get(name, k)) for name, k in (("scale_factor", 1), ("add_offset", 0)))
        return Conversion(scale * self.conversion.factor, offset * self.conversion.factor + self.conversion.offset)

    def places(self, fields: np.ndarray) -> dict[int, np.ndarray]:
        """Return the position of each field along the `outer` axes."""
        shape = [self.array.metadata.shape[axis] for axis in self.outer]
        return dict(zip(self.outer, np.unravel_index(fields, shape), strict=True)) if self.outer else {}

    def parts(self, fields: np.ndarray) -> Iterator[np.ndarray]:
        """Yield groups of positions in `fields` that are read at once.

        The fields of a group are in one chunk of times and form a rectangle along the other axes.
        """
        places = self.places(fields)
        chunk = np.zeros(len(fields), np.int64)
        for axis in self.times:
            chunk = chunk * self.array.metadata.shape[axis] + places[axis] // self.array.chunks[axis]
        for each in np.unique(chunk):
            yield from _rectangles(np.flatnonzero(chunk == each), list(places.values()))

    def read(self, fields: np.ndarray, targets: Sequence[np.ndarray], window: Window) -> None:
        """Fill `targets` (n arrays (h, w)) with the `window` of one group of `fields` (n); NaN where missing."""
        rows = np.atleast_1d(np.arange(self.horizontal.rows)[:: -1 if self.horizontal.south_first else 1][window[0]])
        columns = np.atleast_1d(self.horizontal.columns[window[1]])
        wanted = self.places(fields) | {self.rows: rows, self.columns: columns}
        if self.width:
            wanted |= {self.rows: (rows[:, None] * self.width + columns).ravel(), self.columns: np.zeros(1, int)}
        region, values = self._region([np.unique(wanted[axis]) for axis in sorted(wanted)])
        inside = {axis: np.searchsorted(region[axis], each) for axis, each in wanted.items()}
        values = values.reshape([len(each) for each in region]).transpose(*self.outer, self.rows, self.columns)
        across, pairs = compact(inside[self.rows]), list(runs(inside[self.columns]))
        for k, target in enumerate(targets):
            field = values[tuple(inside[axis][k] for axis in self.outer)][across]
            if self.width:
                self._put(field.reshape(target.shape), target)
                continue
            for ours, theirs in pairs:
                self._put(field[:, theirs], target[:, ours])

    def _region(self, wanted: list[np.ndarray]) -> tuple[list[np.ndarray], np.ndarray]:
        """Return the positions along each axis of a region that contains `wanted`, and the region's values.

        If chunks hold several times, the region has all times of its chunk and is cached, unless it is too large.
        """
        array = self.array
        region = list(wanted)
        for axis in self.times:
            size, length = array.chunks[axis], array.metadata.shape[axis]
            first = wanted[axis][0] // size * size
            region[axis] = np.arange(first, min(first + size, length))
        count = int(np.prod([len(each) for each in region], dtype=np.int64))
        spans = any(min(array.chunks[axis], array.metadata.shape[axis]) > 1 for axis in self.times)
        if not spans or count * array.dtype.itemsize > REGION_CACHE_BYTES:
            return wanted, self._read(wanted)
        key = (str(array.store.path), array.stamp, array.name, *(each.tobytes() for each in region))
        return region, _kept.get(key, lambda: self._read(region))

    def _read(self, region: Sequence[np.ndarray]) -> np.ndarray:
        values, absent = self.array.read(region[: len(self.array.chunks)])
        if absent:
            _tell_absent(self.array, absent)
        return values

    def _put(self, values: np.ndarray, target: np.ndarray) -> None:
        """Write converted values to `target`; NaN where they are missing."""
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


@dataclass(frozen=True, eq=False)
class ChunkReader:
    """Reads fields of several arrays on one grid; `block` and `field` give the position of each field."""

    grid: Grid
    blocks: tuple[ArrayLayout, ...]
    block: np.ndarray
    field: np.ndarray

    def read(self, wanted: np.ndarray, out: np.ndarray, window: Window) -> None:
        """Read the `window` of each field in `wanted` (...) into `out` (..., h, w); NaN where `wanted` is negative."""
        there = fill_missing(wanted, out)
        if not len(there) or not out.size:
            return
        fields = wanted.ravel()[there]
        blocks = self.block[fields]
        parts: list[tuple[ArrayLayout, np.ndarray]] = []
        for k in np.unique(blocks).tolist():
            mine = np.flatnonzero(blocks == k)
            self.blocks[k].array.refuse_if_changed()
            parts += [(self.blocks[k], mine[part]) for part in self.blocks[k].parts(self.field[fields[mine]])]

        def read_part(part: tuple[ArrayLayout, np.ndarray]) -> None:
            layout, mine = part
            places = zip(*np.unravel_index(there[mine], wanted.shape), strict=True)
            targets = [_two_axes(out[(*place, ...)], window) for place in places]
            layout.read(self.field[fields[mine]], targets, window)

        if len(parts) > 1 and parts[0][0].array.store.is_remote:
            with ThreadPoolExecutor(min(len(parts), FETCH_THREADS)) as pool:
                list(pool.map(read_part, parts))
        else:
            list(in_threads(read_part, parts, READ_THREADS))


def _rectangles(chosen: np.ndarray, places: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
    """Divide the fields `chosen` into parts; a part has all combinations of its positions along the axes.

    >>> list(_rectangles(np.arange(3), [np.array([0, 0, 1]), np.array([0, 1, 0])]))
    [array([0, 1]), array([2])]
    """
    axes = [np.unique(place[chosen]) for place in places]
    distinct = np.unique(np.stack([place[chosen] for place in places]), axis=1).shape[1] if places else 1
    if np.prod([len(axis) for axis in axes], dtype=np.int64) == distinct:
        yield chosen
        return
    place, axis = next((place, axis) for place, axis in zip(places, axes, strict=True) if len(axis) > 1)
    for value in axis:
        yield from _rectangles(chosen[place[chosen] == value], places)


def _two_axes(target: np.ndarray, window: Window) -> np.ndarray:
    """Return the target array of a field with two axes, even if the window is a single row or column."""
    for axis, index in enumerate(window):
        if isinstance(index, int | np.integer):
            target = np.expand_dims(target, axis)
    return target


def _as_stored(value: float, dtype: np.dtype) -> np.ndarray:
    """Return a missing-value marker in the type of the values, so that -9999.9 equals its single-precision form."""
    return np.array(value).astype(dtype)


def _tell_absent(array: ZarrArray, keys: Sequence[str]) -> None:
    """Warn that chunks do not exist, the first time and whenever their number gains a digit.

    Raises an `InputError` if an absent chunk does not mean missing values.
    """
    if not array.fills_with_missing:
        raise InputError(
            f"{array} lacks its chunk {keys[0]}, for which Zarr gives {array.fill_value} everywhere; "
            "fetch the chunk, or write the store with write_empty_chunks=True if that is its value"
        )
    before = _absent[str(array)]
    _absent[str(array)] = count = before + len(keys)
    if not before or len(str(count)) > len(str(before)):
        warnings.warn(
            f"{array} lacks its chunk {keys[0]}, so its values are missing; chunks lacking so far: {count:,}",
            stacklevel=2,
        )


@dataclass(frozen=True, eq=False)
class ZarrCatalog(BlockCatalog):
    """The fields of the `wanted` variables in Zarr stores."""

    @staticmethod
    def header_of(path: FileAddress) -> Header:
        """Read the metadata of a store."""
        return zarr_header(path)

    @classmethod
    def blocks_of(
        cls, header: Header, names: NameMap, timeless: bool, summaries: bool
    ) -> list[FieldBlock | RefusedVariable]:
        """Return the variables that have latitudes and longitudes."""
        if isinstance(header.file, ZarrFile) and is_anemoi(header.file):
            return anemoi_blocks(header.file, names, timeless)
        return super().blocks_of(header, names, timeless, summaries)

    def reader_on(self, grid: Grid) -> ChunkReader:
        """Return the reader of these fields, which are all on one grid."""
        layouts = tuple(_layout(block) for block in self.blocks)
        field = self.rows["field"].copy()
        for k, block in enumerate(self.blocks):
            if isinstance(file := block.header.file, AnemoiFile):
                mine = self.rows["block"] == k
                field[mine] = file.positions(block.data.name, field[mine])
        return ChunkReader(grid, layouts, self.rows["block"].copy(), field)


def _layout(block: FieldBlock) -> ArrayLayout:
    file, data = block.header.file, block.data
    assert isinstance(file, ZarrFile)
    if isinstance(file, AnemoiFile):
        # A chunk holds all variables of a time: like its times, they are kept for the next reading.
        cell, grid = len(file.data.metadata.shape) - 1, block.horizontal.grid
        rows, columns = (cell + 1, cell) if isinstance(grid, ReducedGrid) else (cell, cell + 1)
        array, outer, times = file.data, tuple(range(cell)), (0, 1, 3)[: cell - 1]
        width = 0 if len(block.across) < 2 else grid.shape[1]
    else:
        dated = {name for coordinate in block.time.coordinates for name in coordinate.dimensions}
        axis = {name: k for k, name in enumerate(data.dimensions)}
        # Stations have no column dimension; a single point also has no row dimension.
        rows, columns = (*(axis[name] for name in block.across), len(axis), len(axis) + 1)[:2]
        array, outer, width = file.arrays[data.name], tuple(axis[name] for name in block.outer), 0
        times = tuple(axis[name] for name in block.outer if name in dated)
    return ArrayLayout(array, outer, times, rows, columns, block.horizontal, block.conversion, width)
