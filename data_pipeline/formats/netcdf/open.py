"""NetCDF files as xarray datasets that read lazily and as samples' fields, just as GRIB files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr

from data_pipeline.common.errors import InputError
from data_pipeline.common.files import Paths
from data_pipeline.formats import cube
from data_pipeline.formats.cube import SINGLE, Chunks, Cube, CubeFields, Missing
from data_pipeline.formats.netcdf.catalog import BlockCatalog
from data_pipeline.task import Variable

Said = Mapping[str, str] | None
"""What the user calls variables of the files, such as {"T850": "t@850"}."""


def open_ensemble(
    paths: Paths,
    variables: Sequence[Variable] | None = None,
    lead_times: Sequence[int] | None = None,
    *,
    names: Said = None,
    missing: Missing = "error",
    chunks: Chunks = "auto",
    dtype: np.dtype = SINGLE,
) -> xr.Dataset:
    """Open forecasts as (init_time, lead_time, number, [level,] latitude, longitude); see `grib.open_ensemble`.

    Dimensions may have any usual name and order; `names` says what variables with unusual names are.
    """
    return cube.open_cube(Cube.forecasts(_forecasts(paths, variables, names), lead_times, missing), chunks, dtype)


def open_analysis(
    paths: Paths,
    variables: Sequence[Variable] | None = None,
    *,
    names: Said = None,
    missing: Missing = "error",
    chunks: Chunks = "auto",
) -> xr.Dataset:
    """Open analyses as (time, [level,] latitude, longitude), float32; otherwise like `open_ensemble`.

    Analyses are the fields that are valid at their own start, and those whose start is not told.
    """
    return cube.open_cube(Cube.analyses(BlockCatalog.gather(paths, variables, names), missing), chunks)


def open_static(paths: Paths, wanted: Sequence[str] | None = None, *, names: Said = None) -> xr.Dataset:
    """Open surface fields, all or those in `wanted`, as (latitude, longitude), whatever their date."""
    variables = None if wanted is None else [Variable(name) for name in wanted]
    fields = BlockCatalog.gather(paths, variables, names, surface=True, timeless=True)
    return cube.open_cube(Cube.of(fields, {}), None)


def ensemble_fields(
    paths: Paths,
    variables: Sequence[Variable],
    lead_times: Sequence[int],
    *,
    names: Said = None,
    missing: Missing = "error",
) -> CubeFields:
    """Open forecasts of `variables` at `lead_times` (hours) as fields; what is missing is an error, or NaN (mask)."""
    return cube.ensemble_fields(_forecasts(paths, variables, names), lead_times, missing)


def analysis_fields(
    paths: Paths, variables: Sequence[Variable], *, names: Said = None, missing: Missing = "error"
) -> CubeFields:
    """Open analyses as forecasts of lead time 0 with one member, by the time for which they are valid."""
    return cube.analysis_fields(BlockCatalog.gather(paths, variables, names), missing)


def _forecasts(paths: Paths, variables: Sequence[Variable] | None, names: Said) -> BlockCatalog:
    catalog = BlockCatalog.gather(paths, variables, names)
    for block in catalog.blocks:
        if not block.clock.forecasts:
            raise InputError(
                f"{block} says when its fields are valid but not when the forecasts started; add a coordinate "
                "forecast_reference_time or forecast_period, for instance with ncap2 of NCO"
            )
    return catalog
