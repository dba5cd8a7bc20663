"""Control charts: show when a daily score leaves the level of its reference period, with known false alarms.

A chart smooths the daily values, in standard deviations of the reference period, by an exponentially weighted moving
average (EWMA; Roberts 1959, doi:10.1080/00401706.1959.10489860). It gives an alarm while the average is beyond a limit.

Scores of weather forecasts are autocorrelated, and the reference period is short. Both make the textbook's limit too
low (Lu & Reynolds 1999, doi:10.1080/00224065.1999.11979925; Jones, Champ & Rigdon 2001,
doi:10.1198/004017001750386279). So each limit is found by simulation: AR(1) series of the estimated autocorrelation
have a reference period of the same length, from which mean and standard deviation are estimated as from the data. The
autocorrelation of each simulated series is drawn from the uncertainty of its estimate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

SMOOTHING = 0.1
"""Weight of the newest day in the moving average: its memory is about 10 days."""
SERIES = 10_000
"""Simulated series for each limit: a chance of 1 % is then known to 0.1 %."""
GRID = 0.05
"""Autocorrelations are rounded up to multiples of this number, so that charts share simulations."""
LARGEST = 0.98
CAUTION = (0.5, 1.2)
"""Mean and standard deviation of the true autocorrelation about its estimate, in standard errors. With (0, 1), series
with the autocorrelation 0.9 and a reference of 90 days had twice as many false alarms as promised: few days often show
too little correlation, and the chance of an alarm rises steeply with it."""


@dataclass(frozen=True)
class ControlChart:
    """The chart of one daily statistic; `days` are datetime64[D], of which the first `reference` are the reference.

    `values` have the units of the statistic. `average` is in standard deviations of the reference period, and NaN in
    this period. An average above `limit`, or below `-limit` if `two_sided`, is an alarm.
    """

    days: np.ndarray
    values: np.ndarray
    reference: int
    mean: float
    deviation: float
    correlation: float
    average: np.ndarray
    limit: float
    two_sided: bool

    @property
    def exceeded(self) -> np.ndarray:
        """Whether each day is beyond the limit."""
        beyond = np.abs(self.average) if self.two_sided else self.average
        return np.asarray(np.nan_to_num(beyond, nan=-np.inf) > self.limit)

    @property
    def alarm(self) -> bool:
        """Whether the newest day is beyond the limit."""
        return bool(len(self.days) and self.exceeded[-1])

    @property
    def since(self) -> np.datetime64 | None:
        """The first day of the present alarm."""
        if not self.alarm:
            return None
        inside = np.flatnonzero(~self.exceeded)
        return np.datetime64(self.days[int(inside[-1]) + 1 if len(inside) else 0], "D")

    @property
    def recent(self) -> float:
        """The newest average in units of the limit, with its sign."""
        return float(self.average[-1] / self.limit)


def control_chart(
    days: np.ndarray, values: np.ndarray, reference: int, chance: float, horizon: int, *, two_sided: bool
) -> ControlChart | None:
    """Return the chart of daily `values`; None if there is no day after the first `reference` days.

    With unchanged scores, an alarm within the first `horizon` values has the probability `chance`.
    """
    if len(days) <= reference or reference < 3:
        return None
    own = values[:reference]
    mean, deviation = float(own.mean()), float(own.std(ddof=1))
    if not deviation > 0:
        return None
    correlation = autocorrelation(days[:reference], own)
    average = np.full(len(values), np.nan)
    average[reference:] = moving_average((values[reference:] - mean) / deviation)
    one, two = control_limits(round_up(correlation), reference, horizon, chance)
    return ControlChart(
        days, values, reference, mean, deviation, correlation, average, two if two_sided else one, two_sided
    )


def moving_average(series: np.ndarray) -> np.ndarray:
    """Return the EWMA of a series (n, ...) along its first axis, with 0 as the value before the series."""
    found = np.empty_like(series, dtype=float)
    last = np.zeros(series.shape[1:])
    for k, value in enumerate(series):
        last = (1 - SMOOTHING) * last + SMOOTHING * value
        found[k] = last
    return found


def autocorrelation(days: np.ndarray, values: np.ndarray) -> float:
    """Return the correlation of neighbouring days, from 0 to 0.98, without the bias of short series.

    Neighbours are consecutive days whose distance is at most the median distance. The bias is -(1 + 3r)/n (Kendall
    1954, doi:10.1093/biomet/41.3-4.403).
    """
    n = len(values)
    if n < 4:
        return 0.0
    gaps = np.diff(days).astype("timedelta64[D]").astype(int)
    near = gaps <= np.median(gaps)
    anomaly = values - values.mean()
    square = float((anomaly**2).mean())
    if square == 0:
        return 0.0
    found = float((anomaly[1:] * anomaly[:-1])[near].mean()) / square
    return min(max((found * n + 1) / (n - 3), 0.0), LARGEST)


def round_up(correlation: float) -> float:
    """Return the next multiple of `GRID`, at most `LARGEST`."""
    return min(round(math.ceil(round(correlation / GRID, 6)) * GRID, 6), LARGEST)


def chance_of_chart(charts: int) -> float:
    """Return the chance of a false alarm of a single one of K charts within T, the mean time between all false alarms.

    The time to the first false alarm of a chart is taken as exponential with the mean K T. Together, K independent
    charts then give one false alarm per T on average; correlated charts give fewer.
    """
    return -math.expm1(-1 / max(charts, 1))


@lru_cache(maxsize=256)
def control_limits(correlation: float, reference: int, horizon: int, chance: float) -> tuple[float, float]:
    """Return the limit of a one-sided and of a two-sided chart.

    Within `horizon` values after `reference` values, an AR(1) series crosses the limit with the probability `chance`.
    """
    rng = np.random.default_rng([reference, horizon, round(1000 * correlation)])
    error = math.sqrt((1 - correlation**2) / reference)
    r = np.clip(correlation + error * (CAUTION[0] + CAUTION[1] * rng.normal(size=SERIES)), 0, LARGEST)
    step = np.sqrt(1 - r**2)
    series = rng.normal(size=SERIES)
    total, squares = np.zeros(SERIES), np.zeros(SERIES)
    for _ in range(reference):
        total += series
        squares += series**2
        series = r * series + step * rng.normal(size=SERIES)
    mean = total / reference
    deviation = np.sqrt((squares - reference * mean**2) / (reference - 1))
    average, highest, lowest = (np.zeros(SERIES) for _ in range(3))
    for _ in range(horizon):
        average = (1 - SMOOTHING) * average + SMOOTHING * (series - mean) / deviation
        np.maximum(highest, average, out=highest)
        np.minimum(lowest, average, out=lowest)
        series = r * series + step * rng.normal(size=SERIES)
    # One side of a symmetric chart: both sides of the same series double the sample.
    one = float(np.quantile(np.concatenate([highest, -lowest]), 1 - chance))
    return one, float(np.quantile(np.maximum(highest, -lowest), 1 - chance))
