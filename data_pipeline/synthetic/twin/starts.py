"""The calendar of ENS-10: reforecasts of every Monday and Thursday of 2018, each run again for past years."""

from __future__ import annotations

from datetime import date, timedelta

REFERENCE_YEAR = 2018
LEADS = 0, 24, 48
"""Hours from the start."""
FIRST = date(REFERENCE_YEAR, 1, 1)
STARTS = tuple(day for day in (FIRST + timedelta(n) for n in range(365)) if day.weekday() in (0, 3))
"""The 105 start dates."""
MOST = len(STARTS) - 1
"""The last one, 31 December, verifies in January, which belongs to another year's chain."""


def start_pairs(dates: int) -> list[tuple[date, date]]:
    """Return `dates` start dates (an even number, up to `MOST`) as pairs of neighbours all over the year.

    >>> [f"{first:%m%d} {second:%m%d}" for first, second in start_pairs(4)]
    ['0108 0111', '0709 0712']
    """
    pairs = dates // 2
    room = MOST // pairs
    first = min(2, room - 2)
    index = [first + MOST * k // pairs for k in range(pairs)]
    return [(STARTS[k], STARTS[k + 1]) for k in index]


def days_since_new_year(day: date) -> float:
    """Return the days since 1 January of the year 2018, which all start dates are in."""
    return float((day - FIRST).days)
