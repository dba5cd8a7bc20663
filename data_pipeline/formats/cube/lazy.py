"""Many fields as one lazy array, which xarray and dask index."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
from xarray.backends import BackendArray
from xarray.core import indexing

from data_pipeline.common.errors import InputError
from data_pipeline.formats.cube.catalog import SINGLE, FieldReader, Index

MEMORY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
"""Bytes of memory of this machine."""


class FieldArray(BackendArray):
    """The array (..., H, W) of the fields with the numbers `cells` (...); NaN where that is negative."""

    def __init__(self, source: FieldReader, cells: np.ndarray, dtype: np.dtype = SINGLE) -> None:
        self.source = source
        self.cells = cells
        self.shape = (*cells.shape, *source.grid.shape)
        self.dtype = dtype

    def __getitem__(self, key: indexing.ExplicitIndexer) -> np.ndarray:
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.OUTER, self._read)

    def _read(self, key: tuple[Index, ...]) -> np.ndarray:
        *outer, rows, columns = key
        cells = _outer(self.cells, outer)
        window = np.broadcast_to(np.float32(np.nan), self.source.grid.shape)[rows][..., columns].shape
        _refuse_too_much(cells.size, window, self.dtype)
        out = np.empty((cells.size, *window), self.dtype)
        self.source.read(cells.ravel(), out, (rows, columns))
        return out.reshape((*cells.shape, *window))


def _refuse_too_much(fields: int, shape: tuple[int, ...], dtype: np.dtype) -> None:
    """Refuse to read at once what no memory of this machine could hold."""
    size = fields * int(np.prod(shape)) * dtype.itemsize
    if size > MEMORY:
        raise InputError(
            f"{fields:,} fields of {' x '.join(map(str, shape))} points take {size / 1e9:.1f} GB, this machine has "
            f"{MEMORY / 1e9:.1f} GB; choose a part of them, or open the files with chunks='auto'"
        )


def _outer(array: np.ndarray, key: Sequence[Index]) -> np.ndarray:
    """Index every axis by itself; an integer drops its axis."""
    for axis in reversed(range(len(key))):
        array = array[(slice(None),) * axis + (key[axis],)]
    return array
