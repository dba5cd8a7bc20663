"""Catalog of the fields in Zarr stores."""

from __future__ import annotations

from dataclasses import dataclass

from data_pipeline.common.files import FileAddress
from data_pipeline.formats.cf.block import FieldBlock
from data_pipeline.formats.cf.cf_catalog import BlockCatalog
from data_pipeline.formats.cf.cf_header import Header
from data_pipeline.formats.cf.summaries import interpret_summary
from data_pipeline.formats.zarr.zarr_header import ZarrFile, zarr_header
from data_pipeline.formats.zarr.zarr_reader import ArrayLayout, ChunkReader
from data_pipeline.grid import Grid


@dataclass(frozen=True, eq=False)
class ZarrCatalog(BlockCatalog):
    """The fields of the `wanted` variables in Zarr stores."""

    @staticmethod
    def header_of(path: FileAddress) -> Header:
        """Read the metadata of a store."""
        return zarr_header(path)

    def reader_on(self, grid: Grid) -> ChunkReader:
        """Return the reader of these fields, which are all on one grid."""
        layouts = tuple(_layout(block) for block in self.blocks)
        return ChunkReader(grid, layouts, self.rows["block"].copy(), self.rows["field"].copy())


class ZarrSummaries(ZarrCatalog):
    """A `ZarrCatalog` that also holds the means, standard deviations and quantiles of `cf.summaries`."""

    interpret = staticmethod(interpret_summary)


def _layout(block: FieldBlock) -> ArrayLayout:
    file, data = block.header.file, block.data
    assert isinstance(file, ZarrFile)
    times = {name for coordinate in block.time.coordinates for name in coordinate.dimensions}
    axis = {name: k for k, name in enumerate(data.dimensions)}
    # Stations have no column dimension; a single point also has no row dimension.
    rows, columns = (*(axis[name] for name in block.across), len(axis), len(axis) + 1)[:2]
    return ArrayLayout(
        file.arrays[data.name],
        tuple(axis[name] for name in block.outer),
        tuple(axis[name] for name in block.outer if name in times),
        rows,
        columns,
        block.horizontal,
        block.conversion,
    )
