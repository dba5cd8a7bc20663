"""Horizontal: latitudes and longitudes in any order as a `Grid`, and where its rows and columns stand in the file."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.grid import TOLERANCE, Grid


@dataclass(frozen=True, eq=False)
class Horizontal:
    """A grid, whether the file's rows begin in the south, and the file's column for each of the grid's."""

    grid: Grid
    south_first: bool
    columns: np.ndarray

    @classmethod
    def of(cls, latitudes: np.ndarray, longitudes: np.ndarray) -> Horizontal:
        """Bring coordinates to north first, west to east.

        Round the globe, the grid starts at its first column east of 0°; a last column that repeats the first is left
        out. Elsewhere it starts after the widest gap, with the longitude that the file gives unless the grid then
        reached beyond 360°.
        """
        latitudes, longitudes = latitudes.astype(np.float64), longitudes.astype(np.float64)
        if not (np.isfinite(latitudes).all() and np.isfinite(longitudes).all()):
            raise InputError("its latitudes or longitudes have missing values; mend them first")
        steps = np.diff(latitudes)
        if not ((steps > 0).all() or (steps < 0).all()):
            raise InputError("its latitudes neither rise nor fall throughout; sort them first")
        south_first = len(steps) > 0 and bool(steps[0] > 0)
        columns, longitudes = _eastward(longitudes)
        return cls(Grid(tuple(latitudes[:: -1 if south_first else 1]), tuple(longitudes)), south_first, columns)


def _eastward(longitudes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    around = longitudes % 360
    around[around > 360 - TOLERANCE] = 0.0
    order = np.argsort(around, kind="stable")
    order = order[np.diff(around[order], prepend=-1) > TOLERANCE / 10]
    around = around[order]
    gaps = np.diff(around, append=around[0] + 360)
    circle = len(gaps) > 1 and abs(gaps.max() - np.median(gaps)) < np.median(gaps) / 2
    first = 0 if circle else (int(gaps.argmax()) + 1) % len(gaps)
    columns = np.roll(order, -first)
    around = np.concatenate([around[first:], around[:first] + 360])
    shift = 0.0 if circle else 360 * np.round((longitudes[columns[0]] - around[0]) / 360)
    if around[-1] + shift > 360 + TOLERANCE:
        shift -= 360
    turns = np.round((around + shift - longitudes[columns]) / 360)
    return columns, longitudes[columns] + 360 * turns
