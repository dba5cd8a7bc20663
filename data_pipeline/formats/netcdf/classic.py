"""Classic NetCDF files (CDF-1, 2 and 5): how long such a file must be.

The NetCDF library reads zeros where a classic file has been cut off, and says nothing.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import BinaryIO

SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 4, 6: 8, 7: 1, 8: 2, 9: 4, 10: 8, 11: 8}
"""Bytes of a value, by the number of its type."""
STREAMING = {4: 2**32 - 1, 8: 2**64 - 1}
"""The number of records that means: as many as there are."""


def least_size(path: Path) -> int:
    """Return how many bytes the header of a classic file promises; EOFError if it is not even whole itself.

    The format is that of the NetCDF Users' Guide, appendix B. Padding at the very end does not count.
    """
    with path.open("rb") as file:
        version = file.read(4)[3]
        header = _Header(file, wide_offset=version != 1, wide_count=version == 5)
        records = header.count()
        dimensions = header.dimensions()
        header.skip_attributes()
        return header.end(dimensions, 0 if records == STREAMING[header.count_size] else records)


class _Header:
    """Reads the header of a classic file from its start to its end."""

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
        self._number(4)  # the tag that says what is listed, or 0 for an empty list
        return range(self.count())

    def dimensions(self) -> list[int]:
        """Return the lengths of the dimensions; 0 is that of records."""
        lengths = []
        for _ in self._items():
            self._skip(self.count())
            lengths.append(self.count())
        return lengths

    def skip_attributes(self) -> None:
        for _ in self._items():
            self._skip(self.count())
            kind = self._number(4)
            self._skip(self.count() * SIZES[kind])

    def end(self, dimensions: list[int], records: int) -> int:
        """Return the last byte that belongs to a value of any variable."""
        fixed, moving = [0], []
        for _ in self._items():
            self._skip(self.count())
            shape = [dimensions[self.count()] for _ in range(self.count())]
            self.skip_attributes()
            size = SIZES[self._number(4)]
            self.count()  # vsize, which is not reliable for large variables
            begin = self._number(self.offset_size)
            if shape and shape[0] == 0:
                moving.append((begin, math.prod(shape[1:]) * size))
            else:
                fixed.append(begin + math.prod(shape) * size)
        padded = sum(size + -size % 4 for _, size in moving) if len(moving) > 1 else sum(size for _, size in moving)
        ends = [begin + (records - 1) * padded + size for begin, size in moving] if records else []
        return max(fixed + ends)
