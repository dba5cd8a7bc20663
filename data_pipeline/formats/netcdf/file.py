"""One NetCDF file: recognise it, open it under the library's lock, and detect that it is cut off."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, BinaryIO

from data_pipeline.common.errors import InputError
from data_pipeline.common.extras import package
from data_pipeline.common.file_format import HDF5_FORMAT, NETCDF_FORMAT, file_format
from data_pipeline.common.files import describe_state, reading

if TYPE_CHECKING:
    import netCDF4

_LOCK = RLock()
"""Serialises calls of the library. If xarray is imported, its lock is held too; importing it takes half a second."""

_TYPE_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 4, 6: 8, 7: 1, 8: 2, 9: 4, 10: 8, 11: 8}
"""Bytes of a value, by the number of its type in a classic file."""
_STREAMING = {4: 2**32 - 1, 8: 2**64 - 1}
"""The number of records that stands for "as many as the file holds", by the size of a count."""


def is_netcdf(path: str | Path) -> bool:
    """Whether a file starts like a NetCDF file, classic or NetCDF-4."""
    return file_format(path) in (HDF5_FORMAT, NETCDF_FORMAT)


@dataclass(frozen=True)
class NetCDFFile:
    """Path, size and modification time of a file; it holds no open handle, so that it can be sent to other processes.

    `state` also changes when another file takes the place of this one with the same size and time.
    """

    path: Path
    size: int
    modified: int
    state: str

    @classmethod
    def at(cls, path: Path) -> NetCDFFile:
        """Return the file at `path` without reading it."""
        with reading(path):
            status = path.stat()
        return cls(path, status.st_size, status.st_mtime_ns, describe_state(path))

    def stored_fields(self, data: object, outer: tuple[str, ...]) -> None:
        """Return None: the library returns values for every field, also for fields that were never written."""
        return

    def refuse_if_cut_off(self, dataset: netCDF4.Dataset) -> None:
        """Raise an `InputError` if this file, opened as `dataset`, is classic and shorter than its header says."""
        if not dataset.data_model.startswith("NETCDF3"):
            return
        try:
            expected = expected_size(self.path)
        except EOFError:
            raise InputError(f"{self.path} is cut off within its header; fetch the file again") from None
        if expected > self.size:
            raise InputError(
                f"{self.path} is cut off: it has {self.size:,} bytes of {expected:,}; fetch the file again"
            )

    @contextmanager
    def open(self) -> Iterator[netCDF4.Dataset]:
        """Open the file for one thread at a time: the NetCDF and HDF5 libraries are not thread-safe.

        If xarray is imported, its lock is held too, so files that the user opened with xarray are safe as well. The
        file is closed when the context ends: HDF5 caches the state of an open file, and crashes if the file is
        rewritten meanwhile.
        """
        with package("reading NetCDF", "netcdf"):
            import netCDF4

        with library_lock():
            try:
                status = self.path.stat()
                if (status.st_size, status.st_mtime_ns) != (self.size, self.modified):
                    raise InputError(f"{self.path} has changed since it was opened; run again when it is complete")
                dataset = netCDF4.Dataset(self.path)
            except OSError as error:
                reason = str(error.strerror or error).removeprefix("NetCDF: ")
                raise InputError(f"cannot read {self.path} ({reason}); fetch the file again if it is damaged") from None
            with dataset:
                yield dataset


@contextmanager
def library_lock() -> Iterator[None]:
    """Hold the lock of the NetCDF and HDF5 libraries."""
    with ExitStack() as locks:
        locks.enter_context(_LOCK)
        if xarray := sys.modules.get("xarray.backends.netCDF4_"):
            locks.enter_context(xarray.NETCDF4_PYTHON_LOCK)
        yield


def expected_size(path: Path) -> int:
    """Return the size in bytes of a complete classic file (CDF-1, 2 or 5), from its header.

    The NetCDF library reads zeros where a classic file has been cut off, and reports no error. Raises an EOFError if
    the header itself is cut off. Format: NetCDF Users' Guide, appendix B. Padding at the end does not count.
    """
    with path.open("rb") as file:
        version = file.read(4)[3]
        header = _ClassicHeader(file, wide_offset=version != 1, wide_count=version == 5)
        records = header.count()
        dimensions = header.dimensions()
        header.skip_attributes()
        return header.end(dimensions, 0 if records == _STREAMING[header.count_size] else records)


class _ClassicHeader:
    """Reads the header of a classic file in sequence."""

    def __init__(self, file: BinaryIO, wide_offset: bool, wide_count: bool) -> None:
        self.file = file
        self.offset_size = 8 if wide_offset else 4
        self.count_size = 8 if wide_count else 4

    def _number(self, size: int) -> int:
        if len(octets := self.file.read(size)) < size:
            raise EOFError
        return int.from_bytes(octets, "big")

    def count(self) -> int:
        return self._number(self.count_size)

    def _skip(self, size: int) -> None:
        self.file.seek(size + -size % 4, 1)

    def _items(self) -> range:
        self._number(4)  # the tag of the list, 0 if the list is empty
        return range(self.count())

    def dimensions(self) -> list[int]:
        """Return the lengths of the dimensions; the record dimension has length 0."""
        lengths = []
        for _ in self._items():
            self._skip(self.count())
            lengths.append(self.count())
        return lengths

    def skip_attributes(self) -> None:
        for _ in self._items():
            self._skip(self.count())
            kind = self._number(4)
            self._skip(self.count() * _TYPE_SIZES[kind])

    def end(self, dimensions: list[int], records: int) -> int:
        """Return the offset just after the last value of any variable."""
        fixed, recorded = [0], []
        for _ in self._items():
            self._skip(self.count())
            shape = [dimensions[self.count()] for _ in range(self.count())]
            self.skip_attributes()
            size = _TYPE_SIZES[self._number(4)]
            self.count()  # vsize, which is not reliable for large variables
            begin = self._number(self.offset_size)
            if shape and shape[0] == 0:
                recorded.append((begin, math.prod(shape[1:]) * size))
            else:
                fixed.append(begin + math.prod(shape) * size)
        sizes = [size for _, size in recorded]
        padded = sum(size + -size % 4 for size in sizes) if len(sizes) > 1 else sum(sizes)
        ends = [begin + (records - 1) * padded + size for begin, size in recorded] if records else []
        return max(fixed + ends)
