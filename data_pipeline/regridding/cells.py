"""The edges of a grid's cells, and its rows beyond the poles."""

from __future__ import annotations

import numpy as np

from data_pipeline.grid import COORDINATE_TOLERANCE, Grid, half_way
from data_pipeline.grids.reduced_grid import ReducedGrid

POLE_STEPS = 0.8
"""A grid continues across a pole if its last row is closer to it than this many steps; 0.77 on Gaussian grids."""


def continues_across_pole(grid: Grid, end: int) -> bool:
    """Whether a row beyond the pole is the northern (`end=0`) or southern (`end=-1`) edge row, rotated by 180°."""
    if not grid.periodic:
        return False
    beyond = 90 - abs(grid.latitudes[end])
    step = abs(grid.latitudes[end] - grid.latitudes[1 if end == 0 else -2])
    if isinstance(grid, ReducedGrid):
        return beyond > COORDINATE_TOLERANCE
    return COORDINATE_TOLERANCE < beyond < POLE_STEPS * step


def latitude_edges(grid: Grid) -> np.ndarray:
    """Return the latitudes of the edges of rows (H + 1), north first.

    Edges are half-way between rows. The outermost rows extend half a step further, or to the pole if no other row would
    fit in between.
    """
    if isinstance(grid, ReducedGrid):
        return np.array(grid.edges)
    edges = np.clip(half_way(np.array(grid.latitudes)), -90, 90)
    for end, pole in ((0, 90.0), (-1, -90.0)):
        if continues_across_pole(grid, end):
            edges[end] = pole
    return edges


def longitude_edges(grid: Grid) -> np.ndarray:
    """Return the longitudes of the edges of columns (W + 1): half-way between columns, half a step beyond the ends."""
    longitudes = np.array(grid.longitudes)
    edges = half_way(longitudes)
    if grid.periodic:
        edges[0] = (longitudes[0] + longitudes[-1] - 360) / 2
        edges[-1] = edges[0] + 360
    return edges
