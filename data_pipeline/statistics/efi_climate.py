"""The climate of the extreme forecast index: quantiles of what the model forecasts at a time of the year."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import dask
import numpy as np
from dask.delayed import delayed

from data_pipeline.calendar import climatology_day
from data_pipeline.common.checks import check_integer, check_positive
from data_pipeline.common.errors import InputError
from data_pipeline.statistics.efi import LEVELS
from data_pipeline.statistics.statistic import ROWS_OF_A_CHUNK, Axes, Piece, variable_names
from data_pipeline.statistics.training import Training, bands


@dataclass(frozen=True)
class EfiClimate:
    """`climate` of the targets' ensemble, (variable, lead_time, day, quantile, latitude, longitude).

    For each day of the year on which a training forecast starts: the quantiles 0, 0.05, ..., 1 over all years and
    members of the starts in a centred `window` of so many such days; at the turn of the year the window ends. Missing
    values count nowhere. At most about `memory` bytes are taken, by going through the latitudes in bands.
    """

    window: int = 9
    memory: int = 2_000_000_000

    name: ClassVar[str] = "efi"

    def __post_init__(self) -> None:
        check_integer("efi.window", self.window, 1, 365)
        if self.window % 2 == 0:
            raise InputError(f"efi.window must be odd, because it has a middle; got {self.window}")
        check_positive("efi.memory", self.memory)

    def axes(self, training: Training) -> Axes:
        """Return the dimensions of what is computed."""
        calendars = _calendars(training)
        dimensions = ("variable", "lead_time", "day", "quantile", "latitude", "longitude")
        return {"climate": dimensions}, {
            "variable": variable_names(training.task.targets),
            "lead_time": sorted(calendars),
            "day": sorted({day for calendar in calendars.values() for day in calendar}),
            "quantile": LEVELS,
        }

    def reads(self, training: Training) -> int:
        """Return how many fields are read."""
        return len(training.keys) * len(training.task.targets) * len(training.numbers)

    def steps(self, training: Training, at_once: int) -> int:
        """Return how many pieces `compute` yields."""
        bands = sum(len(self._bands(training, calendar, at_once)) for calendar in _calendars(training).values())
        return len(training.task.targets) * bands

    def compute(self, training: Training, at_once: int) -> Iterator[Piece]:
        """Yield one variable after the other for each lead time and band of latitudes."""
        stack, finish = delayed(_stack, pure=True), delayed(_window_quantiles, pure=True)
        all_days = self.axes(training)[1]["day"]
        reach = self.window // 2
        for v, variable in enumerate(training.task.targets):
            for j, (lead, calendar) in enumerate(sorted(_calendars(training).items())):
                days = sorted(calendar)
                at = [k for k, day in enumerate(all_days) if day in calendar]
                for rows in self._bands(training, calendar, at_once):
                    # Every start is read once and then has its part in several windows.
                    fields = training.members(variable, [key for day in days for key in calendar[day]], rows)
                    of_days = [stack([fields[key] for key in calendar[day]]) for day in days]
                    windows = [of_days[max(0, k - reach) : k + reach + 1] for k in range(len(days))]
                    found = np.stack(dask.compute(*(finish(window) for window in windows)))
                    yield (
                        f"{variable} at {lead} h, rows {rows.start + 1} to {rows.stop}",
                        {"climate": ((v, j, at, slice(None), rows), found)},
                    )

    def _bands(self, training: Training, calendar: dict[int, list[tuple[int, int]]], at_once: int) -> list[slice]:
        height, width = training.grid.shape
        of_a_day = max(len(keys) for keys in calendar.values()) * len(training.numbers)
        # The days of a window, in each thread days being read and a window as it came and sorted; then the result.
        values = of_a_day * (self.window + at_once * (2 + 2 * self.window)) + 2 * len(calendar) * len(LEVELS)
        return bands(height, 4 * width * values, self.memory, ROWS_OF_A_CHUNK)


def quantiles(values: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Return the quantiles (Q, ...) of the values (N, ...) that are not NaN, cell by cell, linear between values."""
    count, shape = len(values), values.shape[1:]
    ordered = np.ascontiguousarray(values.reshape(count, -1).T)
    ordered.sort(axis=1)  # NaN comes last
    last = np.isfinite(ordered).sum(1) - 1
    out = np.empty((len(levels), len(ordered)), np.float32)
    cells = np.arange(len(ordered))
    for k, level in enumerate(levels):
        position = level * last
        below = np.floor(position).astype(np.int64)
        above = np.minimum(below + 1, last)
        low, high = ordered[cells, below], ordered[cells, above]
        out[k] = low + (position - below) * (high.astype(np.float64) - low)
    return out.reshape(len(levels), *shape)


def _calendars(training: Training) -> dict[int, dict[int, list[tuple[int, int]]]]:
    """Return the positions (start, lead time) of the training forecasts by lead time and day of the start."""
    days = climatology_day(training.starts).tolist()
    calendars: dict[int, dict[int, list[tuple[int, int]]]] = {}
    for i, j, _ in training.keys:
        calendars.setdefault(training.task.lead_times[j], {}).setdefault(days[i], []).append((i, j))
    return calendars


def _stack(members: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(members)


def _window_quantiles(days: Sequence[np.ndarray]) -> np.ndarray:
    return quantiles(np.concatenate(days), LEVELS)
