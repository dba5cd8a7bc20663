"""A cube as an xarray dataset that reads lazily."""

from __future__ import annotations

from typing import Literal

import numpy as np
import xarray as xr
from xarray.core import indexing

from data_pipeline.common.errors import InputError
from data_pipeline.formats.cube.catalog import SINGLE
from data_pipeline.formats.cube.layout import Cube
from data_pipeline.formats.cube.lazy import FieldArray
from data_pipeline.task import Variable

Chunks = Literal["auto"] | None

ATTRIBUTES = {
    "init_time": {"long_name": "start of the forecast (UTC)"},
    "lead_time": {"long_name": "hours since the start of the forecast"},
    "number": {"long_name": "member of the ensemble, 0 is the control"},
    "time": {"long_name": "time for which the analysis is valid (UTC)"},
    "level": {"long_name": "pressure", "units": "hPa"},
    "latitude": {"long_name": "latitude", "units": "degrees_north"},
    "longitude": {"long_name": "longitude", "units": "degrees_east"},
}


def open_cube(cube: Cube, chunks: Chunks, dtype: np.dtype = SINGLE) -> xr.Dataset:
    """Open the fields of a cube, (..., [level,] latitude, longitude).

    With `chunks="auto"` the arrays are dask's, one chunk per time (and lead time); with None they are read when
    they are indexed. Levels of a variable that were not asked for are NaN.
    """
    if chunks not in ("auto", None):
        raise InputError(f"chunks must be auto or None, got {chunks!r}")
    source, wanted, axes = cube.catalog.source, cube.catalog.wanted, cube.axes
    levels = sorted({variable.level for variable in wanted if variable.level}, reverse=True)
    fields: dict[str, xr.Variable] = {}
    for name in dict.fromkeys(variable.name for variable in wanted):
        at = {variable.level: cube.cells[k] for k, variable in enumerate(wanted) if variable.name == name}
        units, long_name = cube.catalog.units(name)
        attributes = {"units": units, "long_name": long_name}
        aloft = [level for level in at if level]
        if aloft:
            nothing = np.full(cube.cells.shape[1:], -1, np.int32)
            cells = np.stack([at.get(level, nothing) for level in levels], axis=-1)
            array = indexing.LazilyIndexedArray(FieldArray(source, cells, dtype))
            fields[name] = xr.Variable((*axes, "level", "latitude", "longitude"), array, attributes)
        if 0 in at:
            array = indexing.LazilyIndexedArray(FieldArray(source, at[0], dtype))
            surface = f"{name}_surface" if aloft else name
            fields[surface] = xr.Variable((*axes, "latitude", "longitude"), array, attributes)
    coordinates = {
        **axes,
        **({"level": np.array(levels)} if levels else {}),
        "latitude": np.array(source.grid.latitudes),
        "longitude": np.array(source.grid.longitudes),
    }
    dataset = xr.Dataset(fields, {name: (name, value, ATTRIBUTES[name]) for name, value in coordinates.items()})
    if not chunks:
        return dataset
    return dataset.chunk({name: 1 for name in ("init_time", "lead_time", "time") if name in axes}, token=cube.token)


def select(dataset: xr.Dataset, variable: Variable) -> xr.DataArray:
    """Return one variable of an opened dataset, at its level.

    A surface field whose name is also taken aloft is called `NAME_surface` in the dataset, for instance
    `z_surface`.
    """
    if variable.level:
        return dataset[variable.name].sel(level=variable.level)
    surface = f"{variable.name}_surface"
    return dataset[surface if surface in dataset else variable.name]
