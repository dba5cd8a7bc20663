"""The scores that the conformal layer would have had at the start of a forecast."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from evaluation.monitoring.monitor_state import MonitoredForecast, MonitorState, VerifiedForecast
from models.members.conformal import interval_levels, normal_scores

_Place = tuple[str, int, str]


class ShareHistory:
    """Tracked scores by target, lead time and region, as functions of time.

    Sums are kept in the order of valid times, so that a year of forecasts is added in a second.
    """

    def __init__(self, interval: float, step: float, state: MonitorState) -> None:
        self._levels, self._step = interval_levels(interval), step
        self._times: dict[_Place, list[int]] = {}
        self._sums: dict[_Place, list[np.ndarray]] = {}
        for key, one in sorted(state.verified.items(), key=lambda item: (item[0].valid, item[0])):
            self.add(key, one)

    def add(self, key: MonitoredForecast, one: VerifiedForecast) -> None:
        """Add the shares of a verified forecast in all regions."""
        for region, shares in one.cores.items():
            place = key.target, key.lead_time, region
            times, sums = self._times.setdefault(place, []), self._sums.setdefault(place, [])
            error = self._levels - shares
            position = bisect_right(times, key.valid)
            times.insert(position, key.valid)
            sums.insert(position, error + (sums[position - 1] if position else 0.0))
            for later in range(position + 1, len(sums)):
                sums[later] = sums[later] + error

    def scores_at(self, key: MonitoredForecast, region: str) -> np.ndarray:
        """Return the scores (3,) from all forecasts of the target and lead time that `key` starts after."""
        place = key.target, key.lead_time, region
        position = bisect_right(self._times.get(place, []), key.start)
        total = self._sums[place][position - 1] if position else 0.0
        return np.asarray(normal_scores(self._levels) + self._step * total)
