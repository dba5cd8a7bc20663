"""Mean and standard deviation in a window around each cell, smoothed, for local area-wise standardisation.

The uncertainty network of Grönquist et al. (2021, doi:10.1098/rsta.2020.0092) standardises members by the statistics of
their region instead of the statistics of their cell. Moments of many fields are merged from moments of a few: sums of
squares lose all digits where a mean is large and a spread small, as for geopotential; means and sums of squared
departures do not (Chan, Golub and LeVeque 1983, doi:10.1080/00031305.1983.10483115).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

CUT_OFF = 4
"""Half width of the Gaussian in standard deviations."""


class PartialMoments(NamedTuple):
    """Number, mean and sum of squared departures of a part of the values, in double precision, for each cell."""

    number: np.ndarray
    mean: np.ndarray
    squares: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray, valid: np.ndarray) -> PartialMoments:
        """Return the moments of the values (N, ...) that are `valid`; mean and squares are 0 in cells without any."""
        count = np.broadcast_to(valid, values.shape).sum(0, dtype=np.float64)
        divisor = np.maximum(count, 1)
        mean = np.sum(values, axis=0, dtype=np.float64, where=valid) / divisor
        squares = np.sum(np.square(values - mean, dtype=np.float64), axis=0, where=valid)
        return cls(count, mean, squares)

    @classmethod
    def merge(cls, parts: Sequence[PartialMoments]) -> PartialMoments:
        """Return the moments of the values of all `parts` together."""
        count = np.sum([part.number for part in parts], axis=0)
        divisor = np.maximum(count, 1)
        mean = np.sum([part.number * part.mean for part in parts], axis=0) / divisor
        squares = np.sum([part.squares + part.number * np.square(part.mean - mean) for part in parts], axis=0)
        return cls(count, mean, squares)

    @property
    def std(self) -> np.ndarray:
        """Standard deviation (divisor N); NaN in cells without a value."""
        return np.sqrt(np.where(self.number > 0, self.squares / np.maximum(self.number, 1), np.nan))

    @property
    def mean_or_nan(self) -> np.ndarray:
        """The mean; NaN in cells without a value."""
        return np.where(self.number > 0, self.mean, np.nan)


@dataclass(frozen=True)
class LocalMaps:
    """Window of `window_cells` grid cells a side, an odd number, and Gaussian of `sigma_cells` grid cells.

    Cells without a full window copy the nearest cell that has one. Both maps are smoothed with the Gaussian, periodic
    in longitude on a global grid. Missing values are ignored; cells without any value are NaN.
    """

    window_cells: int
    sigma_cells: float

    def maps(self, moments: PartialMoments, periodic: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return the maps (H, W) of mean and standard deviation from the moments of each cell."""
        window = _window_moments(moments, self.window_cells)
        maps = []
        for pooled in (window.mean_or_nan, window.std):
            pooled = np.pad(pooled, self.window_cells // 2, mode="edge")
            known = np.isfinite(pooled)
            value, weight = (self._smooth(part, periodic) for part in (np.where(known, pooled, 0), known * 1.0))
            maps.append(np.where(known, value / np.where(known, weight, 1), np.nan))
        return maps[0], maps[1]

    def _smooth(self, field: np.ndarray, periodic: bool) -> np.ndarray:
        """Smooth along both axes; edges are repeated, or the field is periodic in longitude."""
        reach = int(CUT_OFF * self.sigma_cells + 0.5)
        weights = np.exp(-0.5 * np.square(np.arange(-reach, reach + 1) / self.sigma_cells))
        weights /= weights.sum()
        for mode in ("edge", "wrap" if periodic else "edge"):
            count = len(field)
            padded = np.pad(field, ((reach, reach), (0, 0)), mode=mode)
            # The order of the sum is fixed; libraries for matrices do not promise a fixed order.
            field = sum(weight * padded[k : k + count] for k, weight in enumerate(weights)).T
        return field


def _window_moments(moments: PartialMoments, window: int) -> PartialMoments:
    """Return the moments of all values in each window that lies within the field."""
    count, mean, squares = (sliding_window_view(part, (window, window)) for part in moments)
    total = count.sum((-1, -2))
    middle = (count * mean).sum((-1, -2)) / np.maximum(total, 1)
    departures = np.square(mean - middle[..., None, None]) * count + squares
    return PartialMoments(total, middle, departures.sum((-1, -2)))
