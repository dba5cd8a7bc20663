"""Which points of a grid lie within the area of another grid, and which points two grids share."""

from __future__ import annotations

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.grid import COORDINATE_TOLERANCE, Grid
from data_pipeline.grids.reduced_grid import ReducedGrid
from data_pipeline.regridding.cells import continues_across_pole


def covered(source: Grid, latitudes: np.ndarray, longitudes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return which latitudes, and which longitudes, `source` covers: they lie between its points or beside a pole."""
    highest = 90.0 if continues_across_pole(source, 0) else source.latitudes[0]
    lowest = -90.0 if continues_across_pole(source, -1) else source.latitudes[-1]
    rows = (latitudes <= highest + COORDINATE_TOLERANCE) & (latitudes >= lowest - COORDINATE_TOLERANCE)
    if source.periodic:
        return rows, np.ones(len(longitudes), bool)
    east = (longitudes - source.longitudes[0] + COORDINATE_TOLERANCE) % 360
    return rows, east <= source.longitudes[-1] - source.longitudes[0] + 2 * COORDINATE_TOLERANCE


def refuse_uncovered(source: Grid, grid: Grid) -> None:
    """Raise `InputError` unless both are grids of at least 2 x 2 points and `source` covers all points of `grid`."""
    for each in (source, grid):
        if type(each) not in (Grid, ReducedGrid) or (type(each) is Grid and min(each.shape) < 2):
            raise InputError(
                f"fields cannot be brought from {source} to {grid}: both must be grids of at least 2 x 2 points; "
                "leave out data.archive.grid, or interpolate first, as with cdo -f grb remapbil,r720x361 IN OUT"
            )
    rows, columns = covered(source, np.array(grid.latitudes), np.array(grid.longitudes))
    if not (rows.all() and columns.all()):
        raise InputError(
            f"fields on {source} do not cover the grid of {grid}; set data.archive.grid to the smaller grid, or to a "
            "number of degrees, which takes the area that all files have"
        )


def shared_points(grid: Grid, finer: Grid) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the rows and columns of `finer` that hold the points of `grid`; None if `finer` lacks a point."""
    if type(grid) is not Grid or type(finer) is not Grid:
        return None
    north = np.subtract.outer(grid.latitudes, finer.latitudes)
    east = (np.subtract.outer(grid.longitudes, finer.longitudes) + 180) % 360 - 180
    if any((abs(apart).min(1) > COORDINATE_TOLERANCE).any() for apart in (north, east)):
        return None
    return abs(north).argmin(1), abs(east).argmin(1)
