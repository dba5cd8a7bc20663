"""The extreme forecast index (EFI), which compares an ensemble with the climate of its model, and this climate.

    EFI = 2/π ∫ (p - F(p)) / √(p (1 - p)) dp    over p from 0 to 1

where F(p) is the fraction of the members below the quantile p of the climate. The index is 1 if all members lie above
the climate, -1 if all lie below it, and 0 if members and climate have the same distribution (Lalaurette 2003,
doi:10.1256/qj.02.152).

Where the climate is partly dry, the integral is over its wet part only, as at ECMWF: with p₀ the probability of values
up to `Variable.trace`,

    EFI = ∫ (p - F(p)) / √(p (1 - p)) dp  /  ∫ p / √(p (1 - p)) dp    over p from p₀ to 1

For p₀ = 0 the two formulas agree. Where the whole climate is dry, the index is 0 for any members.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from data_pipeline.common.checks import check_positive
from data_pipeline.common.errors import InputError
from data_pipeline.dates import climatology_day
from data_pipeline.statistics.statistic import ROWS_OF_A_CHUNK, Axes, Piece, check_window, variable_names
from data_pipeline.statistics.training_forecasts import TrainingForecasts, latitude_bands
from data_pipeline.task import Variable

REFERENCE_PROBABILITIES = np.linspace(0, 1, 21)
"""Probabilities of the quantiles that the form `reference` reads."""
_TAIL = np.array([0.001, 0.0025, 0.005, 0.01, 0.02, 0.03])
CLIMATE_PROBABILITIES = np.sort(np.concatenate([REFERENCE_PROBABILITIES, _TAIL, 1 - _TAIL]))
"""Probabilities of the climate's quantiles; they are close together in the tails, where the index has large weights."""
CROSSING_LEVELS = np.union1d(np.linspace(0, 1, 101), [0.001, 0.0025, 0.005, 0.995, 0.9975, 0.999])
"""Levels of the climate between which a crossing point is interpolated: ECMWF's percentiles, and more in the tails."""
LARGEST_SHIFT = 10.0
"""Shifts of tails are cut off at ± this value, as at ECMWF."""

Form = Literal["reference", "exact"]


def traces(targets: Sequence[Variable]) -> np.ndarray:
    """Return the argument `eps` of the index, (T, 1, 1), for fields (..., T, H, W) of targets."""
    return np.array([target.trace for target in targets])[:, None, None]


def extreme_forecast_index(
    members: np.ndarray,
    climate: np.ndarray,
    form: Form = "exact",
    eps: float | np.ndarray = -np.inf,
    probabilities: np.ndarray | None = None,
) -> np.ndarray:
    """Return the index (...) of the members (M, ...) against quantiles of the climate (Q, ...).

    `probabilities` (Q,) of the quantiles are evenly spaced from 0 to 1 by default. The form `exact` integrates with F
    linear between the quantiles; the part of the climate between two quantiles counts if the upper quantile is above
    `eps`. Of members that equal a quantile above `eps`, which is common for rounded values, half count as below it. The
    form `reference` is the rectangle rule over the quantiles 0.05, 0.1, ..., 0.95 with F from quantiles of the
    ensemble, as in ENS-10 (Ashkboos et al. 2022, arXiv:2206.14786); it stays within ±0.7914 and ignores `eps`. The
    index is NaN where a member or a quantile is NaN.

    >>> climate = np.linspace(0, 1, 21)[:, None]
    >>> extreme_forecast_index(np.array([[2.0], [3.0]]), climate).round(6)
    array([1.])
    """
    if form not in ("reference", "exact"):
        raise InputError(f"the form of the EFI must be reference or exact, got {form!r}")
    if len(climate) < 3 or members.shape[1:] != climate.shape[1:]:
        raise ValueError(f"members {members.shape} and quantiles {climate.shape} differ in shape after the first axis")
    probabilities = np.linspace(0, 1, len(climate)) if probabilities is None else probabilities
    if form == "exact":
        below = ((members < quantile).mean(0) for quantile in climate)
        equal = ((members == quantile).mean(0) for quantile in climate)
        index = index_of_shares(below, equal, (climate > eps).astype(float), probabilities)
    else:
        index = _reference(members, climate[reference_places(probabilities)])
    return np.where(np.isfinite(members).all(0) & np.isfinite(climate).all(0), index, np.nan)


def index_of_shares(below: Iterable[Any], equal: Iterable[Any], wet: Iterable[Any], probabilities: np.ndarray) -> Any:
    """Return the index (...) from the shares of members `below` and `equal` to each of Q quantiles of a climate.

    `wet` is 1.0 where the quantile is above eps, else 0.0. Shares may be numbers, or arrays of NumPy or PyTorch.

    Members that equal a dry quantile count fully as below the wet part of the climate; members that equal a wet
    quantile count by half.
    """
    whole, lower, upper = interval_weights(probabilities)
    index = largest = before = 0.0
    for k, (low, tied, counts) in enumerate(zip(below, equal, wet, strict=True)):
        if k:
            index = index + counts * (whole[k - 1] - lower[k - 1] * before - upper[k - 1] * (low + tied / 2))
            largest = largest + counts * whole[k - 1]
        before = low + tied * (1 - counts / 2)
    return index / (largest + (largest == 0))


def crossing_of_shares(share: Callable[[int], Any]) -> Any:
    """Return the crossing point (...): the level at which the forecast's quantile function crosses the climate's.

    `share(k)` is the forecast's probability of values up to the quantile k of the climate at `CROSSING_LEVELS`, an
    array of NumPy or PyTorch. It is the most extreme level of the climate whose probability is higher in the forecast
    than in the climate (Ben Bouallègue 2021). A forecast whose median is above the climate's has the first crossing
    above the level 0.5, or 1 without one; the others have the last crossing below 0.5, or 0 (ECMWF's symmetric form).
    """
    levels = CROSSING_LEVELS.tolist()
    half = len(levels) // 2
    high = _first_crossing((levels[k] - share(k) for k in range(half, len(levels))), levels[half:])
    low = 1 - _first_crossing((share(k) - levels[k] for k in range(half, -1, -1)), levels[half:])
    median = share(half)
    return low + (high - low) * (median <= levels[half]) + 0 * median


def _first_crossing(excess: Iterable[Any], levels: Sequence[float]) -> Any:
    """Return the first of rising levels at which the excess is no longer positive; 1 without one."""
    found, before, open_still = 1.0, 1.0, True
    for k, value in enumerate(excess):
        part = before / (before - value + (before == value)) if k else 0.0
        level = levels[k - 1] + part * (levels[k] - levels[k - 1]) if k else levels[0]
        found = found + (level - 1) * (open_still & (value <= 0))
        before, open_still = value, open_still & (value > 0)
    return found


def interval_weights(probabilities: np.ndarray) -> tuple[list[float], list[float], list[float]]:
    """Return 2/π ∫ G(p) / √(p (1 - p)) dp over each interval, for G = p, and G falling from 1 to 0 or rising to 1.

    ∫ dp / √(p (1 - p)) = 2 arcsin √p and ∫ p dp / √(p (1 - p)) = arcsin √p - √(p (1 - p)).
    """
    p = np.asarray(probabilities, float)
    angle = np.arcsin(np.sqrt(p))
    constant, linear = np.diff(2 * angle), np.diff(angle - np.sqrt(p * (1 - p)))
    rising = (linear - p[:-1] * constant) / np.diff(p)
    return tuple((2 / np.pi * part).tolist() for part in (linear, constant - rising, rising))


def reference_places(probabilities: np.ndarray) -> list[int]:
    """Return the positions of `REFERENCE_PROBABILITIES` in `probabilities`; raise `InputError` if one is absent."""
    distance = np.abs(np.asarray(probabilities)[:, None] - REFERENCE_PROBABILITIES)
    if distance.min(0).max() > 1e-6:
        raise InputError("the EFI in the form reference needs the quantiles 0, 0.05, ..., 1 of the climate")
    places: list[int] = distance.argmin(0).tolist()
    return places


def _reference(members: np.ndarray, climate: np.ndarray) -> np.ndarray:
    count = len(climate)
    probabilities = np.linspace(0, 1, count)
    own = np.quantile(members, probabilities, axis=0)[:-1]
    index = np.zeros(members.shape[1:])
    for p, quantile in zip(probabilities[1:-1], climate[1:-1], strict=True):
        below = (own < quantile).sum(0) / (count - 1)
        index += (p - below) / np.sqrt(p * (1 - p))
    return 2 / np.pi / (count - 1) * index


@dataclass(frozen=True)
class EfiClimate:
    """The statistic `climate` of the targets' ensemble, (variable, lead_time, day, quantile, latitude, longitude).

    For each day of the year on which training forecasts start, it holds quantiles at `CLIMATE_PROBABILITIES` of all
    members in all years, over a centred window of `window_starts` such days. Windows end at the turn of the year.
    Missing values are ignored. Latitudes are processed in bands, so that memory stays near `memory_bytes`.
    """

    window_starts: int = 9
    memory_bytes: int = 2_000_000_000

    name: ClassVar[str] = "efi"
    precision: ClassVar[type] = np.float32

    def __post_init__(self) -> None:
        check_window("efi.window_starts", self.window_starts, 365)
        check_positive("efi.memory_bytes", self.memory_bytes)

    def axes(self, training: TrainingForecasts) -> Axes:
        """Return the dimensions and coordinates of the computed variable."""
        calendars = _calendars(training)
        dimensions = ("variable", "lead_time", "day", "quantile", "latitude", "longitude")
        return {"climate": dimensions}, {
            "variable": variable_names(training.task.targets),
            "lead_time": sorted(calendars),
            "day": sorted({day for calendar in calendars.values() for day in calendar}),
            "quantile": CLIMATE_PROBABILITIES,
        }

    def count_fields(self, training: TrainingForecasts) -> int:
        """Return the number of fields that are read."""
        return len(training.keys) * len(training.task.targets) * len(training.inputs.numbers)

    def count_pieces(self, training: TrainingForecasts, at_once: int) -> int:
        """Return the number of pieces that `compute` yields."""
        bands = sum(len(self._bands(training, calendar, at_once)) for calendar in _calendars(training).values())
        return len(training.task.targets) * bands

    def compute(self, training: TrainingForecasts, at_once: int) -> Iterator[Piece]:
        """Yield one piece for each target, lead time and band of latitudes."""
        import dask
        from dask.delayed import delayed

        stack, finish = delayed(_stack, pure=True), delayed(_window_quantiles, pure=True)
        all_days = self.axes(training)[1]["day"]
        reach = self.window_starts // 2
        for v, variable in enumerate(training.task.targets):
            for j, (lead, calendar) in enumerate(sorted(_calendars(training).items())):
                days = sorted(calendar)
                at = [k for k, day in enumerate(all_days) if day in calendar]
                for rows in self._bands(training, calendar, at_once):
                    # Each start is read once and used in all windows that contain it.
                    fields = training.members(v, [key for day in days for key in calendar[day]], rows)
                    of_days = [stack([fields[key] for key in calendar[day]]) for day in days]
                    windows = [of_days[max(0, k - reach) : k + reach + 1] for k in range(len(days))]
                    climate = np.stack(dask.compute(*(finish(window) for window in windows)))
                    yield (
                        f"{variable} at {lead} h, rows {rows.start + 1} to {rows.stop}",
                        {"climate": ((v, j, at, slice(None), rows), climate)},
                    )

    def _bands(
        self, training: TrainingForecasts, calendar: dict[int, list[tuple[int, int]]], at_once: int
    ) -> list[slice]:
        height, width = training.grid.shape
        of_a_day = max(len(keys) for keys in calendar.values()) * len(training.inputs.numbers)
        # The days of a window; in each thread, days being read and a window before and after sorting; the result.
        values = of_a_day * (self.window_starts + at_once * (2 + 2 * self.window_starts)) + 2 * len(calendar) * len(
            CLIMATE_PROBABILITIES
        )
        return latitude_bands(height, 4 * width * values, self.memory_bytes, ROWS_OF_A_CHUNK)


def quantiles(values: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """Return the quantiles (Q, ...) of the values (N, ...) in each cell, linear between values; NaN is ignored."""
    count, shape = len(values), values.shape[1:]
    ordered = np.ascontiguousarray(values.reshape(count, -1).T)
    ordered.sort(axis=1)  # NaN last
    last = np.isfinite(ordered).sum(1) - 1
    out = np.empty((len(probabilities), len(ordered)), np.float32)
    cells = np.arange(len(ordered))
    for k, probability in enumerate(probabilities):
        position = probability * last
        below = np.floor(position).astype(np.int64)
        above = np.minimum(below + 1, last)
        low, high = ordered[cells, below], ordered[cells, above]
        out[k] = low + (position - below) * (high.astype(np.float64) - low)
    return out.reshape(len(probabilities), *shape)


def _calendars(training: TrainingForecasts) -> dict[int, dict[int, list[tuple[int, int]]]]:
    """Return the positions (start, lead time) of the training forecasts by lead time and day of the start."""
    days = climatology_day(training.inputs.init_times).tolist()
    calendars: dict[int, dict[int, list[tuple[int, int]]]] = {}
    for i, j, _ in training.keys:
        calendars.setdefault(training.task.lead_times[j], {}).setdefault(days[i], []).append((i, j))
    return calendars


def _stack(members: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(members)


def _window_quantiles(days: Sequence[np.ndarray]) -> np.ndarray:
    return quantiles(np.concatenate(days), CLIMATE_PROBABILITIES)
