"""The region of a place in words, and the cells where a field is largest."""

from __future__ import annotations

import numpy as np

from data_pipeline.grid import Grid
from data_pipeline.grids.points import Points
from evaluation.regions import EUROPE, TROPICS
from evaluation.report.coastlines import Coastlines
from evaluation.report.shown_data import position_of

APART = 10.0
"""Smallest distance in degrees between two cells that `largest_cells` returns, so that one storm has one line."""


def region_name(grid: Grid, cell: tuple[int, int], earth: bool, land: np.ndarray | None = None) -> str:
    """Return the region of a cell in words: land or sea, and Europe, the tropics, the north or the south.

    `land` is the share of land (H, W), if the corrector knows it. Without it, the coastlines of the Earth decide, where
    the data are from the `earth`. Europe is a region of the Earth only.

    >>> region_name(Grid((52.0, 0.0), (13.0, 103.0)), (0, 0), earth=True)
    'land, Europe'
    """
    latitude, longitude = position_of(grid, cell)
    words = []
    if land is not None:
        words.append("land" if land[cell] >= 0.5 else "sea")
    elif earth:
        here = Coastlines.load().is_land(np.array([latitude]), np.array([longitude]))
        words.append("land" if here[0] else "sea")
    if earth and EUROPE.mask(Grid((latitude,), (longitude,)))[0, 0]:
        words.append("Europe")
    elif abs(latitude) < TROPICS:
        words.append("tropics")
    else:
        words.append(f"{'north' if latitude > 0 else 'south'} of the tropics")
    return ", ".join(words)


def largest_cells(field: np.ndarray, grid: Grid, count: int) -> list[tuple[int, int]]:
    """Return the cells where |field| (H, W) is largest, the largest first, at least `APART` degrees from each other.

    Points may be nearer to each other. Cells with a value of 0 or NaN are left out.
    """
    size = np.where(np.isfinite(field), abs(field), 0.0)
    latitudes, longitudes = (
        np.radians(np.broadcast_to(one, grid.shape)) for one in (grid.cell_latitudes, grid.cell_longitudes)
    )
    sines, cosines = np.sin(latitudes), np.cos(latitudes)
    found: list[tuple[int, int]] = []
    while len(found) < count and size.max(initial=0) > 0:
        row, column = (int(k) for k in np.unravel_index(int(size.argmax()), size.shape))
        found.append((row, column))
        size[row, column] = 0
        if not isinstance(grid, Points):
            cosine = sines * sines[row, column] + cosines * cosines[row, column] * np.cos(
                longitudes - longitudes[row, column]
            )
            size[cosine > np.cos(np.radians(APART))] = 0
    return found
