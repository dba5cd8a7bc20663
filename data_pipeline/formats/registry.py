"""The formats of files and stores, and what each can do: a new format is an object in `FORMATS`, named nowhere else.

What only some formats need, such as zarr, is imported where it is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from data_pipeline.common.extras import package
from data_pipeline.common.file_format import GRIB_FORMAT, file_format
from data_pipeline.common.files import FileAddress, Paths, describe_state, expand_paths
from data_pipeline.formats.catalog import Catalog
from data_pipeline.formats.format import Format, Names, Request
from data_pipeline.formats.netcdf.file import is_netcdf
from data_pipeline.formats.table.table_file import contents, is_table
from data_pipeline.formats.zarr.detection import is_zarr
from data_pipeline.grid import Grid

if TYPE_CHECKING:
    from data_pipeline.formats.cf.cf_catalog import BlockCatalog


class GribFormat(Format):
    """GRIB. Its reader also gets files that no format detects: bulletins, and files that it refuses by name."""

    name = "grib"

    def detects(self, address: FileAddress) -> bool:
        """Return whether the file at an address is of this format."""
        return isinstance(address, Path) and file_format(address) == GRIB_FORMAT

    def gather(self, addresses: Sequence[FileAddress], request: Request) -> Catalog:
        """Return the fields of all files."""
        from data_pipeline.formats.grib.grib_catalog import MessageCatalog

        return MessageCatalog.gather(
            expand_paths(addresses), request.variables, request.names,
            surface=request.static, summaries=request.summaries,
        )  # fmt: skip

    def first_grid(self, address: FileAddress, names: Names) -> Grid:
        """Return the grid of the first field whose grid can be read."""
        from data_pipeline.formats.grib.grib_catalog import MessageCatalog

        return MessageCatalog.first_grid(*expand_paths(address))

    def starts(self, address: FileAddress, names: Names) -> np.ndarray:
        """Return the starts that the headers state."""
        from data_pipeline.formats.grib.cache import table_of

        return np.unique(table_of(*expand_paths(address)).split()[0].records["init"]).astype(np.int64)

    def describe(self, address: FileAddress) -> tuple[Any, ...]:
        """Return what the headers say."""
        from data_pipeline.formats.grib.cache import describe_messages

        return describe_messages(*expand_paths(address))

    def summarize(self, paths: Paths, names: Names) -> str:
        """Return a description that is made from the headers."""
        from data_pipeline.formats.grib.grib_contents import summarize_files

        return summarize_files(paths, names)


class CFFormat(Format):
    """NetCDF, and the base of Zarr: files and stores of variables with the conventions of CF."""

    name = "netcdf"

    def detects(self, address: FileAddress) -> bool:
        """Return whether the file at an address is of this format."""
        return isinstance(address, Path) and is_netcdf(address)

    def catalog(self) -> type[BlockCatalog]:
        """Return the class of the catalog of fields."""
        from data_pipeline.formats.netcdf.netcdf_catalog import NetCDFCatalog

        return NetCDFCatalog

    def gather(self, addresses: Sequence[FileAddress], request: Request) -> Catalog:
        """Return the fields of all files."""
        files = addresses if self.is_store else expand_paths(addresses)
        return self.catalog().gather(files, request.variables, request.names, request.static, request.summaries)

    def first_grid(self, address: FileAddress, names: Names) -> Grid:
        """Return the grid of the first field whose grid can be read."""
        return self.catalog().first_grid(address, names)

    def starts(self, address: FileAddress, names: Names) -> np.ndarray:
        """Return the starts that the headers state."""
        from data_pipeline.formats.cf.block import FieldBlock
        from data_pipeline.formats.cf.cf_variables import NameMap

        blocks = self.catalog().read_blocks(address, NameMap(names))
        dated = [block for block in blocks if isinstance(block, FieldBlock) and block.time.has_leads]
        return np.unique(np.concatenate([np.empty(0, np.int64), *(block.times.starts for block in dated)]))

    def describe(self, address: FileAddress) -> tuple[Any, ...]:
        """Return what the headers say."""
        from data_pipeline.formats.netcdf.netcdf_header import describe_structure

        return describe_structure(*expand_paths(address))

    def summarize(self, paths: Paths, names: Names) -> str:
        """Return a description that is made from the headers."""
        from data_pipeline.formats.cf.cf_contents import summarize_files

        return summarize_files(paths, catalog=self.catalog(), names=names)

    def unreadable(self, paths: Paths, names: Names) -> dict[FileAddress, str]:
        """Return the files without any variable that can be read, with the reason."""
        from data_pipeline.formats.cf.cf_contents import unreadable_files

        return unreadable_files(paths, catalog=self.catalog(), names=names)


class TableFormat(CFFormat):
    """Tables of text, Parquet and SQLite, read as the NetCDF files that are made from them."""

    name = "table"
    is_store = True

    def detects(self, address: FileAddress) -> bool:
        """Return whether the file at an address is of this format."""
        return isinstance(address, Path) and is_table(address)

    def catalog(self) -> type[BlockCatalog]:
        """Return the class of the catalog of fields."""
        from data_pipeline.formats.table.table_catalog import TableCatalog

        return TableCatalog

    def stations(self, address: FileAddress, names: Names) -> Grid:
        """Return the stations in a table, which need no values."""
        with package("reading tables", "train"):
            from data_pipeline.formats.table.table_datasets import stations_of

        return stations_of(*expand_paths(address))

    def describe(self, address: FileAddress) -> tuple[Any, ...]:
        """Return hashes of the table and of the stations beside it."""
        return tuple(contents(*expand_paths(address)))


class DatasetFormat(CFFormat):
    """Datasets of xarray in memory, and what becomes one."""

    name = "dataset"
    is_store = True

    def detects(self, address: FileAddress) -> bool:
        """Return whether it is a dataset."""
        return hasattr(address, "dataset")

    def catalog(self) -> type[BlockCatalog]:
        """Return the class of the catalog of fields."""
        from data_pipeline.formats.cf.dataset_catalog import DatasetCatalog

        return DatasetCatalog

    def describe(self, address: FileAddress) -> tuple[Any, ...]:
        """Return a text that differs for other values."""
        return (describe_state(address),)


class ZarrFormat(CFFormat):
    """Zarr stores in folders, in zip files and at URLs."""

    name = "zarr"
    is_store = True

    def detects(self, address: FileAddress) -> bool:
        """Return whether the file at an address is of this format."""
        return is_zarr(address)

    def catalog(self) -> type[BlockCatalog]:
        """Return the class of the catalog of fields."""
        with package("reading Zarr", "train"):
            from data_pipeline.formats.zarr.zarr_catalog import ZarrCatalog

        return ZarrCatalog

    def describe(self, address: FileAddress) -> tuple[Any, ...]:
        """Return what the headers say."""
        with package("reading Zarr", "train"):
            from data_pipeline.formats.zarr.zarr_header import describe_store

        return tuple(describe_store(address))


GRIB = GribFormat()
FORMATS: tuple[Format, ...] = (DatasetFormat(), ZarrFormat(), CFFormat(), TableFormat(), GRIB)
"""All formats, in the order in which they are asked; the reader of GRIB names the format of what no one knows."""


def format_of(address: FileAddress) -> Format:
    """Return the format of a file, folder or URL, from its first bytes."""
    return next((one for one in FORMATS if one.detects(address)), GRIB)
