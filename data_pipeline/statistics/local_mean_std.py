"""Mean and standard deviation in a window around each cell, smoothed, for local area-wise standardisation.

The uncertainty network of Grönquist et al. (2021, doi:10.1098/rsta.2020.0092) standardises members by the statistics
of their region instead of those of their cell.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import dask
import numpy as np
from dask.delayed import delayed
from numpy.lib.stride_tricks import sliding_window_view

from data_pipeline.calendar import year_of
from data_pipeline.common.checks import check_integer, check_positive
from data_pipeline.common.errors import InputError
from data_pipeline.statistics.statistic import Axes, PartialMoments, Piece, check_window, merge_tree, variable_names
from data_pipeline.statistics.training_forecasts import TrainingForecasts

CUT_OFF = 4
"""Half width of the Gaussian in standard deviations."""


@dataclass(frozen=True)
class LocalMeanStd:
    """`mean` and `std` (lead_time, variable, latitude, longitude) of the member with number `member`.

    For each year of valid time, mean and standard deviation are taken over all forecasts and over a square window of
    `window_cells` grid cells a side, then averaged over the years. Cells without a full window copy the nearest cell
    that has one. Both maps are smoothed with a Gaussian of `sigma_cells` grid cells, periodic in longitude on a global
    grid. Missing values are ignored; cells without any value are NaN.
    """

    window_cells: int = 7
    sigma_cells: float = 10.0
    member: int = 1

    name: ClassVar[str] = "local"

    def __post_init__(self) -> None:
        check_window("local.window_cells", self.window_cells, 999)
        check_positive("local.sigma_cells", self.sigma_cells)
        check_integer("local.member", self.member, 0)

    def axes(self, training: TrainingForecasts) -> Axes:
        """Return the dimensions and coordinates of the computed variables."""
        if self.member not in training.numbers:
            numbers = ", ".join(map(str, training.numbers))
            raise InputError(f"local.member={self.member} is not in the ensemble, which has the members {numbers}")
        if self.window_cells > min(training.grid.shape):
            raise InputError(f"local.window_cells={self.window_cells} is larger than the grid of {training.grid}")
        dimensions = ("lead_time", "variable", "latitude", "longitude")
        names = variable_names(training.task.channels)
        return {"mean": dimensions, "std": dimensions}, {"lead_time": training.task.lead_times, "variable": names}

    def count_fields(self, training: TrainingForecasts) -> int:
        """Return the number of fields that are read."""
        return len(training.keys) * len(training.task.channels)

    def count_pieces(self, training: TrainingForecasts, at_once: int) -> int:
        """Return the number of pieces that `compute` yields."""
        return len(training.task.lead_times) * len(training.task.channels)

    def compute(self, training: TrainingForecasts, at_once: int) -> Iterator[Piece]:
        """Yield each input channel at each lead time."""
        moments_of = delayed(_moments, pure=True)
        finish = delayed(self.maps, pure=True)
        for j, lead in enumerate(training.task.lead_times):
            by_year: dict[int, list[tuple[int, int]]] = {}
            for i, _, k in (key for key in training.keys if key[1] == j):
                by_year.setdefault(year_of(training.times[k]), []).append((i, j))
            for c, channel in enumerate(training.task.channels):
                fields = training.channel(
                    channel, [key for keys in by_year.values() for key in keys], member=self.member
                )
                years = [
                    merge_tree([moments_of(fields[key]) for key in keys], PartialMoments.merge)
                    for keys in by_year.values()
                ]
                ((mean, std),) = dask.compute(finish(years, training.grid.periodic))
                yield f"{channel} at {lead} h", {"mean": ((j, c), mean), "std": ((j, c), std)}

    def maps(self, years: Sequence[PartialMoments], periodic: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return the maps of mean and standard deviation from the moments of each year."""
        windows = [_window_moments(year, self.window_cells) for year in years]
        maps = []
        for name in ("mean_or_nan", "std"):
            pooled = np.pad(_mean([getattr(window, name) for window in windows]), self.window_cells // 2, mode="edge")
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
            # Summed in a fixed order: libraries for matrices do not promise one.
            field = sum(weight * padded[k : k + count] for k, weight in enumerate(weights)).T
        return field


def _moments(member: np.ndarray) -> PartialMoments:
    return PartialMoments.of(member, np.isfinite(member))


def _window_moments(moments: PartialMoments, window: int) -> PartialMoments:
    """Return the moments of all values in each window that lies within the field."""
    count, mean, squares = (sliding_window_view(part, (window, window)) for part in moments)
    total = count.sum((-1, -2))
    middle = (count * mean).sum((-1, -2)) / np.maximum(total, 1)
    departures = np.square(mean - middle[..., None, None]) * count + squares
    return PartialMoments(total, middle, departures.sum((-1, -2)))


def _mean(fields: Sequence[np.ndarray]) -> np.ndarray:
    """Return the mean of the fields, cell by cell without NaN; NaN where all fields are."""
    return PartialMoments.of(np.stack(fields), np.isfinite(fields)).mean_or_nan
