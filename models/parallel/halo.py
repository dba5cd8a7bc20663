"""Halo: which cells of other ranks a rank needs around its tile, which rank has them, and where they go.

A *window* is a rank's tile with its halo. Every rank computes the plans of all ranks, so that ranks need not send
requests. Each cell is sent once to each rank that needs it, which is the smallest possible traffic.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from models.parallel.domain import Domain

Interval = tuple[int, int]
"""First index along an axis and one past the last; both may lie beyond the ends of the grid."""
Intervals = tuple[Interval, ...]
"""The interval that each tile along an axis needs."""

ZERO_CELL = -1
"""Stands for a cell's index where the cell is zero by definition."""


@dataclass(frozen=True, eq=False)
class HaloPlan:
    """How to assemble this rank's window (h, w) from its tile and from cells of other ranks.

    `window` and `tile` give the rectangle that window and tile share, in the coordinates of each. Cell `own_to[k]` of
    the flattened window is cell `own_from[k]` of the flattened tile. Cell `foreign_to[k]` is cell `foreign_from[k]` of
    the received cells, in the order of the ranks. All other cells are zero. `sends[q]` are the cells of the tile that
    rank q needs, `receives[q]` is the number of cells that come from rank q.
    """

    shape: tuple[int, int]
    window: tuple[slice, slice]
    tile: tuple[slice, slice]
    own_to: np.ndarray
    own_from: np.ndarray
    foreign_to: np.ndarray
    foreign_from: np.ndarray
    sends: tuple[np.ndarray, ...]
    receives: tuple[int, ...]
    fully_covered: bool
    """Whether no cell of the window is zero by definition."""
    cells_of_all: int
    """Number of cells that all ranks send."""

    @property
    def cells_sent(self) -> int:
        """Number of cells that this rank sends."""
        return sum(map(len, self.sends))


@lru_cache(maxsize=512)
def plan_halo(domain: Domain, windows: tuple[Intervals, Intervals], beyond_zero: bool = False) -> HaloPlan:
    """Return this rank's plan for `windows`: the rows that each tile row needs, the columns of each tile column.

    Beyond the edges of the grid the sphere is continued, or, with `beyond_zero`, cells are zero; a periodic grid has no
    edge in longitude.
    """
    needs = [_needs(domain, windows, beyond_zero, rank) for rank in range(domain.ranks)]
    (top, bottom), (left, right) = _window_of(domain, windows, domain.rank)
    rows, columns = domain.tile
    inside = (
        slice(max(top, rows.start), max(top, rows.start, min(bottom, rows.stop))),
        slice(max(left, columns.start), max(left, columns.start, min(right, columns.stop))),
    )
    window = _shift(inside, -top, -left)
    source = _sources(domain.grid, (top, bottom), (left, right), beyond_zero)
    rim = np.ones(source.shape, bool)
    rim[window] = False
    places, cells = np.flatnonzero(rim), source[rim]
    own = np.isin(cells, _cells(domain, domain.rank))
    foreign = ~own & (cells != ZERO_CELL)
    received = np.concatenate(needs[domain.rank])
    order = np.argsort(received, kind="stable")
    return HaloPlan(
        shape=(bottom - top, right - left),
        window=window,
        tile=_shift(inside, -rows.start, -columns.start),
        own_to=places[own],
        own_from=_in_tile(domain, cells[own], domain.rank),
        foreign_to=places[foreign],
        foreign_from=order[np.searchsorted(received, cells[foreign], sorter=order)],
        sends=tuple(_in_tile(domain, need[domain.rank], domain.rank) for need in needs),
        receives=tuple(map(len, needs[domain.rank])),
        fully_covered=bool((source != ZERO_CELL).all()),
        cells_of_all=sum(len(cells) for need in needs for cells in need),
    )


def _needs(domain: Domain, windows: tuple[Intervals, Intervals], beyond_zero: bool, rank: int) -> list[np.ndarray]:
    """Return the cells that `rank` needs of each other rank, in increasing order."""
    cells = np.unique(_sources(domain.grid, *_window_of(domain, windows, rank), beyond_zero))
    row, column = np.divmod(cells[cells != ZERO_CELL], domain.shape[1])
    owner = (np.searchsorted(domain.row_cuts, row, side="right") - 1) * domain.tiles[1]
    owner += np.searchsorted(domain.column_cuts, column, side="right") - 1
    cells = cells[cells != ZERO_CELL]
    none = cells[:0]
    return [cells[owner == other] if other != rank else none for other in range(domain.ranks)]


def _window_of(domain: Domain, windows: tuple[Intervals, Intervals], rank: int) -> tuple[Interval, Interval]:
    i, j = divmod(rank, domain.tiles[1])
    return windows[0][i], windows[1][j]


def _sources(grid: Grid, rows: Interval, columns: Interval, beyond_zero: bool) -> np.ndarray:
    """Return for each cell of a window the index of its source among the flattened cells of the globe."""
    H, W = grid.shape
    at = np.arange(*rows)
    row, turned = row_sources(grid, at.clip(0, H - 1) if beyond_zero else at)
    column = np.arange(*columns)[None, :]
    # Across a pole, columns are shifted by half a turn.
    column = np.where(turned[:, None], column - W // 2, column)
    column = column % W if grid.periodic else column.clip(0, W - 1)
    sources = row[:, None] * W + column
    if beyond_zero:
        along = np.arange(*columns)[None, :]
        outside = ((at < 0) | (at >= H))[:, None]
        if not grid.periodic:
            outside = outside | (along < 0) | (along >= W)
        sources = np.where(outside, ZERO_CELL, sources)
    return sources


def row_sources(grid: Grid, row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the source of each row, also beyond a pole or an edge, and whether it lies across a pole."""
    H = grid.shape[0]
    found, turned = row.clip(0, H - 1), np.zeros(len(row), bool)
    for end, beyond, mirrored in ((0, row < 0, -row), (-1, row >= H, 2 * (H - 1) - row)):
        shift = grid.across_pole(end)
        if shift is None:
            continue
        # If the pole lies half a row beyond the edge, the mirror image of the edge row is the first row beyond.
        mirrored = mirrored + (-1 if end == 0 else 1) * (1 - shift)
        found, turned = np.where(beyond, mirrored, found), turned | beyond
    if len(found) and (found.min() < 0 or found.max() >= H):
        raise InputError(
            f"a layer needs rows {row[0]} to {row[-1]}, beyond the opposite pole of {grid}; take fewer coarse levels"
        )
    return found, turned


def _cells(domain: Domain, rank: int) -> np.ndarray:
    rows, columns = domain.tile_of(rank)
    return (
        np.arange(rows.start, rows.stop)[:, None] * domain.shape[1] + np.arange(columns.start, columns.stop)
    ).ravel()


def _in_tile(domain: Domain, cells: np.ndarray, rank: int) -> np.ndarray:
    rows, columns = domain.tile_of(rank)
    row, column = np.divmod(cells, domain.shape[1])
    return (row - rows.start) * (columns.stop - columns.start) + column - columns.start


def _shift(block: tuple[slice, slice], rows: int, columns: int) -> tuple[slice, slice]:
    first, second = block
    return slice(first.start + rows, first.stop + rows), slice(second.start + columns, second.stop + columns)
