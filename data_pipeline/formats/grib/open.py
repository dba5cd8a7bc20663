"""GRIB files as xarray datasets that read lazily and as samples' fields: ensembles, analyses, what never changes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from data_pipeline.common.files import Paths
from data_pipeline.formats import cube
from data_pipeline.formats.cube import SINGLE, Chunks, Cube, CubeFields, Missing
from data_pipeline.formats.grib.catalog import Messages
from data_pipeline.task import Variable


def open_ensemble(
    paths: Paths,
    variables: Sequence[Variable] | None = None,
    lead_times: Sequence[int] | None = None,
    *,
    missing: Missing = "error",
    chunks: Chunks = "auto",
    dtype: np.dtype = SINGLE,
) -> xr.Dataset:
    """Open forecasts as (init_time, lead_time, number, [level,] latitude, longitude), float32 or float64.

    `lead_time` counts hours, `number` is 0 for a control forecast or where there is one forecast only,
    `level` is in hPa and belongs to variables aloft; `variables` and `lead_times` (hours) choose among what
    is there. Variables are named by their GRIB shortName; where one name lies at the surface and aloft, see
    `select`.

    A field that is not in the files is an error, or NaN with `missing="mask"`. If only some levels of a
    variable were asked for, the others are NaN. With `chunks="auto"` the arrays are dask's, one chunk per
    start and lead time; with None they are read when they are indexed.
    """
    return cube.open_cube(Cube.forecasts(Messages.gather(paths, variables), lead_times, missing), chunks, dtype)


def open_analysis(
    paths: Paths,
    variables: Sequence[Variable] | None = None,
    *,
    missing: Missing = "error",
    chunks: Chunks = "auto",
) -> xr.Dataset:
    """Open analyses as (time, [level,] latitude, longitude), float32; otherwise like `open_ensemble`.

    Analyses are the messages that are valid at their own start; longer forecasts in the files are passed
    over.
    """
    return cube.open_cube(Cube.analyses(Messages.gather(paths, variables), missing), chunks)


def open_static(paths: Paths, names: Sequence[str] | None = None) -> xr.Dataset:
    """Open surface fields, all or those in `names`, as (latitude, longitude), whatever their date."""
    variables = None if names is None else [Variable(name) for name in names]
    return cube.open_cube(Cube.of(Messages.gather(paths, variables, surface=True), {}), None)


def ensemble_fields(
    paths: Paths, variables: Sequence[Variable], lead_times: Sequence[int], *, missing: Missing = "error"
) -> CubeFields:
    """Open forecasts of `variables` at `lead_times` (hours) as fields; what is missing is an error, or NaN (mask)."""
    return cube.ensemble_fields(Messages.gather(paths, variables), lead_times, missing)


def analysis_fields(paths: Paths, variables: Sequence[Variable], *, missing: Missing = "error") -> CubeFields:
    """Open analyses as forecasts of lead time 0 with one member, by the time for which they are valid."""
    return cube.analysis_fields(Messages.gather(paths, variables), missing)
