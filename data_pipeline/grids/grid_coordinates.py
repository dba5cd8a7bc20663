"""Coordinates of a grid, or of points, in an xarray dataset; and a field of a dataset on a given grid."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid, how_to_regrid
from data_pipeline.grids.points import Points

if TYPE_CHECKING:
    import xarray as xr

_FURTHER = {"altitude": "altitudes", "station": "ids", "model_altitude": "model_altitudes"}
"""Names of the coordinates that only points have; for each, the attribute of `Points` with its values."""


def grid_coordinates(grid: Grid) -> dict[str, tuple[str, np.ndarray]]:
    """Return dimension and values of each coordinate of a grid, or of points; `grid_of` is the inverse."""
    positions = {"latitude": np.array(grid.latitudes), "longitude": np.array(grid.longitudes)}
    if not isinstance(grid, Points):
        return {name: (name, values) for name, values in positions.items()}
    further = {name: np.array(values) for name, plural in _FURTHER.items() if (values := getattr(grid, plural))}
    return {name: ("point", values) for name, values in (positions | further).items()}


def grid_of(dataset: xr.Dataset) -> Grid:
    """Return the grid, or the points, of an opened dataset."""
    latitudes, longitudes = tuple(dataset.latitude.values), tuple(dataset.longitude.values)
    if dataset.latitude.dims != ("point",):
        return Grid(latitudes, longitudes)
    further: dict[str, Any] = {
        plural: tuple(dataset[name].values) for name, plural in _FURTHER.items() if name in dataset.coords
    }
    return Points(latitudes, longitudes, **further)


def static_on(grid: Grid, dataset: xr.Dataset, name: str) -> np.ndarray:
    """Return the static field `name` on `grid`, (H, W); points are found by their ids.

    Raises `InputError` if the field is on another grid, or lacks a point.
    """
    other, values = grid_of(dataset), dataset[name].values
    if isinstance(grid, Points) and isinstance(other, Points):
        at = grid.positions_in(other)
        lacking = (at < 0) | ~np.isfinite(values[at])
        if lacking.any():
            first = (grid.ids or range(len(lacking)))[int(lacking.argmax())]
            raise InputError(f"the static field {name} lacks {lacking.sum()} of {grid}, the first is {first}; add it")
        return np.asarray(values[at][:, None])
    if not grid.matches(other):
        raise InputError(f"the static field {name} has {other}, the ensemble {grid}; {how_to_regrid(grid, other)}")
    return np.asarray(values)
