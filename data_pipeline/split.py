"""Split of the forecasts into training, validation and test, by full years of valid time."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from data_pipeline.calendar import year_of
from data_pipeline.common.errors import InputError

SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class Split:
    """First and last year of training, validation and test; the valid time of a forecast decides."""

    train: tuple[int, int]
    val: tuple[int, int]
    test: tuple[int, int]

    def __post_init__(self) -> None:
        seen: set[int] = set()
        for name in SPLITS:
            years = tuple(getattr(self, name))
            if len(years) != 2 or any(type(year) is not int for year in years) or years[0] > years[1]:
                raise InputError(f"data.split.{name} must be [first year, last year], got {list(years)}")
            object.__setattr__(self, name, years)
            if shared := seen & set(self.years(name)):
                raise InputError(f"data.split.{name} shares {min(shared)} with another split; years must not overlap")
            seen |= set(self.years(name))

    def years(self, name: str) -> range:
        """Return all years of the split `name`: train, val or test."""
        if name not in SPLITS:
            raise InputError(f"there is no split {name!r}; choose one of {', '.join(SPLITS)}")
        first, last = getattr(self, name)
        return range(first, last + 1)


def verified_forecasts(
    init_times: np.ndarray, lead_times: Sequence[int], analysis_times: np.ndarray, years: Collection[int]
) -> list[tuple[int, int, int]]:
    """Return the positions (start, lead time, analysis) of all forecasts valid in `years` that have an analysis.

    Raises an `InputError` if there are none.
    """
    starts = init_times.astype("datetime64[s]")
    position = {time: k for k, time in enumerate(analysis_times.astype("datetime64[s]"))}
    keys, unverified = [], 0
    for i, start in enumerate(starts):
        for j, lead in enumerate(lead_times):
            valid = start + np.timedelta64(lead, "h")
            if year_of(valid) in years:
                if valid in position:
                    keys.append((i, j, position[valid]))
                else:
                    unverified += 1
    if not keys:
        span = f"{min(years)}-{max(years)}" if years else "no year"
        raise InputError(
            f"no forecast is valid in {span} and has an analysis: the ensemble starts between "
            f"{starts.min()} and {starts.max()}, {unverified} forecasts of those years lack an analysis; "
            "change data.split or add files"
        )
    return keys


def count_valid(init_times: np.ndarray, lead_times: Sequence[int], years: Collection[int]) -> int:
    """Return the number of forecasts of these starts that are valid in `years`, with or without an analysis."""
    starts = init_times.astype("datetime64[s]")
    return sum(year_of(start + np.timedelta64(lead, "h")) in years for start in starts for lead in lead_times)
