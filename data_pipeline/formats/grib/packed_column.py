"""PackedColumn: the messages of one variable for all members, read in bands of rows as packed bytes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from data_pipeline.formats.catalog import SINGLE
from data_pipeline.formats.grib.decode import thread_buffer
from data_pipeline.formats.grib.horizontal import Layout
from data_pipeline.formats.grib.packed_moments import PackedMoments
from data_pipeline.formats.grib.packing import PACKED_BYTES, Packing
from data_pipeline.formats.grib.scan import changed_file
from data_pipeline.units import Conversion


@dataclass(frozen=True, eq=False)
class PackedColumn:
    """Messages of M members at `locations` (`reader.LOCATION`) in simple packing, on one `layout` with whole rows.

    `conversions` are those of the reader, which `locations` refer to.
    """

    locations: np.ndarray
    layout: Layout
    conversions: Sequence[Conversion]

    @classmethod
    def of(
        cls, locations: np.ndarray, layouts: Sequence[Layout], conversions: Sequence[Conversion]
    ) -> PackedColumn | None:
        """Return the column, or None if ecCodes decodes a message, or if the rows of a band are not stored together."""
        layout = layouts[int(locations["layout"][0])]
        one_layout = (locations["layout"] == locations["layout"][0]).all()
        banded = layout.straight or layout.stored_rows(0, 1)[1] == 1
        decoded = (locations["bits"] >= 0).all()
        return cls(locations, layout, conversions) if one_layout and banded and decoded else None

    @property
    def files(self) -> list[int]:
        """The files of the messages, each once."""
        return list(dict.fromkeys(self.locations["file"].tolist()))

    def bands(self, height: int) -> Iterator[tuple[int, int]]:
        """Yield begin and end of bands of `height` rows whose packed values take at most the bytes of a field."""
        size = max(PACKED_BYTES.get(bits, 0) for bits in self.locations["bits"].tolist())
        rows = max(1, SINGLE.itemsize * self.layout.rows // max(1, len(self.locations) * size))
        yield from ((begin, min(begin + rows, height)) for begin in range(0, height, rows))

    @cached_property
    def _moments(self) -> PackedMoments:
        packings = [Packing(*each) for each in self.locations[["bits", "reference", "binary", "decimal"]].tolist()]
        return PackedMoments.of(packings, [self.conversions[k] for k in self.locations["conversion"].tolist()])

    @cached_property
    def _places(self) -> list[tuple[int, int, int]]:
        """File, offset of the first packed value, and packed bytes of a row, of each member."""
        row_bytes = [PACKED_BYTES.get(bits, 0) * self.layout.columns for bits in self.locations["bits"].tolist()]
        offsets = (self.locations["offset"] + self.locations["data"]).tolist()
        return list(zip(self.locations["file"].tolist(), offsets, row_bytes, strict=True))

    def reduce(self, descriptors: Mapping[int, int], paths: Sequence[Path], first: int, out: np.ndarray) -> None:
        """Fill `out` (2, h, W), float32, with the pseudo-members of rows from `first` on; only their bytes are read."""
        first, count = self.layout.stored_rows(first, out.shape[1])
        # Multiples of eight bytes, so that the values of every member are aligned.
        stride = -(-max(row_bytes for _, _, row_bytes in self._places) * count // 8) * 8
        members = len(self._places)
        packed = thread_buffer(stride * members)[: stride * members].reshape(members, stride)
        for member, (file, offset, row_bytes) in enumerate(self._places):
            size = row_bytes * count
            if size and os.preadv(descriptors[file], [packed[member].data[:size]], offset + row_bytes * first) != size:
                raise changed_file(paths[file], int(self.locations["offset"][member]))
        if self.layout.straight and out[0].flags.c_contiguous:
            self._moments.reduce(packed, out.reshape(2, -1))
            return
        stored = np.empty((2, out[0].size), SINGLE)
        self._moments.reduce(packed, stored)
        out[...] = [self.layout.arrange(values) for values in stored]
