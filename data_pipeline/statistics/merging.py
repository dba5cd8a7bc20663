"""Merging: mean and squared departures of many values, from those of their parts.

Sums of squares lose all digits where a mean is large and its spread small, as for geopotential. Means and sums of
squared departures from them do not (Chan, Golub and LeVeque 1983, doi:10.1080/00031305.1983.10483115).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from dask.delayed import Delayed, delayed

Part = TypeVar("Part")

FAN_IN = 8
"""Parts that are merged at once: few enough to hold, many enough for a flat tree."""


class Spread(NamedTuple):
    """Number, mean and sum of squared departures of values, in double precision, cell by cell."""

    number: np.ndarray
    mean: np.ndarray
    squares: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray, valid: np.ndarray) -> Spread:
        """Take the values (N, ...) where `valid`; where none is, the mean and the squares are zero."""
        count = np.broadcast_to(valid, values.shape).sum(0, dtype=np.float64)
        least = np.maximum(count, 1)
        mean = np.sum(values, axis=0, dtype=np.float64, where=valid) / least
        squares = np.sum(np.square(values - mean, dtype=np.float64), axis=0, where=valid)
        return cls(count, mean, squares)

    @classmethod
    def merge(cls, parts: Sequence[Spread]) -> Spread:
        """Return number, mean and squared departures of all values of `parts`."""
        count = np.sum([part.number for part in parts], axis=0)
        least = np.maximum(count, 1)
        mean = np.sum([part.number * part.mean for part in parts], axis=0) / least
        squares = np.sum([part.squares + part.number * np.square(part.mean - mean) for part in parts], axis=0)
        return cls(count, mean, squares)

    @property
    def deviation(self) -> np.ndarray:
        """Standard deviation of the values themselves (divisor N); NaN where there is none."""
        return np.sqrt(np.where(self.number > 0, self.squares / np.maximum(self.number, 1), np.nan))

    @property
    def known_mean(self) -> np.ndarray:
        """The mean; NaN where there is no value."""
        return np.where(self.number > 0, self.mean, np.nan)


def tree(parts: Sequence[Delayed], merge: Callable[[Sequence[Part]], Part]) -> Delayed:
    """Return the graph that merges `parts` a few at a time.

    Dask works it off depth first, so that no more than a few parts of each level are held at once, and always in the
    same order, so that the result does not depend on who computes it.
    """
    parts = list(parts)
    together = delayed(merge, pure=True)
    while len(parts) > 1:
        parts = [together(parts[k : k + FAN_IN]) for k in range(0, len(parts), FAN_IN)]
    return parts[0]
