"""Open GRIB or NetCDF files as lazy xarray datasets, or as fields to read samples from.

The first bytes of the first file decide which format is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr

from data_pipeline.common.files import Paths, expand_paths
from data_pipeline.formats.catalog import SINGLE, Catalog
from data_pipeline.formats.cube import Cube, Missing
from data_pipeline.formats.datasets import open_cube
from data_pipeline.formats.fields import CubeFields
from data_pipeline.formats.grib.catalog import MessageCatalog
from data_pipeline.formats.netcdf.catalog import BlockCatalog
from data_pipeline.formats.netcdf.file import is_netcdf
from data_pipeline.protocols import Chunks
from data_pipeline.task import Variable

VariableNames = Mapping[str, str] | None
"""GRIB names of variables that a NetCDF file calls otherwise, such as {"T850": "t@850"}; not used for GRIB files."""


def open_ensemble(
    paths: Paths,
    variables: Sequence[Variable] | None = None,
    lead_times: Sequence[int] | None = None,
    *,
    names: VariableNames = None,
    missing: Missing = "error",
    chunks: Chunks = "auto",
    dtype: np.dtype = SINGLE,
) -> xr.Dataset:
    """Open forecasts as (init_time, lead_time, number, [level,] latitude, longitude), float32 or float64.

    `variables` and `lead_times` (hours) select fields; None selects all. Variables have their GRIB shortName.
    `number` is 0 for a control forecast and for files without members. `level` is in hPa. Where one name exists both
    at the surface and on pressure levels, see `datasets.select_variable`.

    A missing field raises an `InputError`, or is NaN with `missing="mask"`. Levels that were not selected for a
    variable are NaN. With `chunks="auto"` the arrays are dask arrays with one chunk per start and lead time; with None
    they are read when they are indexed.
    """
    return open_cube(Cube.forecasts(_forecasts(paths, variables, names), lead_times, missing), chunks, dtype)


def open_analysis(
    paths: Paths,
    variables: Sequence[Variable] | None = None,
    *,
    names: VariableNames = None,
    missing: Missing = "error",
    chunks: Chunks = "auto",
) -> xr.Dataset:
    """Open analyses as (time, [level,] latitude, longitude), float32; otherwise like `open_ensemble`.

    Analyses are fields of lead time 0, and NetCDF fields without a start. Longer lead times are ignored.
    """
    return open_cube(Cube.analyses(_gather(paths, variables, names), missing), chunks)


def open_static(paths: Paths, wanted: Sequence[str] | None = None, *, names: VariableNames = None) -> xr.Dataset:
    """Open surface fields, all or the names in `wanted`, as (latitude, longitude); their dates are ignored."""
    variables = None if wanted is None else [Variable(name) for name in wanted]
    return open_cube(Cube.of(_gather(paths, variables, names, static=True), {}), None)


def ensemble_fields(
    paths: Paths,
    variables: Sequence[Variable],
    lead_times: Sequence[int],
    *,
    names: VariableNames = None,
    missing: Missing = "error",
) -> CubeFields:
    """Open forecasts of `variables` at `lead_times` (hours) to read samples from.

    A missing field raises an `InputError`, or is NaN with `missing="mask"`.
    """
    return CubeFields.forecasts(_forecasts(paths, variables, names), lead_times, missing)


def analysis_fields(
    paths: Paths, variables: Sequence[Variable], *, names: VariableNames = None, missing: Missing = "error"
) -> CubeFields:
    """Open analyses as forecasts with lead time 0 and one member; their start is the valid time."""
    return CubeFields.analyses(_gather(paths, variables, names), missing)


def _gather(
    paths: Paths, variables: Sequence[Variable] | None, names: VariableNames, *, static: bool = False
) -> Catalog:
    files = expand_paths(paths)
    if is_netcdf(files[0]):
        return BlockCatalog.gather(files, variables, names, surface=static, timeless=static)
    return MessageCatalog.gather(files, variables, surface=static)


def _forecasts(paths: Paths, variables: Sequence[Variable] | None, names: VariableNames) -> Catalog:
    catalog = _gather(paths, variables, names)
    if isinstance(catalog, BlockCatalog):
        catalog.refuse_unknown_starts()
    return catalog
