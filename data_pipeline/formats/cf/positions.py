"""Convert positions along a dimension to slices, which numpy and file libraries copy in one piece."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from data_pipeline.protocols import Index

_MANY_RUNS = 4
"""Positions in more runs than this are copied one by one."""


def compact(values: np.ndarray) -> Index:
    """Return consecutive positions as a slice, others as they are.

    >>> compact(np.array([3, 4, 5])), compact(np.array([2, 1, 0]))
    (slice(3, 6, None), slice(2, None, -1))
    """
    if values.ndim == 0:
        return int(values)
    if len(values) and (np.diff(values) == 1).all():
        return slice(int(values[0]), int(values[-1]) + 1)
    if len(values) and (np.diff(values) == -1).all():
        return slice(int(values[0]), int(values[-1]) - 1 if values[-1] else None, -1)
    return values


def runs(values: np.ndarray) -> Iterator[tuple[slice, Index]]:
    """Yield pairs of positions in the result and in the file; most grids need one pair, or two if columns are rolled.

    >>> list(runs(np.array([4, 5, 0, 1, 2])))
    [(slice(0, 2, None), slice(4, 6, None)), (slice(2, 5, None), slice(0, 3, None))]
    """
    steps = np.diff(values)
    starts = [0, *(np.flatnonzero((steps != 1) & (steps != -1)) + 1).tolist()]
    if len(starts) > _MANY_RUNS:
        starts = [0]
    for a, b in zip(starts, [*starts[1:], len(values)], strict=True):
        yield slice(a, b), compact(values[a:b])
