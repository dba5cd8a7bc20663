"""The line that tells how many forecasts are scored, and how long the rest takes."""

from __future__ import annotations

import time


class ScoringProgress:
    """Prints a line after the first batch, and then every few seconds; `done` forecasts were scored by an earlier run.

    The time left does not count the first batch, in which loops are compiled and caches are filled, once there are two.
    """

    def __init__(self, total: int, done: int = 0, every: float = 5.0) -> None:
        self._total, self._every = total, every
        self._since, self._from = time.monotonic(), done
        self._last: float | None = None
        if done:
            print(f"{done} of {total} forecasts were scored by an earlier run", flush=True)

    def show(self, done: int) -> None:
        """Print the progress if forecasts are left and the last line is old enough."""
        now = time.monotonic()
        if done < self._total and (self._last is None or now - self._last >= self._every):
            left = (now - self._since) / max(1, done - self._from) * (self._total - done)
            print(f"scored {done} of {self._total} forecasts, about {left:.0f} s left", flush=True)
            if self._last is None:
                self._since, self._from = now, done
            self._last = now
