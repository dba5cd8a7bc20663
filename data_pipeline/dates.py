"""Dates: sets of days of valid time, such as the days of one split; and the days of a climatology."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, timedelta

import numpy as np

from data_pipeline.common.errors import InputError

Span = tuple[date, date]
"""First and last day, both included."""
DAY = timedelta(days=1)


@dataclass(frozen=True)
class Dates:
    """The days of `spans` without the days of `excluded`; forecasts that are valid on these days belong to the dates.

    `excluded` holds days that are too close to another split. Spans are sorted, and adjacent spans are joined.

    >>> print(Dates.of_years([2016, 2017, 2019]))
    2016-2017 and 2019
    """

    spans: tuple[Span, ...]
    excluded: tuple[Span, ...] = ()

    def __post_init__(self) -> None:
        for name in ("spans", "excluded"):
            object.__setattr__(self, name, _joined(getattr(self, name)))

    @classmethod
    def of_years(cls, years: Iterable[int]) -> Dates:
        """Return all days of calendar years."""
        return cls(tuple((date(year, 1, 1), date(year, 12, 31)) for year in years))

    @classmethod
    def of(cls, given: Dates | Iterable[int]) -> Dates:
        """Return `given` dates as they are; return all days of `given` years."""
        return given if isinstance(given, Dates) else cls.of_years(given)

    @classmethod
    def of_times(cls, times: np.ndarray) -> Dates:
        """Return the days on which at least one of `times` (datetime64, any shape) lies.

        >>> print(Dates.of_times(np.array(["2016-01-01T12", "2016-01-02", "2016-01-05"], "datetime64[s]")))
        2016-01-01 to 2016-01-02 and 2016-01-05 to 2016-01-05
        """
        days = np.unique(times.astype("datetime64[D]"))
        ends = np.flatnonzero(np.diff(days) > np.timedelta64(1, "D")) + 1
        runs = [run for run in np.split(days, ends) if len(run)]
        return cls(tuple((run[0].item(), run[-1].item()) for run in runs))

    @classmethod
    def all(cls) -> Dates:
        """Return all days."""
        return cls(((date.min, date.max),))

    @property
    def days(self) -> Dates:
        """The same dates, with the excluded days removed from `spans`."""
        return Dates(_difference(self.spans, self.excluded))

    @property
    def years(self) -> tuple[int, ...]:
        """All calendar years that contain at least one of the days, increasing."""
        return tuple(sorted({year for first, last in self.days.spans for year in range(first.year, last.year + 1)}))

    def contains(self, times: np.ndarray) -> np.ndarray:
        """Return which times (datetime64, any shape) are on one of the days."""
        return _inside(times, self.spans) & ~_inside(times, self.excluded)

    def excludes(self, times: np.ndarray) -> np.ndarray:
        """Return which times are in one of the spans but on an excluded day."""
        return _inside(times, self.spans) & _inside(times, self.excluded)

    def covers(self, other: Dates) -> bool:
        """Whether all days of `other` are among these days."""
        return not other.without(self).spans

    def without(self, other: Dates) -> Dates:
        """Return these days without the days of `other`."""
        return Dates(_difference(self.days.spans, other.days.spans))

    def first_not_in(self, other: Dates) -> date | None:
        """Return the first of these days that `other` lacks; None if there is none."""
        left = self.without(other).spans
        return left[0][0] if left else None

    def first_shared(self, other: Dates) -> date | None:
        """Return the first day that both dates have; None if there is none."""
        shared = self.without(self.without(other)).spans
        return shared[0][0] if shared else None

    def to_json(self) -> list[list[str]]:
        """Return first and last day of each span without excluded days, as text such as 2018-10-31."""
        return [[first.isoformat(), last.isoformat()] for first, last in self.days.spans]

    @classmethod
    def from_json(cls, values: Iterable[tuple[str, str]]) -> Dates:
        """Return dates from the values of `to_json`."""
        return cls(tuple((date.fromisoformat(first), date.fromisoformat(last)) for first, last in values))

    def __str__(self) -> str:
        if self.spans == ((date.min, date.max),):
            return "all dates"
        return " and ".join(_text(first, last) for first, last in self.spans) or "no date"


def parse_span(name: str, given: object) -> Span:
    """Return the first and last day of `[2018, 2019]` (years) or `[2018-01-01, 2018-10-31]` (dates).

    >>> parse_span("data.split.train", ["2018-01-01", 2018])
    (datetime.date(2018, 1, 1), datetime.date(2018, 12, 31))
    """
    pair = list(given) if isinstance(given, list | tuple) else []
    try:
        if len(pair) != 2:
            raise ValueError
        first, last = (_day(value, end) for value, end in zip(pair, ("01-01", "12-31"), strict=True))
    except ValueError:
        first, last = date.max, date.min
    if first > last:
        raise InputError(
            f"{name} must be [first year, last year] or [first date, last date] such as [2018-01-01, 2018-10-31], "
            f"got {pair if pair else given!r}"
        )
    return first, last


def _day(value: object, end: str) -> date:
    if type(value) is int:
        return date.fromisoformat(f"{value:04}-{end}")
    if not isinstance(value, str) or "-" not in value:
        raise ValueError
    return date.fromisoformat(value)


def _joined(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Return sorted spans; overlapping and adjacent spans are joined."""
    found: list[Span] = []
    for first, last in sorted(spans):
        if found and (found[-1][1] == date.max or first <= found[-1][1] + DAY):
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    return tuple(found)


def _difference(spans: Iterable[Span], others: Iterable[Span]) -> tuple[Span, ...]:
    """Return the parts of `spans` that are in none of the sorted `others`."""
    found: list[Span] = []
    for first, last in spans:
        begin: date | None = first
        for other_first, other_last in others:
            if begin is None or other_last < begin or other_first > last:
                continue
            if other_first > begin:
                found.append((begin, other_first - DAY))
            begin = other_last + DAY if other_last < last else None
        if begin is not None:
            found.append((begin, last))
    return tuple(found)


def _inside(times: np.ndarray, spans: Iterable[Span]) -> np.ndarray:
    days = times.astype("datetime64[D]")
    found = np.zeros(days.shape, bool)
    for first, last in spans:
        found |= (days >= np.datetime64(first)) & (days <= np.datetime64(last))
    return found


def _text(first: date, last: date) -> str:
    if (first.month, first.day, last.month, last.day) == (1, 1, 12, 31):
        return str(first.year) if first.year == last.year else f"{first.year}-{last.year}"
    return f"{first} to {last}"


DAYS_PER_YEAR = 365


def climatology_day(times: np.ndarray) -> np.ndarray:
    """Return 1 for 1 January to 365 for 31 December, in leap years too; `predictors.day_of_year` counts to 366.

    >>> climatology_day(np.array(["2016-02-29", "2016-03-01", "2017-03-01"], "datetime64[s]"))
    array([59, 60, 60])
    """
    days, months = times.astype("datetime64[D]"), times.astype("datetime64[M]")
    year = times.astype("datetime64[Y]")
    leap = (year + 1).astype("datetime64[D]") - year.astype("datetime64[D]") == np.timedelta64(366, "D")
    day = (days - year.astype("datetime64[D]")).astype(int) + 1
    after = (months - year.astype("datetime64[M]")).astype(int) > 1
    return np.where(leap & (after | (day == 60)), day - 1, day)


def epoch_seconds(times: np.ndarray | np.datetime64) -> np.ndarray:
    """Return times as seconds since 1970."""
    return np.asarray(times).astype("datetime64[s]").astype(np.int64)
