"""Weights along one axis: linear interpolation between points, and the overlap of intervals."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

SNAP = 1e-6
"""A wanted point closer than this to a given point, in units of the distance between points, coincides with it."""


class Weights1D(NamedTuple):
    """Positions and weights (K, n) of n results: a result is the sum over k of `weight[k] * values[position[k]]`.

    The weights of a result sum to one. Where a weight is 0, its position repeats another position of the result, so
    that a missing value at a neighbouring position does not make the result missing.
    """

    position: np.ndarray
    weight: np.ndarray


def interpolate(points: np.ndarray, wanted: np.ndarray, period: float | None = None) -> Weights1D:
    """Return weights of linear interpolation from increasing `points` to `wanted`.

    With a `period`, the first point follows the last. Without it, a wanted point beyond the ends gets the value at the
    end.
    """
    count = len(points)
    if period:
        points = np.append(points, points[0] + period)
        wanted = points[0] + (wanted - points[0]) % period
    west = np.clip(np.searchsorted(points, wanted, "right") - 1, 0, len(points) - 2)
    share = np.clip((wanted - points[west]) / (points[west + 1] - points[west]), 0, 1)
    share = np.where(share < SNAP, 0.0, np.where(share > 1 - SNAP, 1.0, share))
    first, second = west, (west + 1) % count
    index = np.stack([np.where(share == 1, second, first), np.where(share == 0, first, second)])
    return Weights1D(index, np.stack([1 - share, share]))


def overlap(edges: np.ndarray, low: np.ndarray, high: np.ndarray, period: float | None = None) -> Weights1D:
    """Return the share of each interval from `low` to `high` that lies between neighbouring `edges` (increasing).

    With a `period`, the last edge is the first edge one period later. Parts of an interval beyond the edges do not
    count: the weights of the covered part sum to one. Every interval must overlap at least one cell.
    """
    count = len(edges) - 1
    if period:
        start = edges[0] + (low - edges[0]) % period
        low, high = start, start + (high - low)
        edges = np.concatenate([edges, edges[1:] + period])
    low, high = np.clip(low, edges[0], edges[-1]), np.clip(high, edges[0], edges[-1])
    first = np.clip(np.searchsorted(edges, low, "right") - 1, 0, len(edges) - 2)
    last = np.clip(np.searchsorted(edges, high, "left") - 1, first, len(edges) - 2)
    cell = np.minimum(first + np.arange((last - first).max() + 1)[:, None], last)
    length = np.minimum(high, edges[cell + 1]) - np.maximum(low, edges[cell])
    length[1:][cell[1:] == cell[:-1]] = 0
    # Rounding leaves tiny overlaps. They are removed, so that an interval that equals one cell has one weight.
    length[length < SNAP * (high - low)] = 0
    if (length.sum(0) <= 0).any():
        raise ValueError("an interval overlaps no cell")
    cell = np.where(length > 0, cell, np.take_along_axis(cell, length.argmax(0)[None], 0))
    return Weights1D(cell % count, length / length.sum(0))
