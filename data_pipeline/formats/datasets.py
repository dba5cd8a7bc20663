"""Turn a cube into an xarray dataset that reads values when they are needed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import xarray as xr
from xarray.backends import BackendArray
from xarray.core import indexing

from data_pipeline.common.errors import InputError
from data_pipeline.formats.catalog import SINGLE
from data_pipeline.formats.cube import Cube
from data_pipeline.grid import Grid
from data_pipeline.grids.grid_coordinates import grid_coordinates
from data_pipeline.grids.points import Points
from data_pipeline.protocols import FieldReader, Index
from data_pipeline.task import Variable
from data_pipeline.variables.meaning import LEVEL_ATTRIBUTE

Chunks = Literal["auto"] | None
"""`auto`: dask arrays with one chunk per start and lead time. None: values are read when they are indexed."""

MACHINE_BYTES = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
"""Memory of this machine."""

ATTRIBUTES = {
    "init_time": {"long_name": "start of the forecast (UTC)"},
    "lead_time": {"long_name": "hours since the start of the forecast"},
    "number": {"long_name": "member of the ensemble, 0 is the control"},
    "time": {"long_name": "time for which the analysis is valid (UTC)"},
    "level": {"long_name": "pressure", "units": "hPa"},
    "latitude": {"long_name": "latitude", "units": "degrees_north"},
    "longitude": {"long_name": "longitude", "units": "degrees_east"},
    "altitude": {"standard_name": "altitude", "units": "m"},
    "model_altitude": {"long_name": "altitude in the forecast model", "units": "m"},
    "station": {"cf_role": "timeseries_id", "long_name": "id of the station"},
}


def open_cube(cube: Cube, chunks: Chunks, dtype: np.dtype = SINGLE) -> xr.Dataset:
    """Open the fields of a cube, (..., [level,] latitude, longitude).

    With `chunks="auto"` the arrays are dask arrays with one chunk per time (and lead time); with None they are read
    when they are indexed. Levels that were not selected for a variable are NaN.
    """
    if chunks not in ("auto", None):
        raise InputError(f"chunks must be auto or None, got {chunks!r}")
    reader, wanted, axes = cube.reader, cube.catalog.wanted, cube.axes
    levels = sorted({variable.level for variable in wanted if variable.level}, reverse=True)
    fields: dict[str, xr.Variable] = {}
    for name in dict.fromkeys(variable.label for variable in wanted):
        same = [(k, variable) for k, variable in enumerate(wanted) if variable.label == name]
        at = {variable.level: cube.cells[k] for k, variable in same}
        units, long_name = cube.catalog.units(same[0][1].name)
        attributes = {"units": units, "long_name": long_name}
        aloft = [level for level in at if level]
        if aloft:
            absent = np.full(cube.cells.shape[1:], -1, np.int32)
            cells = np.stack([at.get(level, absent) for level in levels], axis=-1)
            array = indexing.LazilyIndexedArray(FieldArray(reader, cells, dtype))
            fields[name] = on_grid(reader.grid, (*axes, "level"), array, attributes)
        if 0 in at:
            array = indexing.LazilyIndexedArray(FieldArray(reader, at[0], dtype))
            surface = f"{name}_surface" if aloft else name
            (level,) = (cube.levels[k] for k, variable in same if not variable.level)
            stated = {LEVEL_ATTRIBUTE: level} if level else {}
            fields[surface] = on_grid(reader.grid, (*axes,), array, attributes | stated)
    coordinates = {name: (name, value) for name, value in axes.items()}
    coordinates |= {"level": ("level", np.array(levels))} if levels else {}
    coordinates |= grid_coordinates(reader.grid)
    dataset = xr.Dataset(fields, {name: (*value, ATTRIBUTES[name]) for name, value in coordinates.items()})
    if not chunks:
        return dataset
    return dataset.chunk({name: 1 for name in ("init_time", "lead_time", "time") if name in axes}, token=cube.token)


def on_grid(
    grid: Grid, outer: tuple[str, ...], values: indexing.LazilyIndexedArray, attributes: Mapping[str, str]
) -> xr.Variable:
    """Return lazy values (..., H, W) as (..., latitude, longitude), or values of points (..., n, 1) as (..., point)."""
    if isinstance(grid, Points):
        return xr.Variable((*outer, "point", "column"), values, attributes).isel(column=0)
    return xr.Variable((*outer, "latitude", "longitude"), values, attributes)


def select_variable(dataset: xr.Dataset, variable: Variable) -> xr.DataArray:
    """Return one variable of an opened dataset, at its level.

    If a variable exists at the surface and on pressure levels, its surface field is called `NAME_surface` in the
    dataset, for example `z_surface`.
    """
    if variable.level:
        return dataset[variable.label].sel(level=variable.level)
    surface = f"{variable.label}_surface"
    return dataset[surface if surface in dataset else variable.label]


class FieldArray(BackendArray):
    """The lazy array (..., H, W) of the fields with the numbers `cells` (...); a negative number gives NaN."""

    def __init__(self, reader: FieldReader, cells: np.ndarray, dtype: np.dtype = SINGLE) -> None:
        self.reader = reader
        self.cells = cells
        self.shape = (*cells.shape, *reader.grid.shape)
        self.dtype = dtype

    def __getitem__(self, key: indexing.ExplicitIndexer) -> np.ndarray:
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.OUTER, self._read)

    def _read(self, key: tuple[Index, ...]) -> np.ndarray:
        *outer, rows, columns = key
        cells = _outer(self.cells, outer)
        window = np.broadcast_to(np.float32(np.nan), self.reader.grid.shape)[rows][..., columns].shape
        _refuse_too_much(cells.size, window, self.dtype)
        out = np.empty((cells.size, *window), self.dtype)
        self.reader.read(cells.ravel(), out, (rows, columns))
        return out.reshape((*cells.shape, *window))


def _refuse_too_much(fields: int, shape: tuple[int, ...], dtype: np.dtype) -> None:
    """Raise `InputError` for an array that exceeds the memory of this machine."""
    size = fields * int(np.prod(shape)) * dtype.itemsize
    if size > MACHINE_BYTES:
        raise InputError(
            f"{fields:,} fields of {' x '.join(map(str, shape))} points take {size / 1e9:.1f} GB, this machine has "
            f"{MACHINE_BYTES / 1e9:.1f} GB; choose a part of them, or open the files with chunks='auto'"
        )


def _outer(array: np.ndarray, key: Sequence[Index]) -> np.ndarray:
    """Index every axis independently; an integer drops its axis."""
    for axis in reversed(range(len(key))):
        array = array[(slice(None),) * axis + (key[axis],)]
    return array
