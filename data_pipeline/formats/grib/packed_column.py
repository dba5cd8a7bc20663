"""PackedColumn: the messages of one variable for all members, read in bands of rows as packed bytes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from data_pipeline.formats.catalog import SINGLE
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
        """Yield begin and end of the parts of `height` rows that `reduce` fills at once.

        Rows in another order than those of a field are arranged in memory, of at most half a field.
        """
        rows = height if self.layout.straight else max(1, self.layout.rows // 4)
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
        files = np.array([descriptors[file] for file, _, _ in self._places], np.int32)
        offsets = np.array([offset + row_bytes * first for _, offset, row_bytes in self._places])
        in_place = self.layout.straight and out[0].flags.c_contiguous
        stored = out.reshape(2, -1) if in_place else np.empty((2, out[0].size), SINGLE)
        while (member := self._moments.reduce(files, offsets, stored)) >= 0:
            file, _, row_bytes = self._places[member]
            # Raises the error of the system, if there was one. A read that a signal cut short is repeated.
            if not os.pread(descriptors[file], 1, offsets[member] + row_bytes * count - 1):
                raise changed_file(paths[file], int(self.locations["offset"][member]))
        if not in_place:
            out[...] = [self.layout.arrange(values) for values in stored]
