"""Group files by the starts of their forecasts: the files of one cycle of a weather centre belong together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from data_pipeline.common.extras import package
from data_pipeline.common.files import is_zarr_folder
from data_pipeline.formats.netcdf.file import is_netcdf

if TYPE_CHECKING:
    from data_pipeline.formats.cf.catalog import BlockCatalog


def group_by_start(starts: Sequence[np.ndarray]) -> list[list[int]]:
    """Return groups of files that share starts, directly or through other files of the group.

    `starts` has one array per file. Groups keep the order of the files. A file without starts is its own group.

    >>> group_by_start([np.array([0]), np.array([6]), np.array([0, 12]), np.array([], int)])
    [[0, 2], [1], [3]]
    """
    group_of: dict[int, int] = {}
    groups: dict[int, list[int]] = {}
    for file, own in enumerate(starts):
        together = [file]
        for known in {group_of[start] for start in own.tolist() if start in group_of}:
            together += groups.pop(known)
        groups[file] = together
        for member in together:
            group_of.update(dict.fromkeys(starts[member].tolist(), file))
    return sorted(sorted(files) for files in groups.values())


def starts_of_file(path: Path, names: Mapping[str, str] | None = None) -> np.ndarray:
    """Return the starts of the forecasts in a GRIB or NetCDF file or a Zarr store (seconds since 1970), int64.

    Fields without a start, such as static fields, have none. An unreadable file raises `InputError`.
    """
    is_store = is_zarr_folder(path)
    if not is_store and not is_netcdf(path):
        from data_pipeline.formats.grib.cache import table_of

        return np.unique(table_of(path).split()[0].records["init"]).astype(np.int64)
    from data_pipeline.formats.cf.block import FieldBlock
    from data_pipeline.formats.cf.variables import NameMap

    found = [np.empty(0, np.int64)]
    for block in _cf_catalog(is_store).read_blocks(path, NameMap(names)):
        if isinstance(block, FieldBlock) and block.time.has_leads:
            found.append(np.unique(block.times.starts))
    return np.unique(np.concatenate(found))


def _cf_catalog(is_store: bool) -> type[BlockCatalog]:
    if is_store:
        with package("reading Zarr", "train"):
            from data_pipeline.formats.zarr.catalog import ZarrCatalog
        return ZarrCatalog
    from data_pipeline.formats.netcdf.catalog import NetCDFCatalog

    return NetCDFCatalog
