"""Catalog of the fields in tables, which are read from the NetCDF files that `table_file` makes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from data_pipeline.common.files import FileAddress, expand_paths
from data_pipeline.formats.cf.block import FieldBlock, RefusedVariable
from data_pipeline.formats.cf.cf_variables import NameMap
from data_pipeline.formats.netcdf.netcdf_catalog import NetCDFCatalog
from data_pipeline.formats.table.table_file import as_netcdf


@dataclass(frozen=True, eq=False)
class TableCatalog(NetCDFCatalog):
    """The fields of tables; one file may hold both forecasts and the observations that verify them."""

    @classmethod
    def read_blocks(
        cls, path: FileAddress, names: NameMap, timeless: bool = False, summaries: bool = False
    ) -> list[FieldBlock | RefusedVariable]:
        """Return the variables of the forecasts and of the observations of a table, which has no summaries."""
        files = as_netcdf(*expand_paths(path))
        return [block for file in files for block in super(TableCatalog, cls).read_blocks(file, names, timeless)]

    def forecasts(self) -> Self:
        """Return the forecasts alone."""
        return self._where(True) or super().forecasts()

    def analyses(self) -> Self:
        """Return the observations alone; without any, all fields."""
        return self._where(False) or self

    def _where(self, has_leads: bool) -> Self | None:
        there = np.array([block.time.has_leads is has_leads for block in self.blocks])[self.rows["block"]]
        return self.where(there) if there.any() else None
