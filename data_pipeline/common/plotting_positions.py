"""Plotting positions: the quantile levels at which M values stand for a distribution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

TOLERANCE = 1e-4
"""Greatest difference between two levels that are the same; files may hold them in single precision."""
POSITIONS: dict[str, Callable[[Any, int], Any]] = {
    "hazen": lambda k, M: (k - 0.5) / M,
    "weibull": lambda k, M: k / (M + 1),
}
"""Quantile level of the k-th of M members, k = 1 ... M, by the name of the plotting position (Hyndman & Fan 1996)."""


def plotting_position(levels: np.ndarray) -> str:
    """Return the name in `POSITIONS` of some levels, in any order; empty if they are no such levels.

    >>> plotting_position(np.array([0.25, 0.5, 0.75])), plotting_position(np.array([0.05, 0.5, 0.95]))
    ('weibull', '')
    """
    ordered, ranks = np.sort(levels, axis=None), np.arange(1, levels.size + 1)
    fits = (name for name, of in POSITIONS.items() if np.abs(ordered - of(ranks, levels.size)).max() < TOLERANCE)
    return next(fits, "")
