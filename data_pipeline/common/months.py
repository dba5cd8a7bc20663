"""Times that are counted in calendar months."""

from __future__ import annotations

import numpy as np

LAST_DAY = 28
"""The last day that every month has."""


def add_months(seconds: np.ndarray | int, months: np.ndarray | int) -> np.ndarray:
    """Return dates (seconds since 1970) that are whole months later, on the same day of the month.

    Raises `ValueError` for days after the 28th, which some months lack.

    >>> starts = np.array(["2021-01-01", "2021-02-01"], "datetime64[s]").astype(int)
    >>> (add_months(starts, 1) - starts) // 3600
    array([744, 672])
    """
    dates = np.asarray(seconds, np.int64).astype("datetime64[s]")
    first = dates.astype("datetime64[M]")
    if (dates - first >= np.timedelta64(LAST_DAY, "D")).any():
        raise ValueError(f"some months lack days after the {LAST_DAY}th")
    later = (first + np.asarray(months, np.int64)).astype("datetime64[s]") + (dates - first)
    return np.asarray(later.astype(np.int64))
