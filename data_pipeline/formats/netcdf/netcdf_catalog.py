"""Catalog of the fields in NetCDF files."""

from __future__ import annotations

from dataclasses import dataclass

from data_pipeline.common.files import FileAddress, expand_paths
from data_pipeline.formats.cf.block import FieldBlock
from data_pipeline.formats.cf.cf_catalog import BlockCatalog
from data_pipeline.formats.cf.cf_header import Header
from data_pipeline.formats.cf.summaries import interpret_summary
from data_pipeline.formats.netcdf.file import NetCDFFile
from data_pipeline.formats.netcdf.netcdf_header import netcdf_header
from data_pipeline.formats.netcdf.netcdf_reader import BlockLayout, BlockReader
from data_pipeline.grid import Grid


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


class NetCDFSummaries(NetCDFCatalog):
    """A `NetCDFCatalog` that also holds the means, standard deviations and quantiles of `cf.summaries`."""

    interpret = staticmethod(interpret_summary)


def _layout(block: FieldBlock) -> BlockLayout:
    data = block.data
    assert isinstance(block.header.file, NetCDFFile)
    return BlockLayout(
        block.header.file,
        data.name,
        data.dimensions,
        block.outer,
        block.shape,
        block.across,
        block.horizontal,
        block.conversion,
    )
