"""NewStore: write arrays of fields and their coordinates to a new Zarr store of format 2, which most programs read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numcodecs import Blosc

CHUNK_BYTES = 1 << 25
"""Most bytes of a chunk before compression, unless a single field has more."""


class NewStore:
    """A store that is being written: a chunk has the members of one start and lead time, as samples are read.

    All chunks are written, also those of missing values: a chunk that does not exist is a field that does not exist.
    """

    def __init__(self, path: Path, fill: float) -> None:
        self.path, self.fill = path, fill
        self.sizes, self.names = dict[str, int](), set[str]()
        self._arrays: dict[str, Any] = {}  # an array that is opened again forgets that it writes all chunks
        self._group = zarr.open_group(path, mode="w", zarr_format=2)

    def create(
        self, name: str, kind: Any, dimensions: tuple[str, ...], attributes: Mapping[str, Any], values: Any = None,
        cells: int = 0,
    ) -> None:  # fmt: skip
        """Make an array; one without `values` holds fields, whose last `cells` dimensions are horizontal."""
        shape = tuple(self.sizes[dimension] for dimension in dimensions)
        chunks = list(shape)
        if values is None:
            outer, field = len(shape) - cells, 4 * math.prod(shape[-cells:])
            chunks[:outer] = [1] * outer
            if dimensions[outer - 1] == "number":
                chunks[outer - 1] = max(1, min(shape[outer - 1], CHUNK_BYTES // field))
        elif kind is str:
            values = np.asarray(values).astype(str)
        array = self._arrays[name] = self._group.create_array(
            name,
            shape=shape,
            chunks=tuple(map(int, chunks)),
            dtype=np.asarray(values).dtype if kind is str else np.dtype(kind),
            fill_value=self.fill if values is None else None,
            compressors=Blosc("zstd", 3, Blosc.SHUFFLE),
            config={"write_empty_chunks": True},
            attributes={**attributes, "_ARRAY_DIMENSIONS": list(dimensions)},
        )
        if values is not None:
            array[...] = values
        self.names.add(name)

    def put(self, name: str, key: tuple[int, ...], values: np.ndarray) -> None:
        """Write the values of an array at a position of its first dimensions."""
        self._arrays[name][key] = values

    def finish(self, attributes: Mapping[str, Any]) -> None:
        """Write the attributes of the store, and one copy of all metadata."""
        self._group.attrs.update(dict(attributes))
        zarr.consolidate_metadata(self.path, zarr_format=2)
