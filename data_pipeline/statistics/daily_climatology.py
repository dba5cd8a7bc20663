"""Climatology: mean and standard deviation of the analyses by day of the year and hour of the day."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import dask
import numpy as np
from dask.delayed import delayed

from data_pipeline.calendar import DAYS_PER_YEAR, climatology_day, days_in_window
from data_pipeline.common.checks import check_positive
from data_pipeline.statistics.statistic import (
    ROWS_OF_A_CHUNK,
    Axes,
    PartialMoments,
    Piece,
    check_window,
    merge_tree,
    variable_names,
)
from data_pipeline.statistics.training_forecasts import TrainingForecasts, latitude_bands


@dataclass(frozen=True)
class DailyClimatology:
    """`mean` and `std` of the targets' analyses, (variable, hour, day, latitude, longitude).

    One map for each day of the year and hour of the day at which a training forecast is valid. A map is taken over the
    analyses that verify a training forecast at that hour, in a window of `window_days` around that day, across the turn
    of the year. The standard deviation has the divisor N; cells without a value are NaN. Latitudes are processed in
    bands, so that memory stays near `memory_bytes`.
    """

    window_days: int = 31
    memory_bytes: int = 2_000_000_000

    name: ClassVar[str] = "climatology"

    def __post_init__(self) -> None:
        check_window("climatology.window_days", self.window_days, DAYS_PER_YEAR)
        check_positive("climatology.memory_bytes", self.memory_bytes)

    def axes(self, training: TrainingForecasts) -> Axes:
        """Return the dimensions and coordinates of the computed variables."""
        calendar = _calendar(training)
        dimensions = ("variable", "hour", "day", "latitude", "longitude")
        return {"mean": dimensions, "std": dimensions}, {
            "variable": variable_names(training.task.targets),
            "hour": sorted(calendar),
            "day": sorted({day for days in calendar.values() for day in days}),
        }

    def count_fields(self, training: TrainingForecasts) -> int:
        """Return the number of fields that are read."""
        return len({k for _, _, k in training.keys}) * len(training.task.targets)

    def count_pieces(self, training: TrainingForecasts, at_once: int) -> int:
        """Return the number of pieces that `compute` yields."""
        bands = sum(len(self._bands(training, list(days), at_once)) for days in _calendar(training).values())
        return len(training.task.targets) * bands

    def compute(self, training: TrainingForecasts, at_once: int) -> Iterator[Piece]:
        """Yield each target at each hour in each band of latitudes."""
        moments_of, finish = delayed(_moments, pure=True), delayed(_maps, pure=True)
        all_days = self.axes(training)[1]["day"]
        for v, variable in enumerate(training.task.targets):
            for h, (hour, positions) in enumerate(sorted(_calendar(training).items())):
                days = sorted(positions)
                at = [k for k, day in enumerate(all_days) if day in positions]
                for rows in self._bands(training, days, at_once):
                    # Each day is read once and used in all windows that contain it.
                    fields = training.truth(variable, [k for day in days for k in positions[day]], rows)
                    parts = [[moments_of(fields[k]) for k in positions[day]] for day in days]
                    moments = [merge_tree(part, PartialMoments.merge) for part in parts]
                    windows = [[moments[k] for k in days_in_window(days, day, self.window_days)] for day in days]
                    maps_of_days = dask.compute(*(finish(window) for window in windows))
                    index = (v, h, at, rows)
                    yield (
                        f"{variable} at {hour:02} UTC, rows {rows.start + 1} to {rows.stop}",
                        {
                            name: (index, np.stack([maps[k] for maps in maps_of_days]))
                            for k, name in enumerate(("mean", "std"))
                        },
                    )

    def _bands(self, training: TrainingForecasts, days: Sequence[int], at_once: int) -> list[slice]:
        height, width = training.grid.shape
        neighbours = max(len(days_in_window(days, day, self.window_days)) for day in days)
        # In double precision: three arrays of moments per day, copies of them in each thread, and the result.
        doubles = 3 * neighbours * (1 + 4 * at_once) + 2 * len(days)
        return latitude_bands(height, 8 * width * doubles, self.memory_bytes, ROWS_OF_A_CHUNK)


def _calendar(training: TrainingForecasts) -> dict[int, dict[int, list[int]]]:
    """Return the positions of the analyses that verify training forecasts, by hour and day of the year."""
    positions = sorted({k for _, _, k in training.keys})
    times = training.times[positions]
    hours = (times - times.astype("datetime64[D]")) // np.timedelta64(1, "h")
    calendar: dict[int, dict[int, list[int]]] = {}
    for k, hour, day in zip(positions, hours.tolist(), climatology_day(times).tolist(), strict=True):
        calendar.setdefault(hour, {}).setdefault(day, []).append(k)
    return calendar


def _moments(field: np.ndarray) -> PartialMoments:
    return PartialMoments.of(field[None], np.isfinite(field))


def _maps(window: Sequence[PartialMoments]) -> tuple[np.ndarray, np.ndarray]:
    moments = PartialMoments.merge(window)
    return moments.mean_or_nan.astype(np.float32), moments.std.astype(np.float32)
