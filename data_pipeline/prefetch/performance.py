"""Rates: from where a sample is fetched fastest, by what past reads took."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from typing import Literal, TypeVar

T = TypeVar("T")
Source = Literal["disk", "peer", "archive"]

EXPECTED: dict[Source, float] = {"disk": 2e9, "peer": 1e9, "archive": 2e8}
"""Bytes per second, until there is a measurement; memory needs none, it is always the fastest."""
MEMORY = 0.9
"""Weight of the past in the running mean."""
RECHECK = 50
"""Choices after which a source that was passed over is tried once more: a busy archive may have become idle."""


class Rates:
    """Bytes per second of every source as one thread sees it, so that contention is in the measurement."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rates: dict[Source, float] = {}
        self._passed_over: dict[Source, int] = {}

    def rate(self, source: Source) -> float:
        """Return what is known or expected of a source."""
        return self._rates.get(source, EXPECTED[source])

    def choose(self, sources: Collection[Source]) -> Source:
        """Return the fastest of `sources`; at times another, so that no measurement grows old."""
        with self._lock:
            best = max(sources, key=self.rate)
            for source in sources:
                self._passed_over[source] = 0 if source == best else self._passed_over.get(source, 0) + 1
                if self._passed_over[source] >= RECHECK:
                    self._passed_over[source] = 0
                    return source
            return best

    def timed(self, source: Source, size: int, read: Callable[[], T]) -> T:
        """Call `read`, which fetches `size` bytes, and remember how long it took."""
        began = time.perf_counter()
        result = read()
        rate = size / max(time.perf_counter() - began, 1e-9)
        if result is not None:
            with self._lock:
                past = self._rates.get(source, rate)
                self._rates[source] = MEMORY * past + (1 - MEMORY) * rate
        return result
