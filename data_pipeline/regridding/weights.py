"""Weights between two grids, first along the rows of the source grid, then between its rows.

Both methods are separable: a value at a point or the mean over a cell is a weighted sum along each row, followed by a
weighted sum of rows. This holds for reduced grids too, where each row has its own weights. The second step of
`conservative` weights rows by area, which is proportional to the difference of the sines of latitude (first-order
conservative remapping, Jones 1999, doi:10.1175/1520-0493(1999)127<2204:FASOCR>2.0.CO;2).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np

from data_pipeline.grid import COORDINATE_TOLERANCE, Grid, half_way
from data_pipeline.grids.reduced_grid import ReducedGrid
from data_pipeline.regridding.cells import continues_across_pole, latitude_edges, longitude_edges
from data_pipeline.regridding.grid_coverage import refuse_uncovered

Method = Literal["conservative", "bilinear"]
METHODS: tuple[Method, ...] = ("conservative", "bilinear")

MINIMUM_SHARE = 0.5
"""A result is missing if more than this share of its weights is on missing values; else the other values are used."""


@dataclass(frozen=True, eq=False)
class Weights:
    """The weights from a source grid to `grid`.

    `along` (R, W) holds weights of values in the flat source field, which give R rows at the target's longitudes.
    `between` (H) holds weights of these rows, which give the target's rows. `source_rows` (R) are the source's rows.
    `across` (R) marks rows beyond a pole; such a row is the edge row, rotated by 180 degrees.
    """

    grid: Grid
    along: Weights1D
    between: Weights1D
    across: np.ndarray
    source_rows: np.ndarray

    def rows_needed(self, rows: np.ndarray) -> slice:
        """Return the rows of the source that are needed for the given rows of the target."""
        used = self.source_rows[np.unique(self.between.position[:, rows])]
        return slice(int(used.min()), int(used.max()) + 1)

    def apply(self, values: np.ndarray, rows: np.ndarray, parity: int = 1, offset: int = 0) -> np.ndarray:
        """Return the given rows (h, W) of the target, float64, from the flat source `values`; NaN where missing.

        `values` begin at position `offset` of the source field. `parity` is -1 for components of vectors, whose sign
        changes across a pole. `MINIMUM_SHARE` decides whether a result is missing.
        """
        return mean_of_present(lambda each, sign: self._sum(each, rows, sign, offset), values, parity)

    def _sum(self, values: np.ndarray, rows: np.ndarray, parity: int, offset: int) -> np.ndarray:
        between = Weights1D(self.between.position[:, rows], self.between.weight[:, rows])
        used = slice(int(between.position.min()), int(between.position.max()) + 1)
        index, weight = self.along.position[:, used], self.along.weight[:, used]
        if offset:
            index = index - offset
        # `take` is three times as fast as indexing one axis of a field. Single precision would lose digits.
        lines = values.take(index[0]) * weight[0]
        for k in range(1, len(self.along.position)):
            lines += values.take(index[k]) * weight[k]
        if parity < 0:
            lines[self.across[used]] *= -1
        field = lines[between.position[0] - used.start] * between.weight[0][:, None]
        for k in range(1, len(between.position)):
            field += lines[between.position[k] - used.start] * between.weight[k][:, None]
        return field


def mean_of_present(add: Callable[[np.ndarray, int], np.ndarray], values: np.ndarray, parity: int = 1) -> np.ndarray:
    """Return the weighted means of the `values` that are there; NaN where `MINIMUM_SHARE` says that one is missing.

    `add(values, parity)` returns the weighted sums, for which the weights of each sum to 1.
    """
    there = np.isfinite(values)
    if there.all():
        return add(values, parity)
    total = add(np.where(there, values, 0), parity)
    share = add(there.astype(np.float64), 1)
    # The share is exactly one where nothing is missing, so that a result does not depend on the rest of the field.
    share = np.where(share > 1 - 1e-9, 1.0, share)
    return np.where(share >= MINIMUM_SHARE - 1e-9, total / np.maximum(share, 1e-9), np.nan)


@lru_cache(maxsize=4)
def weights_between(source: Grid, grid: Grid, method: Method) -> Weights:
    """Return the weights from `source` to `grid`; `InputError` if the source does not cover the grid."""
    refuse_uncovered(source, grid)
    latitudes = np.array(source.latitudes)
    rows = np.arange(len(latitudes))
    if method == "conservative":
        edges, wanted = _sines(source), _sines(grid)
        between = overlap(edges, wanted[:-1], wanted[1:])
        return Weights(grid, _along(source, grid, method), between, np.zeros(len(rows), bool), rows)
    north, south = (continues_across_pole(source, end) for end in (0, -1))
    source_rows = np.concatenate([rows[:north], rows, rows[len(rows) - south :]]).astype(np.intp)
    across = np.zeros(len(source_rows), bool)
    points = latitudes.tolist()
    if north:
        across[0], points = True, [180 - latitudes[0], *points]
    if south:
        across[-1], points = True, [*points, -180 - latitudes[-1]]
    along = _along(source, grid, method, *((0,) if north else ()), *((len(rows) - 1,) if south else ()))
    between = interpolate(-np.array(points), -np.array(grid.latitudes))
    return Weights(grid, along, between, across, source_rows)


def _sines(grid: Grid) -> np.ndarray:
    """Return the negative sines of the latitudes of row edges; their differences are proportional to areas."""
    return -np.sin(np.radians(latitude_edges(grid)))


def _along(source: Grid, grid: Grid, method: Method, *poles: int) -> Weights1D:
    """Return the weights along all rows of the source, as positions in its flat field.

    `poles` are edge rows at a pole. For each of them, one more row holds the values at the opposite meridians.
    """
    rows = range(len(source.latitudes))
    lines = [(row, 0.0) for row in rows]
    if 0 in poles:
        lines.insert(0, (0, 180.0))
    if rows[-1] in poles:
        lines.append((rows[-1], 180.0))
    known: dict[tuple[object, ...], Weights1D] = {}
    parts = []
    for row, turn in lines:
        if isinstance(source, ReducedGrid):
            key: tuple[object, ...] = (source.counts[row], source.longitudes[row], turn)
            points, start, periodic = source.longitudes_of(row), int(source.starts[row]), True
        else:
            key, points, start, periodic = (turn,), np.array(source.longitudes), row * source.shape[1], source.periodic
        if key not in known:
            known[key] = _along_row(points, periodic, grid, method, turn)
        parts.append(Weights1D(known[key].position + start, known[key].weight))
    most = max(len(part.position) for part in parts)
    return Weights1D(*(np.stack([_padded(part, most)[name] for part in parts], axis=1) for name in (0, 1)))


def _along_row(points: np.ndarray, periodic: bool, grid: Grid, method: Method, turn: float) -> Weights1D:
    """Return the weights from the points of one row to the target's longitudes, turned by `turn` degrees."""
    period = 360.0 if periodic else None
    wanted = np.array(grid.longitudes) + turn
    shift = np.zeros(len(wanted))
    if not periodic:
        shift = points[0] - COORDINATE_TOLERANCE + (wanted - points[0] + COORDINATE_TOLERANCE) % 360 - wanted
    if method == "bilinear":
        return interpolate(points, wanted + shift, period)
    edges = half_way(points)
    if periodic:
        edges[0] = (points[0] + points[-1] - 360) / 2
        edges[-1] = edges[0] + 360
    sides = longitude_edges(grid) + turn
    return overlap(edges, sides[:-1] + shift, sides[1:] + shift, period)


def _padded(weights: Weights1D, count: int) -> Weights1D:
    """Return the weights padded to `count` per result; the added weights are 0."""
    more = count - len(weights.position)
    heaviest = np.take_along_axis(weights.position, weights.weight.argmax(0)[None], 0)
    return Weights1D(
        np.concatenate([weights.position, np.repeat(heaviest, more, axis=0)]),
        np.concatenate([weights.weight, np.zeros((more, weights.weight.shape[1]))]),
    )


SNAP = 1e-6
"""A wanted point closer than this to a given point, in units of the distance between points, coincides with it."""


class Weights1D(NamedTuple):
    """Positions and weights (K, n) of n results: a result is the sum over k of `weight[k] * values[position[k]]`.

    The weights of a result sum to one. Where a weight is 0, its position repeats another position of the result, so
    that a missing value at a neighbouring position does not make the result missing.
    """

    position: np.ndarray
    weight: np.ndarray


def interpolate(points: np.ndarray, wanted: np.ndarray, period: float | None = None, snapped: bool = True) -> Weights1D:
    """Return weights of linear interpolation from increasing `points` to `wanted`.

    With a `period`, the first point follows the last. Without it, a wanted point beyond the ends gets the value at the
    end. A wanted point that coincides with a given one is `snapped` to it; else it keeps both neighbours.
    """
    count = len(points)
    if period:
        points = np.append(points, points[0] + period)
        wanted = points[0] + (wanted - points[0]) % period
    west = np.clip(np.searchsorted(points, wanted, "right") - 1, 0, len(points) - 2)
    share = np.clip((wanted - points[west]) / (points[west + 1] - points[west]), 0, 1)
    share = np.where(share < SNAP, 0.0, np.where(share > 1 - SNAP, 1.0, share))
    first, second = west, (west + 1) % count
    if not snapped:
        return Weights1D(np.stack([first, second]), np.stack([1 - share, share]))
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
