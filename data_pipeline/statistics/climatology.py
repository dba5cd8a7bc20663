"""Climatology: what the truth is like at a time of the year and of the day."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import dask
import numpy as np
from dask.delayed import delayed

from data_pipeline.calendar import DAYS, climatology_day, days_in_window
from data_pipeline.common.checks import check_integer, check_positive
from data_pipeline.common.errors import InputError
from data_pipeline.statistics.merging import Spread, tree
from data_pipeline.statistics.statistic import ROWS_OF_A_CHUNK, Axes, Piece, variable_names
from data_pipeline.statistics.training import Training, bands


@dataclass(frozen=True)
class Climatology:
    """`mean` and `std` of the targets' analyses, (variable, hour, day, latitude, longitude).

    For each day of the year and hour of the day on which a training forecast is valid: over the analyses of the
    training years at that hour that verify one, in a `window` of days around that day, round the turn of the year.
    The standard deviation is that of the values themselves (divisor N); NaN where there is none. At most about `memory`
    bytes are taken, by going through the latitudes in bands.
    """

    window: int = 31
    memory: int = 2_000_000_000

    name: ClassVar[str] = "climatology"

    def __post_init__(self) -> None:
        check_integer("climatology.window", self.window, 1, DAYS)
        if self.window % 2 == 0:
            raise InputError(f"climatology.window must be odd, because it has a middle; got {self.window}")
        check_positive("climatology.memory", self.memory)

    def axes(self, training: Training) -> Axes:
        """Return the dimensions of what is computed."""
        calendar = _calendar(training)
        dimensions = ("variable", "hour", "day", "latitude", "longitude")
        return {"mean": dimensions, "std": dimensions}, {
            "variable": variable_names(training.task.targets),
            "hour": sorted(calendar),
            "day": sorted({day for days in calendar.values() for day in days}),
        }

    def reads(self, training: Training) -> int:
        """Return how many fields are read."""
        return len({k for _, _, k in training.keys}) * len(training.task.targets)

    def steps(self, training: Training, at_once: int) -> int:
        """Return how many pieces `compute` yields."""
        bands = sum(len(self._bands(training, list(days), at_once)) for days in _calendar(training).values())
        return len(training.task.targets) * bands

    def compute(self, training: Training, at_once: int) -> Iterator[Piece]:
        """Yield one variable after the other for each hour and band of latitudes."""
        of_field, finish = delayed(_spread, pure=True), delayed(_maps, pure=True)
        all_days = self.axes(training)[1]["day"]
        for v, variable in enumerate(training.task.targets):
            for h, (hour, positions) in enumerate(sorted(_calendar(training).items())):
                days = sorted(positions)
                at = [k for k, day in enumerate(all_days) if day in positions]
                for rows in self._bands(training, days, at_once):
                    # Every day is read once, then merged with its neighbours.
                    fields = training.truth(variable, [k for day in days for k in positions[day]], rows)
                    spreads = [tree([of_field(fields[k]) for k in positions[day]], Spread.merge) for day in days]
                    windows = [[spreads[k] for k in days_in_window(days, day, self.window)] for day in days]
                    found = dask.compute(*(finish(window) for window in windows))
                    place = (v, h, at, rows)
                    yield (
                        f"{variable} at {hour:02} UTC, rows {rows.start + 1} to {rows.stop}",
                        {
                            name: (place, np.stack([maps[k] for maps in found]))
                            for k, name in enumerate(("mean", "std"))
                        },
                    )

    def _bands(self, training: Training, days: Sequence[int], at_once: int) -> list[slice]:
        height, width = training.grid.shape
        neighbours = max(len(days_in_window(days, day, self.window)) for day in days)
        # Doubles: the three parts of a spread per day, some copies of them in each thread, and the result.
        doubles = 3 * neighbours * (1 + 4 * at_once) + 2 * len(days)
        return bands(height, 8 * width * doubles, self.memory, ROWS_OF_A_CHUNK)


def _calendar(training: Training) -> dict[int, dict[int, list[int]]]:
    """Return the analyses that verify a training forecast, by hour and by day of the year."""
    positions = sorted({k for _, _, k in training.keys})
    times = training.times[positions]
    hours = (times - times.astype("datetime64[D]")) // np.timedelta64(1, "h")
    calendar: dict[int, dict[int, list[int]]] = {}
    for k, hour, day in zip(positions, hours.tolist(), climatology_day(times).tolist(), strict=True):
        calendar.setdefault(hour, {}).setdefault(day, []).append(k)
    return calendar


def _spread(field: np.ndarray) -> Spread:
    return Spread.of(field[None], np.isfinite(field))


def _maps(window: Sequence[Spread]) -> tuple[np.ndarray, np.ndarray]:
    spread = Spread.merge(window)
    return spread.known_mean.astype(np.float32), spread.deviation.astype(np.float32)
