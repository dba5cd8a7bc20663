"""Interval: the processing over time of a message, and the time interval that its values cover.

GRIB2 states both in its product templates. GRIB1 states them in the time range indicator (WMO code table 5), with
exceptions: ECMWF writes accumulations since the start, and maxima and minima since the previous output, as if they were
instantaneous.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

import eccodes
import numpy as np

from data_pipeline.common.months import add_months
from data_pipeline.formats.grib.keys import get_text, get_whole
from data_pipeline.task import own_process
from data_pipeline.variables.meaning import INSTANT, UNKNOWN
from data_pipeline.variables.parameters import PARAMETERS

PROCESSES = {"avg": "mean", "accum": "accumulation", "max": "maximum", "min": "minimum"}
"""Processing by ecCodes' `stepType`. Other types, such as differences and variances, cannot be read."""

STATED, SINCE_START = -3, -2
"""Special values for the interval of a kind of message.

`STATED`: each message states its interval. `SINCE_START`: the interval begins at the start of the forecast. Other
values are `UNKNOWN` or the length of the interval in minutes.
"""

SINGLE_TIME, TIME_RANGE, MEAN_RANGE, ACCUMULATION, DIFFERENCE = (0, 1, 10), 2, 3, 4, 5
"""GRIB1 time range indicators (WMO code table 5)."""

MONTHLY_STREAMS = (
    "mnth", "moda", "mofm", "monr", "mdfa", "wamo", "wamd", "sfmm", "swmm", "wmfm", "mnfm", "mfhm", "mfwm", "mhwm",
    "msmm", "mswm", "mmam", "mmwm", "esmm", "ehmm", "edmm", "edmo", "ewmm", "ewmo",
)  # fmt: skip
"""Streams of MARS with means over a month or a week."""
MEAN_TYPES = {"fcmean": "mean", "fcmax": "maximum", "fcmin": "minimum", "fcstdev": "time processing sd"}
"""Types of MARS with statistics over a period whose length GRIB1 does not state."""


MISSING_UNIT = 255


class Processing(NamedTuple):
    """Processing over time and interval of a kind of message.

    `process` is one of `parameters.Process`, or another word for fields that cannot be read. `interval` is a length in
    minutes, `UNKNOWN`, `STATED` or `SINCE_START`.
    """

    process: str
    interval: int


def processing_of(handle: int, short_name: str) -> Processing:
    """Return the processing over time of an ecCodes message."""
    step_type, own = get_text(handle, "stepType", "unknown"), own_process(short_name)
    stated = PROCESSES.get(step_type, f"time processing {step_type}")
    if get_whole(handle, "edition", 2) == 2:
        if get_whole(handle, "numberOfTimeRange", 0):
            missing = step_type == "instant" and own != "instant"  # an interval without its processing
            return Processing(own if missing else stated, STATED)
        return Processing(own, UNKNOWN if own != "instant" else STATED)
    indicator = get_whole(handle, "timeRangeIndicator", 0)
    # ecCodes knows which parameters of ECMWF are accumulations, maxima and minima.
    own = PROCESSES.get(get_text(handle, "stepTypeForConversion"), own)
    data_type = get_text(handle, "dataType")
    if data_type in MEAN_TYPES:
        return Processing(MEAN_TYPES[data_type], UNKNOWN)
    if indicator in SINGLE_TIME and get_text(handle, "stream") in MONTHLY_STREAMS:
        return Processing("mean", UNKNOWN)
    if indicator in SINGLE_TIME:
        if own == "instant":
            return Processing(own, STATED)
        hours = PARAMETERS[short_name].hours if short_name in PARAMETERS else 0
        since_start = own == "accumulation" and get_text(handle, "centre") == "ecmf"
        return Processing(own, SINCE_START if since_start else hours * 60 or UNKNOWN)
    if indicator == TIME_RANGE and own != "instant":  # ecCodes takes each of these for a maximum
        return Processing(own, STATED)
    if indicator in (TIME_RANGE, MEAN_RANGE, ACCUMULATION, DIFFERENCE):
        return Processing(stated, STATED)
    # Means over several analyses or forecasts.
    return Processing("mean" if step_type.startswith("avg") else stated, UNKNOWN)


MONTH, YEAR = 3, 4
"""Units of time without a fixed length (GRIB1 table 4, GRIB2 table 4.4); ecCodes takes a month for 720 h."""
_CALENDAR_UNITS = {MONTH: ("M", 1), YEAR: ("Y", 12)}
_LONGER = (5, 6, 7)
"""Decades, 30 years and centuries."""


def _units_of_time(handle: int) -> set[int]:
    """Return the units of forecast time and interval of a message."""
    # In GRIB1, the second key describes ECMWF's monthly means, not their steps.
    keys = ("indicatorOfUnitOfTimeRange", "indicatorOfUnitForTimeRange")[: get_whole(handle, "edition", 2)]
    return {get_whole(handle, key, MISSING_UNIT) for key in keys} - {MISSING_UNIT}


def step_and_interval(handle: int, init: int) -> tuple[int, int]:
    """Return the lead time at which the step ends, and the length of the interval that ends there, in minutes.

    Months and years begin at the start `init` (seconds since 1970). The step is -1 where it cannot be converted; the
    interval is then `UNKNOWN`.
    """
    if (units := _units_of_time(handle)) & {*_CALENDAR_UNITS, *_LONGER}:
        with suppress(eccodes.CodesInternalError, ValueError, KeyError):
            letter, months = _CALENDAR_UNITS[units.pop() if len(units) == 1 else MISSING_UNIT]
            eccodes.codes_set_string(handle, "stepUnits", letter)
            steps = (eccodes.codes_get_string(handle, key).removesuffix(letter) for key in ("startStep", "endStep"))
            begin, till = (int(add_months(init, months * int(step)) - init) // 60 for step in steps)
            return till, till - begin if till >= begin else UNKNOWN
        return -1, UNKNOWN
    if get_whole(handle, "numberOfTimeRanges", 1) > 1:
        # Messages of indices have several time ranges. ecCodes prints an error when it converts their units.
        with suppress(eccodes.CodesInternalError, ValueError):
            texts = [eccodes.codes_get_string(handle, key) for key in ("startStep", "endStep")]
            start, end = (int(text.removesuffix("m")) * (1 if text.endswith("m") else 60) for text in texts)
            return end, end - start if end >= start else UNKNOWN
    for unit, minutes in (("m", 1), ("h", 60)):  # ecCodes writes a million minutes and more with six digits only
        with suppress(eccodes.CodesInternalError, ValueError):
            eccodes.codes_set_string(handle, "stepUnits", unit)
            start, end = (
                minutes * int(eccodes.codes_get_string(handle, key).removesuffix(unit))
                for key in ("startStep", "endStep")
            )
            return end, end - start if end >= start else UNKNOWN
    return -1, UNKNOWN


def meant_intervals(meant: np.ndarray, stated: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Return the interval of each message (minutes).

    `meant` is the interval of the message's kind; `stated`, from the header, replaces `STATED`; `steps` replaces
    `SINCE_START`.
    """
    intervals = np.where(meant == STATED, stated, np.where(meant == SINCE_START, steps, meant))
    return np.where((steps < 0) & (intervals != INSTANT), UNKNOWN, intervals)
