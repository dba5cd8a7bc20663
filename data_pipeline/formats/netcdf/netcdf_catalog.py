"""The fields in NetCDF files, and their values, which few rectangular reads per file fetch.

Readers hold paths and positions, never open files, so they can be sent to other processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.common.files import FileAddress, expand_paths
from data_pipeline.formats.catalog import DOUBLE
from data_pipeline.formats.cf.block import FieldBlock
from data_pipeline.formats.cf.cf_catalog import BlockCatalog
from data_pipeline.formats.cf.cf_header import Header
from data_pipeline.formats.cf.coordinates import Horizontal
from data_pipeline.formats.cf.positions import compact, runs
from data_pipeline.formats.netcdf.file import NetCDFFile
from data_pipeline.formats.netcdf.netcdf_header import netcdf_header
from data_pipeline.grid import Grid
from data_pipeline.protocols import Index, Window, fill_missing
from data_pipeline.variables.units import Conversion

if TYPE_CHECKING:
    import netCDF4


@dataclass(frozen=True, eq=False)
class NetCDFCatalog(BlockCatalog):
    """The fields of the `wanted` variables in NetCDF files."""

    @staticmethod
    def header_of(path: FileAddress) -> Header:
        """Read the header of a file."""
        (file,) = expand_paths([path])
        return netcdf_header(file)

    def reader_on(self, grid: Grid) -> BlockReader:
        """Return the reader of these fields, which are all on one grid."""
        layouts = tuple(_layout(block) for block in self.blocks)
        return BlockReader(grid, layouts, self.rows["block"].copy(), self.rows["field"].copy())


def _layout(block: FieldBlock) -> BlockLayout:
    file, data, axes = block.header.file, block.data, (block.outer, block.shape, block.across)
    assert isinstance(file, NetCDFFile)
    return BlockLayout(file, data.name, data.dimensions, *axes, block.horizontal, block.conversion)


@dataclass(frozen=True, eq=False)
class BlockLayout:
    """Where the fields of a block are in the file; `shape` is the shape of its outer dimensions."""

    file: NetCDFFile
    name: str
    dimensions: tuple[str, ...]
    outer: tuple[str, ...]
    shape: tuple[int, ...]
    across: tuple[str, ...]
    horizontal: Horizontal
    conversion: Conversion

    def read(self, dataset: netCDF4.Dataset, fields: np.ndarray, outs: Sequence[np.ndarray], window: Window) -> None:
        """Fill `outs` (n arrays (h, w)) with the `window` of the fields at positions `fields` (n) of an open file.

        If the fields are all combinations of some positions along the outer dimensions, they are read in one call,
        otherwise one by one.
        """
        places = np.unravel_index(fields, self.shape) if self.shape else ()
        axes = [np.unique(axis, return_inverse=True) for axis in places]
        if np.prod([len(values) for values, _ in axes], dtype=np.int64) > len(np.unique(fields)):
            for k in range(len(fields)):
                self.read(dataset, fields[k : k + 1], outs[k : k + 1], window)
            return
        rows, block = self._rectangle(dataset, [values for values, _ in axes], window[0])
        columns = self.horizontal.columns[window[1]]
        pairs = [((..., ours), theirs) for ours, theirs in runs(columns)] if columns.ndim else [((...,), int(columns))]
        for k, out in enumerate(outs):
            field = block[tuple(inverse[k] for _, inverse in axes)][rows]
            for ours, theirs in pairs:
                out[ours] = field[..., theirs]

    def _rectangle(
        self, dataset: netCDF4.Dataset, outer: Sequence[np.ndarray], rows: Index
    ) -> tuple[Index, np.ndarray]:
        """Read all combinations of positions along the outer dimensions; return the row positions and the values."""
        wanted = np.arange(self.horizontal.rows)[:: -1 if self.horizontal.south_first else 1][rows]
        first, last = (int(wanted.min()), int(wanted.max())) if wanted.size else (0, -1)
        key: dict[str, Index] = {name: compact(values) for name, values in zip(self.outer, outer, strict=True)}
        key |= dict(zip(self.across, (slice(first, last + 1), slice(None)), strict=False))
        try:
            values = dataset[self.name][tuple(key[name] for name in self.dimensions)]
        except (RuntimeError, OSError, IndexError) as error:
            raise InputError(
                f"{self.file.path} is damaged: the values of {self.name} cannot be read ({error}); fetch it again"
            ) from None
        values = np.ma.filled(values if values.dtype.kind == "f" else values.astype(DOUBLE), np.nan)
        if self.conversion != Conversion():
            values = values.astype(DOUBLE) * self.conversion.factor + self.conversion.offset
        values = values.transpose([self.dimensions.index(name) for name in (*self.outer, *self.across)])
        # Stations have no column dimension; a single point also has no row dimension.
        return compact(wanted - first), values.reshape(values.shape + (1,) * (2 - len(self.across)))


@dataclass(frozen=True, eq=False)
class BlockReader:
    """Reads fields of several blocks on one grid; `block` and `field` give the position of each field."""

    grid: Grid
    blocks: tuple[BlockLayout, ...]
    block: np.ndarray
    field: np.ndarray

    def read(self, wanted: np.ndarray, out: np.ndarray, window: Window) -> None:
        """Read the `window` of each field in `wanted` (...) into `out` (..., h, w); NaN where `wanted` is negative."""
        there = fill_missing(wanted, out)
        fields = wanted.ravel()[there]
        blocks = self.block[fields]
        numbers = np.unique(blocks).tolist()
        for file in dict.fromkeys(self.blocks[k].file for k in numbers):
            with file.open() as dataset:
                for k in [k for k in numbers if self.blocks[k].file == file]:
                    mine = np.flatnonzero(blocks == k)
                    places = zip(*np.unravel_index(there[mine], wanted.shape), strict=True)
                    outs = [out[(*place, ...)] for place in places]
                    self.blocks[k].read(dataset, self.field[fields[mine]], outs, window)
