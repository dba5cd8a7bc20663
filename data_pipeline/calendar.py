"""Calendar of times: the year, and the day of a climatology, which has 365 days in every year.

The day of a climatology is not the day of the year: `models.statistical.predictors.day_of_year` counts from 1 to 366.
"""

from __future__ import annotations

import numpy as np

DAYS_PER_YEAR = 365


def climatology_day(times: np.ndarray) -> np.ndarray:
    """Return 1 for 1 January to 365 for 31 December, in leap years too.

    >>> climatology_day(np.array(["2016-02-29", "2016-03-01", "2017-03-01"], "datetime64[s]"))
    array([59, 60, 60])
    """
    days, months = times.astype("datetime64[D]"), times.astype("datetime64[M]")
    year = times.astype("datetime64[Y]")
    leap = (year + 1).astype("datetime64[D]") - year.astype("datetime64[D]") == np.timedelta64(366, "D")
    day = (days - year.astype("datetime64[D]")).astype(int) + 1
    after = (months - year.astype("datetime64[M]")).astype(int) > 1
    return np.where(leap & (after | (day == 60)), day - 1, day)


def year_of(time: np.datetime64) -> int:
    """Return the calendar year of a time."""
    return int(time.astype("datetime64[Y]").astype(int)) + 1970
