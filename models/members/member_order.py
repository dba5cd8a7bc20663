"""The order of ensemble members in every cell, by value and among equal values at random."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from data_pipeline.common.threads import in_threads

CELLS_SORTED_TOGETHER = 1024
"""Cells that are sorted together: their keys stay in the processor's cache."""
SORTING_THREADS = 8
"""Threads that sort at once."""
SIGN = np.uint64(1 << 63)


def in_blocks(function: Callable[[slice], None], count: int) -> None:
    """Call `function` for all slices of `CELLS_SORTED_TOGETHER` of `count` cells, in threads."""
    starts = range(0, count, CELLS_SORTED_TOGETHER)
    # Few parts with many slices, because threads wait for the interpreter's lock at every border.
    parts = [starts[k::SORTING_THREADS] for k in range(min(SORTING_THREADS, len(starts)))]

    def run(part: range) -> None:
        for first in part:
            function(slice(first, min(first + CELLS_SORTED_TOGETHER, count)))

    list(in_threads(run, parts, SORTING_THREADS))


def member_order(values: np.ndarray, draws: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Return the members (N, M) of each cell from the lowest to the highest of `values`, (M, N) in double precision.

    A missing value (NaN) is above all others. Equal values are ordered by the random numbers `draws(cells)`, (M, n)
    uint64 for the positions (n,) of cells; the draws are compared as signed numbers.

    The M members of a cell are sorted as integers whose last bits are the number of the member: NumPy sorts integers
    faster than it finds the order of floats (`benchmarks/member_sort.py`). Cells where two members agree in all other
    bits are ordered again, exactly.
    """
    M, N = values.shape
    order = np.empty((N, M), np.uint8 if M <= 256 else np.uint32)

    def sort(part: slice) -> None:
        keys = _sortable(np.ascontiguousarray(values[:, part].T))
        tied = _sorted_with_members(keys, order[part])
        if len(tied):
            rows = part.start + tied
            order[rows] = _exact_order(values[:, rows].T, order[rows].astype(np.intp), draws(rows).T ^ SIGN)

    in_blocks(sort, N)
    return order


def _sortable(values: np.ndarray) -> np.ndarray:
    """Return uint64 numbers that are in the order of the floats; one number for all NaN, one for both zeros."""
    bits: np.ndarray = (values + 0.0).view(np.uint64)
    negative = bits >> np.uint64(63)
    # Invert all bits of a negative number, and only the sign of other numbers.
    keys: np.ndarray = bits ^ ((np.uint64(0) - negative) | SIGN)
    missing = np.isnan(values)
    if missing.any():
        keys[missing] = ~np.uint64(0)
    return keys


def _sorted_with_members(keys: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Write the members of each row in the order of their keys; return the rows where two keys agree in all used bits.

    The lowest bits of `keys` are overwritten.
    """
    members = np.arange(keys.shape[1], dtype=np.uint64)
    low = np.uint64((1 << max(1, (keys.shape[1] - 1).bit_length())) - 1)
    keys &= ~low
    keys |= members
    keys.sort(axis=1)
    order[:] = keys & low
    keys |= low
    tied: np.ndarray = np.flatnonzero((keys[:, 1:] == keys[:, :-1]).any(1))
    return tied


def _exact_order(values: np.ndarray, by_value: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Return the order of the members (n, M) of each row by value, then by draw.

    `by_value` is their order by value, but members whose values differ in the last bits only may be exchanged in it.
    """
    ordered = np.take_along_axis(values, by_value, 1)
    wrong = np.flatnonzero((ordered[:, 1:] < ordered[:, :-1]).any(1))
    if len(wrong):
        by_value[wrong] = values[wrong].argsort(axis=1)
        ordered[wrong] = np.take_along_axis(values[wrong], by_value[wrong], 1)
    higher = (ordered[:, 1:] != ordered[:, :-1]) & ~np.isnan(ordered[:, :-1])
    groups = np.zeros(values.shape, np.uint64)
    np.put_along_axis(groups, by_value, np.pad(np.cumsum(higher, 1), ((0, 0), (1, 0))).astype(np.uint64), 1)
    # A group takes the first bits of the key, the draw the rest; draws that agree in these bits are compared in full.
    bits = np.uint64(max(1, (values.shape[1] - 1).bit_length()))
    order = np.empty(values.shape, np.uint32)
    tied = _sorted_with_members((groups << (np.uint64(64) - bits)) | (draws >> bits), order)
    if len(tied):
        order[tied] = np.lexsort((draws[tied], groups[tied]), axis=1)
    return order
