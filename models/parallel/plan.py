"""Plan: which cells each rank lacks to see its window of the globe, who has them, and where they go.

Every rank works out the plans of all, so nobody asks anybody. A cell travels once to each rank that needs it, and
only if it does: what is sent is the least that can be.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from models.parallel.domain import Domain

Interval = tuple[int, int]
"""From the first to the one after the last of an axis; it may reach beyond either end of the globe."""
Windows = tuple[tuple[Interval, ...], tuple[Interval, ...]]
"""What each tile row needs of the latitudes, and each tile column of the longitudes."""

NOWHERE = -1
"""Source of a cell that is zero by definition."""


@dataclass(frozen=True, eq=False)
class Plan:
    """How the own window (h, w) is put together from the own tile and from what others send.

    `window` and `tile` are the block that both share. Every other cell of the window, by its place in the
    flattened window, comes from a place in the flattened tile (`own_to`, `own_from`) or among the cells received,
    in the order of the ranks (`foreign_to`, `foreign_from`). What is in none of these is zero.
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
    whole: bool
    """Whether every cell of the window comes from somewhere."""

    @property
    def cells_sent(self) -> int:
        """Cells that the own rank gives away."""
        return sum(map(len, self.sends))


@lru_cache(maxsize=512)
def make_plan(domain: Domain, windows: Windows, beyond_zero: bool = False) -> Plan:
    """Return the own plan for `windows`; beyond the edges the sphere goes on, or all is zero."""
    needs = [_needs(domain, windows, beyond_zero, rank) for rank in range(domain.ranks)]
    (top, bottom), (left, right) = _window_of(domain, windows, domain.rank)
    rows, columns = domain.tile
    inside = (
        slice(max(top, rows.start), max(top, rows.start, min(bottom, rows.stop))),
        slice(max(left, columns.start), max(left, columns.start, min(right, columns.stop))),
    )
    window = _moved(inside, -top, -left)
    source = _sources(domain.grid, (top, bottom), (left, right), beyond_zero)
    rim = np.ones(source.shape, bool)
    rim[window] = False
    places, cells = np.flatnonzero(rim), source[rim]
    own = np.isin(cells, _cells(domain, domain.rank))
    foreign = ~own & (cells != NOWHERE)
    received = np.concatenate(needs[domain.rank])
    order = np.argsort(received, kind="stable")
    return Plan(
        shape=(bottom - top, right - left),
        window=window,
        tile=_moved(inside, -rows.start, -columns.start),
        own_to=places[own],
        own_from=_in_tile(domain, cells[own], domain.rank),
        foreign_to=places[foreign],
        foreign_from=order[np.searchsorted(received, cells[foreign], sorter=order)],
        sends=tuple(_in_tile(domain, need[domain.rank], domain.rank) for need in needs),
        receives=tuple(map(len, needs[domain.rank])),
        whole=bool((source != NOWHERE).all()),
    )


def _needs(domain: Domain, windows: Windows, beyond_zero: bool, rank: int) -> list[np.ndarray]:
    """Return the cells that `rank` lacks, in increasing order, by the rank that has them."""
    cells = np.unique(_sources(domain.grid, *_window_of(domain, windows, rank), beyond_zero))
    row, column = np.divmod(cells[cells != NOWHERE], domain.shape[1])
    owner = (np.searchsorted(domain.row_cuts, row, side="right") - 1) * domain.tiles[1]
    owner += np.searchsorted(domain.column_cuts, column, side="right") - 1
    cells = cells[cells != NOWHERE]
    nothing = cells[:0]
    return [cells[owner == other] if other != rank else nothing for other in range(domain.ranks)]


def _window_of(domain: Domain, windows: Windows, rank: int) -> tuple[Interval, Interval]:
    i, j = divmod(rank, domain.tiles[1])
    return windows[0][i], windows[1][j]


def _sources(grid: Grid, rows: Interval, columns: Interval, beyond_zero: bool) -> np.ndarray:
    """Return for each cell of a window the cell of the globe (flattened) that it shows."""
    H, W = grid.shape
    row, turned = row_sources(grid, np.arange(*rows))
    column = np.arange(*columns)[None, :]
    # Rows beyond a pole are seen half a turn further.
    column = np.where(turned[:, None], column - W // 2, column)
    column = column % W if grid.periodic else column.clip(0, W - 1)
    sources = row[:, None] * W + column
    if beyond_zero:
        at, along = np.arange(*rows)[:, None], np.arange(*columns)[None, :]
        outside = (at < 0) | (at >= H)
        if not grid.periodic:
            outside = outside | (along < 0) | (along >= W)
        sources = np.where(outside, NOWHERE, sources)
    return sources


def row_sources(grid: Grid, row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows that `row` are, those beyond a pole or an edge included, and whether a pole lies between."""
    H = grid.shape[0]
    found, turned = row.clip(0, H - 1), np.zeros(len(row), bool)
    for end, beyond, mirrored in ((0, row < 0, -row), (-1, row >= H, 2 * (H - 1) - row)):
        shift = grid.across_pole(end)
        if shift is None:
            continue
        # With the pole half a row beyond the edge, the edge row is its own mirror.
        mirrored = mirrored + (-1 if end == 0 else 1) * (1 - shift)
        found, turned = np.where(beyond, mirrored, found), turned | beyond
    if len(found) and (found.min() < 0 or found.max() >= H):
        raise InputError(
            f"a layer that looks from row {row[0]} to {row[-1]} goes round all of {grid}; take fewer coarse levels"
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


def _moved(block: tuple[slice, slice], rows: int, columns: int) -> tuple[slice, slice]:
    first, second = block
    return slice(first.start + rows, first.stop + rows), slice(second.start + columns, second.stop + columns)
