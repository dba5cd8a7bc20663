"""LoadedReader: keeps all fields of small archives in memory. Each read of a file takes milliseconds, however short."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock

import numpy as np

from data_pipeline.formats.catalog import SINGLE
from data_pipeline.grid import Grid
from data_pipeline.protocols import ALL, FieldReader, Window

LOADED_BYTES = 1 << 28
"""Fields of more bytes than this are read from the files each time, in each precision."""


@dataclass(frozen=True, eq=False)
class LoadedReader:
    """Reads all `count` fields of `source` at the first read in a precision, then copies from memory.

    A copy in another process loads them again.
    """

    source: FieldReader
    count: int
    _loaded: dict[np.dtype, np.ndarray] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    @staticmethod
    def suits(grid: Grid, count: int, precision: np.dtype = SINGLE) -> bool:
        """Return whether so many fields on a grid are small enough."""
        return count * precision.itemsize * int(np.prod(grid.shape)) <= LOADED_BYTES

    @property
    def grid(self) -> Grid:
        """The grid of the source."""
        return self.source.grid

    def read(self, wanted: np.ndarray, out: np.ndarray, window: Window) -> None:
        """Read the `window` of the fields with the numbers `wanted`; see `FieldReader`."""
        if not self.suits(self.grid, self.count, out.dtype):
            self.source.read(wanted, out, window)
            return
        with self._lock:
            if out.dtype not in self._loaded:
                values = np.empty((self.count, *self.grid.shape), out.dtype)
                self.source.read(np.arange(self.count), values, (ALL, ALL))
                self._loaded[out.dtype] = values
        out[...] = self._loaded[out.dtype][np.maximum(wanted, 0)][..., window[0], :][..., window[1]]
        out[wanted < 0] = np.nan

    def __reduce__(self) -> tuple[type[LoadedReader], tuple[FieldReader, int]]:
        return LoadedReader, (self.source, self.count)
