"""Which cells of a grid give the forecast of a station, and the weights that read it from fields on a grid."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.grid import COORDINATE_TOLERANCE, Grid, unit_vectors
from data_pipeline.grids.points import Points
from data_pipeline.grids.reduced_grid import ReducedGrid
from data_pipeline.grids.station_cells import StationCells
from data_pipeline.regridding.grid_coverage import covered
from data_pipeline.regridding.weights import Weights1D, interpolate, mean_of_present
from data_pipeline.variables.units import STANDARD_GRAVITY

if TYPE_CHECKING:
    from scipy.spatial import cKDTree

CORNERS = 4
"""Cells among which `land` and `height` choose: the corners around a station, or the nearest of unstructured cells."""
LEAST_LAND = 0.5
"""Least share of land in a land cell."""
HEIGHTS = {"z": 1 / STANDARD_GRAVITY, "orog": 1.0}
"""Static fields that hold the height of the forecast model's surface, and the factor that makes metres of them."""


def stations_on(
    stations: Points, grid: Grid, method: str | None, static: Callable[[Points], Mapping[Any, Any]]
) -> tuple[Points, str]:
    """Return the stations within `grid`, with the cells that give their forecasts; and a sentence about them.

    `nearest` takes the nearest cell. `land` takes the nearest cell of those around the station that are mostly land,
    and the nearest cell where there is none; `height` takes the one whose height is closest to the station's.
    `bilinear` interpolates. Without a method, it is `bilinear`, and `nearest` for cells without rows and columns.

    `static` returns the static fields at cells, of which `lsm` and the height of the surface are used.
    """
    inside = _inside(stations, grid)
    if not inside.any():
        raise InputError(f"{stations} lie outside the forecasts' grid of {grid}; give stations within it")
    points = stations.at(np.flatnonzero(inside))
    around = surrounding(grid, np.array(points.latitudes), np.array(points.longitudes))
    north, east = positions_of(grid, around.position)
    corners = Points(tuple(north.ravel()), tuple(east.ravel()))
    fields = static(replace(corners, cells=_cells("nearest", north.reshape(-1, 1), east.reshape(-1, 1))))
    land = np.asarray(fields["lsm"]).reshape(north.shape) if "lsm" in fields else None
    height = next((np.asarray(fields[n]).reshape(north.shape) * k for n, k in HEIGHTS.items() if n in fields), None)
    method = method or ("nearest" if np.isnan(around.weight).any() else "bilinear")
    without = 0
    if method == "bilinear":
        if np.isnan(around.weight).any():
            raise InputError(f"{grid} have no rows and columns to interpolate between; choose another station_cells")
        cells = _cells(method, north.T, east.T, around.weight.T)
    else:
        apart = np.square(unit_vectors(north, east) - points.places).sum(-1)
        rank = apart
        if method == "land":
            if land is None:
                raise _lacks(method, "the land-sea mask (lsm)")
            dry = land >= LEAST_LAND
            without = int((~dry.any(0)).sum())
            rank = np.where(dry | ~dry.any(0), apart, np.inf)
        if method == "height":
            if height is None:
                raise _lacks(method, f"the surface height ({' or '.join(HEIGHTS)})")
            if not points.altitudes:
                raise InputError("station_cells=height needs the altitudes of the stations; add them to their file")
            # Corners at the same height differ by their distance only.
            rank = abs(height - np.array(points.altitudes)) + 1e-6 * apart
        best = rank.argmin(0)[None]
        cells = _cells(method, *(np.take_along_axis(values, best, 0).T for values in (north, east)))
        height = height if height is None else np.take_along_axis(height, best, 0)
    if height is not None:
        points = replace(points, model_altitudes=tuple(cells.mean(height.T).tolist()))
    return replace(points, cells=cells), _describe(stations, replace(points, cells=cells), inside, method, without)


def _describe(stations: Points, points: Points, inside: np.ndarray, method: str, without_land: int) -> str:
    assert points.cells is not None
    how = {
        "nearest": "nearest cells",
        "land": "nearest land cells",
        "height": "cells around them that are closest in height",
        "bilinear": "cells around them, interpolated",
    }[method]
    away = points.cells.distances(*_coordinates(points)).mean()
    text = f"the forecasts of {points} are those of the {how}, {away:.0f} km away on average"
    if points.altitudes and points.model_altitudes:
        apart = abs(np.subtract(points.altitudes, points.model_altitudes)).mean()
        text += f" and {apart:.0f} m higher or lower"
    if without_land:
        text += f"; {without_land} of them have no land cell around, and take the nearest cell"
    if not inside.all():
        first = (stations.ids or [str(k) for k in range(len(inside))])[int(inside.argmin())]
        text += f"; {(~inside).sum()} stations outside the grid are left out, {first} the first"
    return text


@dataclass(frozen=True, eq=False)
class StationWeights:
    """The `positions` (n, K) of the cells of stations in the flat field of a grid, and their `weights` (n, K).

    `columns` is the length of a row of the grid. The methods are those of `regridding.weights.Weights`.
    """

    positions: np.ndarray
    weights: np.ndarray
    columns: int

    def rows_needed(self, rows: np.ndarray) -> slice:
        """Return the rows of the source that are needed for the given stations."""
        used = self.positions[rows] // self.columns
        return slice(int(used.min()), int(used.max()) + 1)

    def apply(self, values: np.ndarray, rows: np.ndarray, parity: int = 1, offset: int = 0) -> np.ndarray:
        """Return the values (n, 1) of the given stations, float64; see `Weights.apply`."""
        del parity  # no station lies beyond a pole
        found = values.take(self.positions[rows] - offset).astype(np.float64)
        weights = self.weights[rows]
        return mean_of_present(lambda each, _: (each * weights).sum(-1)[:, None], found)


@lru_cache(maxsize=4)
def station_weights(source: Grid, stations: Points) -> StationWeights:
    """Find the cells of stations in a grid; an `InputError` if it lacks one."""
    cells = stations.cells
    if cells is None:
        raise InputError(
            f"{stations} state no cells of a grid, so their forecast cannot be taken from {source}; give forecasts "
            "at these stations, or train with gridded forecasts and observations at stations"
        )
    north, east = (np.array(each).ravel() for each in (cells.latitudes, cells.longitudes))
    around = surrounding(source, north, east).position
    found_north, found_east = positions_of(source, around)
    apart = np.maximum(abs(found_north - north), abs((found_east - east + 180) % 360 - 180))
    best = apart.argmin(0)[None]
    if (lacking := np.take_along_axis(apart, best, 0)[0] > 2 * COORDINATE_TOLERANCE).any():
        k = int(lacking.argmax())
        raise InputError(
            f"the forecasts of {stations} come from cells such as {north[k]:g}, {east[k]:g}, which {source} lacks; "
            "give a forecast on the grid of the training, or one that contains it"
        )
    positions = np.take_along_axis(around, best, 0)[0].reshape(np.shape(cells.weights))
    return StationWeights(positions, np.array(cells.weights), source.shape[1])


def surrounding(grid: Grid, latitudes: np.ndarray, longitudes: np.ndarray) -> Weights1D:
    """Return the cells around points as positions in the flat field, and their bilinear weights, (4, n).

    Cells without rows and columns have weights that are NaN; their four nearest cells are returned.
    """
    if isinstance(grid, Points):
        count = min(CORNERS, grid.shape[0])
        found = _tree(grid).query(unit_vectors(latitudes, longitudes), count)[1].reshape(-1, count).T
        return Weights1D(found, np.full(found.shape, np.nan))
    between = interpolate(-np.array(grid.latitudes), -latitudes, snapped=False)
    parts = [_along_rows(grid, rows, longitudes) for rows in between.position]
    return Weights1D(
        np.concatenate([part.position for part in parts]),
        np.concatenate([part.weight * share for part, share in zip(parts, between.weight, strict=True)]),
    )


@lru_cache(maxsize=1)
def _tree(points: Points) -> cKDTree:
    from scipy.spatial import cKDTree

    return cKDTree(points.places)


def _along_rows(grid: Grid, rows: np.ndarray, longitudes: np.ndarray) -> Weights1D:
    """Return the positions and weights (2, n) that interpolate along one row of the grid for each point."""
    if not isinstance(grid, ReducedGrid):
        points = np.array(grid.longitudes)
        if not grid.periodic:
            longitudes = points[0] - COORDINATE_TOLERANCE + (longitudes - points[0] + COORDINATE_TOLERANCE) % 360
        along = interpolate(points, longitudes, 360.0 if grid.periodic else None, snapped=False)
        return Weights1D(along.position + rows * grid.shape[1], along.weight)
    position, weight = np.empty((2, len(rows)), np.intp), np.empty((2, len(rows)))
    for row in np.unique(rows):
        own = rows == row
        along = interpolate(grid.longitudes_of(row), longitudes[own], 360.0, snapped=False)
        position[:, own], weight[:, own] = along.position + grid.starts[row], along.weight
    return Weights1D(position, weight)


def positions_of(grid: Grid, cells: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return latitudes and longitudes of cells by their positions in the flat field."""
    north, east = _coordinates(grid)
    if isinstance(grid, Points):
        return north[cells], east[cells]
    if not isinstance(grid, ReducedGrid):
        return north[cells // grid.shape[1]], east[cells % grid.shape[1]]
    rows = np.searchsorted(grid.starts, cells, side="right") - 1
    return north[rows], east[rows] + (cells - grid.starts[rows]) * (360 / np.array(grid.counts)[rows])


def _inside(stations: Points, grid: Grid) -> np.ndarray:
    """Return which stations lie within the area of a grid; of unstructured cells, not farther than cells are apart."""
    north, east = _coordinates(stations)
    if not isinstance(grid, Points):
        return np.logical_and(*covered(grid, north, east))
    nearest = positions_of(grid, surrounding(grid, north, east).position)
    apart = np.square(unit_vectors(*nearest) - unit_vectors(north, east)).sum(-1).min(0)
    cell = nearest[0][0], nearest[1][0]
    others = positions_of(grid, surrounding(grid, *cell).position)
    return np.asarray(apart <= np.square(unit_vectors(*others) - unit_vectors(*cell)).sum(-1).max(0))


def _coordinates(grid: Grid) -> tuple[np.ndarray, np.ndarray]:
    return np.array(grid.latitudes), np.array(grid.longitudes)


def _cells(method: str, north: np.ndarray, east: np.ndarray, weights: np.ndarray | None = None) -> StationCells:
    """Return the cells at positions (n, K); without weights, each station has one cell."""
    weights = np.ones(north.shape) if weights is None else weights
    return StationCells.of(method, north, east, weights)


def _lacks(method: str, field: str) -> InputError:
    return InputError(
        f"station_cells={method} needs {field} of the forecast model; add its file to static_fields, or train with "
        "another method"
    )
