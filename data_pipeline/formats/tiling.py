"""Tiling: join the time intervals of fields into a wanted interval, such as 24 hourly amounts of rain into a day."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple


class TimeInterval(NamedTuple):
    """The interval of one field, from `begin` to `end` (minutes), of the forecast that started at `start`."""

    begin: int
    end: int
    start: int


Terms = tuple[tuple[int, int], ...]
"""Positions of spans with their sign: 1 if a span is added, -1 if it is subtracted."""


@dataclass(frozen=True)
class Tiling:
    """Finds the fewest `spans` that make up an interval.

    With `differences`, an amount since the start of a forecast less an earlier one of the same forecast is an amount
    too. Maxima and minima have no differences.
    """

    spans: tuple[TimeInterval, ...]
    differences: bool

    def find(self, begin: int, end: int) -> Terms | None:
        """Return the spans that add up to the interval from `begin` to `end`, latest first; None if there are none.

        Dijkstra's algorithm from `end` back to `begin`; the cost is the number of fields to read. Of several solutions,
        the one from later starts is taken, which are closer to the truth.

        >>> hourly = Tiling((TimeInterval(0, 60, 0), TimeInterval(60, 120, 0)), differences=True)
        >>> hourly.find(0, 120)
        ((1, 1), (0, 1))
        >>> since_start = Tiling((TimeInterval(0, 60, 0), TimeInterval(0, 120, 0)), differences=True)
        >>> since_start.find(60, 120)
        ((1, 1), (0, -1))
        """
        if (terms := self._only_way(begin, end)) is not None:
            return terms
        queue: list[tuple[int, int, int, Terms]] = [(0, 0, end, ())]
        reached = set()
        while queue:
            cost, age, time, terms = heapq.heappop(queue)
            if time == begin:
                return terms
            if time in reached:
                continue
            reached.add(time)
            for earlier, added in self._steps(time, begin):
                if earlier not in reached:
                    older = age - sum(self.spans[k].start for k, _ in added)
                    heapq.heappush(queue, (cost + len(added), older, earlier, terms + added))
        return None

    def _only_way(self, begin: int, end: int) -> Terms | None:
        """Return the spans from `end` back to `begin` if a single one ends at every time on the way.

        Twenty years of hourly amounts are joined into days in 6 s this way, in 18 s by the search alone.
        """
        time, terms = end, []
        while time > begin:
            here = self._by_end.get(time, ())
            if len(here) != 1 or self.spans[here[0]].begin < begin:
                return None
            terms.append((here[0], 1))
            time = self.spans[here[0]].begin
        return tuple(terms)

    def _steps(self, time: int, floor: int) -> Iterator[tuple[int, Terms]]:
        """Yield the times from which one span, or the difference of two, leads to `time`; none before `floor`."""
        for k in self._by_end.get(time, ()):
            span = self.spans[k]
            if span.begin >= floor:
                yield span.begin, ((k, 1),)
            elif self.differences:
                for other in self._by_begin[span.start, span.begin]:
                    if floor <= self.spans[other].end < time:
                        yield self.spans[other].end, ((k, 1), (other, -1))

    @cached_property
    def _by_end(self) -> dict[int, list[int]]:
        found = defaultdict(list)
        for k, span in enumerate(self.spans):
            if span.begin < span.end:
                found[span.end].append(k)
        return dict(found)

    @cached_property
    def _by_begin(self) -> dict[tuple[int, int], list[int]]:
        found = defaultdict(list)
        for k, span in enumerate(self.spans):
            found[span.start, span.begin].append(k)
        return dict(found)
