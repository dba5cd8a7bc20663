"""Summary of one forecast: a few numbers for each channel, to make an envelope; without PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

SUMMARY_COLUMNS = ("sum", "spread", "weight", "cells", "low", "high")
"""The numbers that `summarise_tile` returns for each channel, along its last axis."""
SPREAD_CELLS = 4096
"""Approximate number of cells, evenly distributed over the grid, from which the spread is computed."""


def summarise_tile(
    ensemble: np.ndarray, mask: np.ndarray, weights: np.ndarray, rows: slice, columns: slice, shape: tuple[int, int]
) -> np.ndarray:
    """Return `SUMMARY_COLUMNS` (C, 6) of one forecast (M, C, h, w) with its mask (C, h, w), on one tile of the grid.

    `weights` (H,) are the weights of all rows of the grid of `shape`; `rows` and `columns` select the tile.
    """
    step = max(1, int((shape[0] * shape[1] / SPREAD_CELLS) ** 0.5))
    thin = slice(-rows.start % step, None, step), slice(-columns.start % step, None, step)
    area = np.broadcast_to(weights[rows, None], mask.shape[1:])
    members, found = len(ensemble), np.empty((mask.shape[0], len(SUMMARY_COLUMNS)))
    for channel, there in enumerate(mask):
        values = ensemble[:, channel]
        with np.errstate(invalid="ignore", over="ignore"):
            mean = values.mean(0)
            thinned = values[:, *thin].astype(np.float64)
            spread = thinned.std(0, ddof=1) if members > 1 else np.zeros(thinned.shape[1:])
        own, own_thin = area[there], there[thin]
        at = mean[there]
        low, high = (float(at.min()), float(at.max())) if at.size else (np.inf, -np.inf)
        cells = area[thin][own_thin]
        found[channel] = (own @ at.astype(np.float64), cells @ spread[own_thin], own.sum(), cells.sum(), low, high)
    return found


def join_tiles(tiles: Sequence[np.ndarray]) -> np.ndarray:
    """Return `SUMMARY_COLUMNS` (..., 6) of the whole grid from those of its tiles."""
    all_tiles = np.stack(tiles)
    return np.concatenate([all_tiles[..., :4].sum(0), all_tiles[..., 4:5].min(0), all_tiles[..., 5:].max(0)], axis=-1)
