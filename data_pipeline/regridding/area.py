"""The part of a grid, or of points, within an area."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.grid import COORDINATE_TOLERANCE, Grid
from data_pipeline.grids.points import Points
from data_pipeline.grids.station_cells import StationCells


def check_area(area: object) -> None:
    """Raise `InputError` unless an area is None, or [north, west, south, east] in degrees."""
    if area is None:
        return
    listed = [] if isinstance(area, str) or not isinstance(area, Sequence) else list(area)
    if len(listed) != 4 or any(type(one) not in (int, float) for one in listed):
        raise InputError(f"data.archive.area must be [north, west, south, east] in degrees, got {area!r}")
    north, west, south, east = listed
    if not (90 >= north > south >= -90 and -360 <= west <= 360 and 0 < east - west <= 360):
        raise InputError(
            f"data.archive.area must be [north, west, south, east] with north > south and east > west, got {listed}; "
            "west may be negative"
        )


def cut(grid: Grid, area: Sequence[float]) -> Grid:
    """Return the points of a grid within an area, its edges included; longitudes begin at the western edge.

    Points without ids are known by their positions, so each is a station that is its own cell.
    """
    north, west, south, east = area
    latitudes, longitudes = np.array(grid.latitudes), np.array(grid.longitudes)
    rows = (latitudes <= north + COORDINATE_TOLERANCE) & (latitudes >= south - COORDINATE_TOLERANCE)
    offset = (longitudes - west + COORDINATE_TOLERANCE) % 360 - COORDINATE_TOLERANCE
    columns = offset <= east - west + COORDINATE_TOLERANCE
    if isinstance(grid, Points):
        inside = np.flatnonzero(rows & columns)
        if not inside.size:
            raise InputError(f"data.archive.area={list(area)} has none of {grid}; choose another area")
        points = grid.at(inside)
        if points.ids or points.cells:
            return points
        lat, lon = (np.array(each)[:, None] for each in (points.latitudes, points.longitudes))
        return replace(points, cells=StationCells.of("nearest", lat, lon, np.ones(lat.shape)))
    order = np.flatnonzero(columns)[np.argsort(offset[columns])]
    if rows.sum() < 2 or len(order) < 2:
        raise InputError(f"data.archive.area={list(area)} has fewer than 2 x 2 points of {grid}; choose a larger area")
    if len(order) == len(longitudes):
        return replace(grid, latitudes=tuple(latitudes[rows].tolist()))
    return replace(grid, latitudes=tuple(latitudes[rows].tolist()), longitudes=tuple((west + offset[order]).tolist()))
