"""Local area-wise standardisation: mean and spread of a window around each cell, smoothed.

After the uncertainty network of Grönquist et al. 2021 (doi:10.1098/rsta.2020.0092), which sees members as departures
from what is usual in their region and season rather than in their cell.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import dask
import numpy as np
from dask.delayed import delayed
from numpy.lib.stride_tricks import sliding_window_view

from data_pipeline.common.checks import check_integer, check_positive
from data_pipeline.common.errors import InputError
from data_pipeline.split import year_of
from data_pipeline.statistics.merging import Spread, tree
from data_pipeline.statistics.statistic import Axes, Piece, variable_names
from data_pipeline.statistics.training import Training

CUT_OFF = 4
"""Standard deviations at which the Gaussian ends."""


@dataclass(frozen=True)
class Local:
    """`mean` and `std` (lead_time, variable, latitude, longitude) of member number `member` in a square `window`.

    For each year of valid time mean and standard deviation are taken over all its forecasts and the points of the
    window, then averaged over the years; what the window leaves at the edges repeats its neighbour; both maps are
    smoothed with a Gaussian of `sigma` grid points, round the globe where the grid goes round it. Missing values
    count nowhere; NaN where there is nothing else.
    """

    window: int = 7
    sigma: float = 10.0
    member: int = 1

    name: ClassVar[str] = "local"

    def __post_init__(self) -> None:
        check_integer("local.window", self.window, 1, 999)
        if self.window % 2 == 0:
            raise InputError(f"local.window must be odd, because it has a middle; got {self.window}")
        check_positive("local.sigma", self.sigma)
        check_integer("local.member", self.member, 0)

    def axes(self, training: Training) -> Axes:
        """Return the dimensions of what is computed."""
        if self.member not in training.numbers:
            there = ", ".join(map(str, training.numbers))
            raise InputError(f"local.member={self.member} is not in the ensemble, which has the members {there}")
        if self.window > min(training.grid.shape):
            raise InputError(f"local.window={self.window} is larger than the grid of {training.grid}")
        dimensions = ("lead_time", "variable", "latitude", "longitude")
        names = variable_names(training.task.channels)
        return {"mean": dimensions, "std": dimensions}, {"lead_time": training.task.lead_times, "variable": names}

    def reads(self, training: Training) -> int:
        """Return how many fields are read."""
        return len(training.keys) * len(training.task.channels)

    def steps(self, training: Training, at_once: int) -> int:
        """Return how many pieces `compute` yields."""
        return len(training.task.lead_times) * len(training.task.channels)

    def compute(self, training: Training, at_once: int) -> Iterator[Piece]:
        """Yield one variable after the other for each lead time."""
        of_member = delayed(_spread, pure=True)
        finish = delayed(self.maps, pure=True)
        for j, lead in enumerate(training.task.lead_times):
            by_year: dict[int, list[tuple[int, int]]] = {}
            for i, _, k in (key for key in training.keys if key[1] == j):
                by_year.setdefault(year_of(training.times[k]), []).append((i, j))
            for c, channel in enumerate(training.task.channels):
                fields = training.channel(channel, [key for keys in by_year.values() for key in keys], only=self.member)
                years = [tree([of_member(fields[key]) for key in keys], Spread.merge) for keys in by_year.values()]
                ((mean, std),) = dask.compute(finish(years, training.grid.periodic))
                yield f"{channel} at {lead} h", {"mean": ((j, c), mean), "std": ((j, c), std)}

    def maps(self, years: Sequence[Spread], periodic: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return the two maps from the spread of each year."""
        windows = [_pool(year, self.window) for year in years]
        maps = []
        for name in ("known_mean", "deviation"):
            pooled = np.pad(_mean([getattr(window, name) for window in windows]), self.window // 2, mode="edge")
            known = np.isfinite(pooled)
            value, weight = (self._smooth(part, periodic) for part in (np.where(known, pooled, 0), known * 1.0))
            maps.append(np.where(known, value / np.where(known, weight, 1), np.nan))
        return maps[0], maps[1]

    def _smooth(self, field: np.ndarray, periodic: bool) -> np.ndarray:
        """Smooth along both axes; beyond the edges come the edges, or round the globe the field again."""
        reach = int(CUT_OFF * self.sigma + 0.5)
        weights = np.exp(-0.5 * np.square(np.arange(-reach, reach + 1) / self.sigma))
        weights /= weights.sum()
        for mode in ("edge", "wrap" if periodic else "edge"):
            count = len(field)
            padded = np.pad(field, ((reach, reach), (0, 0)), mode=mode)
            # Summed in a fixed order, which no library for matrices promises.
            field = sum(weight * padded[k : k + count] for k, weight in enumerate(weights)).T
        return field


def _spread(member: np.ndarray) -> Spread:
    return Spread.of(member, np.isfinite(member))


def _pool(spread: Spread, window: int) -> Spread:
    """Return the spread of all values in each window that lies within the field."""
    count, mean, squares = (sliding_window_view(part, (window, window)) for part in spread)
    total = count.sum((-1, -2))
    middle = (count * mean).sum((-1, -2)) / np.maximum(total, 1)
    departures = np.square(mean - middle[..., None, None]) * count + squares
    return Spread(total, middle, departures.sum((-1, -2)))


def _mean(fields: Sequence[np.ndarray]) -> np.ndarray:
    """Return the mean of the fields that are not NaN, cell by cell; NaN where all are."""
    spread = Spread.of(np.stack(fields), np.isfinite(fields))
    return spread.known_mean
