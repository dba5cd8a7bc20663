"""Daily series and control charts of the state, which show scores that have left the level of their reference."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from data_pipeline.common.errors import InputError
from evaluation.monitoring.control_chart import ControlChart, chance_of_chart, control_chart
from evaluation.monitoring.forecast_scores import RegionScores, daily_statistics
from evaluation.monitoring.monitor_state import MonitorState
from models.members.conformal import ConformalLayer, tracked_scores

CHARTED = {
    "crps": ("CRPS / expected", "logarithm of the CRPS over the CRPS that the forecast expects of itself", False),
    "bias": ("bias / spread", "mean error of the forecast's mean over its spread", True),
    "spread": ("spread / error", "logarithm of spread over error of the mean", True),
    "pit": ("central 80 %", "share of analyses whose PIT is between 0.1 and 0.9", True),
}
"""Title and definition of each charted statistic, and whether a change in either direction is drift."""
FEWEST_REFERENCE = 30
_DAY = 86_400


@dataclass(frozen=True)
class DailySeries:
    """The daily averages of one target, lead time and region; `days` are the days of the starts."""

    target: str
    lead_time: int
    region: str
    days: np.ndarray
    averages: Sequence[Mapping[str, Any]]

    def statistic(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the days and the values of a charted statistic, without days where it is not defined."""
        values = np.array([daily_statistics(one)[name] for one in self.averages])
        known = np.isfinite(values)
        return self.days[known], values[known]

    def part(self, chosen: np.ndarray) -> dict[str, Any] | None:
        """Return the averages over the `chosen` days (bool); None if there are none."""
        own = [one for one, wanted in zip(self.averages, chosen, strict=True) if wanted]
        return _mean(own) if own else None


@dataclass(frozen=True)
class Drift:
    """All series and charts; `reference` are the first and last day of the reference period, None before its end."""

    series: Sequence[DailySeries]
    charts: Mapping[tuple[str, int, str, str], ControlChart]
    """Charts by target, lead time, region and statistic."""
    reference: tuple[np.datetime64, np.datetime64] | None
    reference_days: int
    """Days that the reference period has so far."""

    @property
    def alarms(self) -> dict[tuple[str, int, str, str], ControlChart]:
        """Return the charts with an alarm, the farthest beyond its limit first."""
        found = {key: chart for key, chart in self.charts.items() if chart.alarm}
        return dict(sorted(found.items(), key=lambda item: -abs(item[1].recent)))

    def before(self, one: DailySeries) -> dict[str, Any] | None:
        """Return the averages of a series over the reference period; None without such days."""
        return one.part((one.days >= self.reference[0]) & (one.days <= self.reference[1])) if self.reference else None


def check_reference(option: object) -> int | tuple[np.datetime64, np.datetime64]:
    """Return the option `reference`: a number of days, or the first and the last day."""
    if type(option) is int:
        if option < FEWEST_REFERENCE:
            raise InputError(
                f"reference must be at least {FEWEST_REFERENCE} days, or [FIRST, LAST], got {option}: fewer days do "
                "not show the usual variation of the scores"
            )
        return option
    try:
        first, last = (np.datetime64(str(day), "D") for day in option)  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        raise InputError(
            f"reference must be a number of days, or [FIRST, LAST] such as [2019-01-01, 2019-12-31], got {option!r}"
        ) from None
    if np.isnat(first) or np.isnat(last) or first > last:
        raise InputError(f"reference: the first day {first} is after the last day {last}")
    return first, last


def find_drift(
    state: MonitorState, reference: int | tuple[np.datetime64, np.datetime64], false_alarm_days: int
) -> Drift:
    """Return the series of the state and their charts.

    The mean time between false alarms of all charts together is at least `false_alarm_days`. The reference period is
    the first `reference` days with scores, or from a first to a last day; days before it are not charted.
    """
    series = daily_series(state)
    days = days_of(series)
    if isinstance(reference, int):
        own, complete = days[:reference], len(days) > reference
    else:
        own = days[(days >= reference[0]) & (days <= reference[1])]
        complete = len(own) >= FEWEST_REFERENCE and bool((days > reference[1]).any())
        if len(own) < FEWEST_REFERENCE and (days > reference[1]).any():
            raise InputError(
                f"the reference period {reference[0]} to {reference[1]} has {len(own)} days with scores, and "
                f"{FEWEST_REFERENCE} are needed; give monitor its forecasts and analyses first, or another reference"
            )
    if not complete:
        return Drift(series, {}, None, len(own))
    first, last = own[0], own[-1]
    spacing = max(1.0, float(np.median(np.diff(own).astype(int))))
    horizon = max(1, round(false_alarm_days / spacing))
    wanted = [(one, name, *one.statistic(name)) for one in series for name in CHARTED]
    wanted = [item for item in wanted if (item[2] > last).any()]
    chance = chance_of_chart(len(wanted))
    charts = {}
    for one, name, own_days, values in wanted:
        kept = own_days >= first
        count = int((own_days[kept] <= last).sum())
        if count >= FEWEST_REFERENCE:
            chart = control_chart(own_days[kept], values[kept], count, chance, horizon, two_sided=CHARTED[name][2])
            if chart is not None:
                charts[one.target, one.lead_time, one.region, name] = chart
    return Drift(series, charts, (first, last), len(own))


def days_of(series: Sequence[DailySeries]) -> np.ndarray:
    """Return the days with scores of any series."""
    return np.unique(np.concatenate([one.days for one in series] or [np.array([], "datetime64[D]")]))


def daily_series(state: MonitorState) -> list[DailySeries]:
    """Return the averages over all forecasts that start on the same day, by target, lead time and region."""
    found: dict[tuple[str, int, str], dict[int, list[RegionScores]]] = defaultdict(lambda: defaultdict(list))
    for key, one in state.verified.items():
        for region, scores in one.regions.items():
            found[key.target, key.lead_time, region][key.start // _DAY].append(scores)
    series = []
    for (target, lead, region), by_day in sorted(found.items()):
        days = sorted(by_day)
        averages = [_mean([vars(scores) for scores in by_day[day]]) for day in days]
        series.append(DailySeries(target, lead, region, np.array(days, "datetime64[D]"), averages))
    return series


def _mean(averages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {name: np.mean([one[name] for one in averages], axis=0) for name in averages[0]}


def conformal_layer(state: MonitorState, corrector: str, interval: float, step: float) -> ConformalLayer:
    """Return the layer after all verified forecasts."""
    shares: dict[tuple[str, int], dict[str, list[np.ndarray]]] = defaultdict(lambda: defaultdict(list))
    for key, one in sorted(state.verified.items()):
        for region, found in one.cores.items():
            shares[key.target, key.lead_time][region].append(found)
    scores = {
        place: {region: tracked_scores(interval, step, np.array(found)) for region, found in regions.items()}
        for place, regions in shares.items()
    }
    counts = {place: max(len(found) for found in regions.values()) for place, regions in shares.items()}
    return ConformalLayer(corrector, interval, step, scores, counts)
