"""Ledger: how many forecasts a selection has, how many are left out and why, and how many are used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any, Literal, get_args

import numpy as np

Reason = Literal[
    "no_analysis", "no_input", "missing_field", "near_split", "no_forecast", "no_group", "without_group", "masked"
]
_WORDS: dict[str, str] = {
    "no_analysis": "no analysis at their valid time",
    "no_input": "no input at another lead time, or no analysis at their start",
    "missing_field": "a missing field",
    "near_split": "a valid time too close to another split",
    "no_forecast": "no forecast in the files of another model that is compared",
    "no_group": "no member of a group",
    "without_group": "no member of a group, by the other groups",
    "masked": "a missing field, which models see as masked",
}
"""Words for each reason in messages, after `left out with`."""
_USED = ("without_group", "masked")
_MOST_CHANNELS = 3
"""Most channels that a message names."""


@dataclass(frozen=True, order=True)
class Omission:
    """One forecast, by `start` (seconds since 1970) and `lead` (hours), that is left out for a `reason`.

    With the reason `masked`, the forecast is used with missing values; with `without_group`, it is used with fewer
    members. `channels` are the channels that it lacks, or the groups, `place` is the member and the file of the first
    missing field.
    """

    start: int
    lead: int
    reason: Reason
    channels: tuple[str, ...] = ()
    place: str = ""

    def __post_init__(self) -> None:
        if self.reason not in get_args(Reason):
            raise ValueError(f"unknown reason {self.reason!r}")
        object.__setattr__(self, "channels", tuple(self.channels))

    @property
    def used(self) -> bool:
        """Whether the forecast is used nevertheless."""
        return self.reason in _USED

    @property
    def valid_time(self) -> np.datetime64:
        """The valid time of the forecast."""
        return np.datetime64(self.start + 3600 * self.lead, "s")

    @property
    def key(self) -> tuple[int, int]:
        """Start and lead time, which identify the forecast."""
        return self.start, self.lead

    def to_json(self) -> list[Any]:
        """Return JSON values; `Omission(*values)` makes an equal object."""
        return list(astuple(self))

    def __str__(self) -> str:
        time = np.datetime64(self.start, "s").astype("datetime64[m]")
        shown = list(self.channels[:_MOST_CHANNELS]) + ["..."] * (len(self.channels) > _MOST_CHANNELS)
        what = "; ".join(filter(None, (", ".join(shown), self.place)))
        return f"{time} + {self.lead} h" + (f" ({what})" if what else "")


@dataclass(frozen=True)
class Ledger:
    """The number of `forecasts` (start and lead time) of a selection, and the `omissions` among them, in order."""

    forecasts: int
    omissions: tuple[Omission, ...] = ()

    def __post_init__(self) -> None:
        if len({one.key for one in self.omissions}) < len(self.omissions) or len(self.omissions) > self.forecasts:
            raise ValueError("a ledger lists each forecast once, and no more forecasts than there are")

    @property
    def left_out(self) -> int:
        """Number of forecasts that are not used."""
        return sum(not one.used for one in self.omissions)

    @property
    def used(self) -> int:
        """Number of forecasts that are used."""
        return self.forecasts - self.left_out

    @property
    def by_reason(self) -> dict[str, list[Omission]]:
        """The omitted forecasts by reason, in the order of `Reason`; only reasons that occur."""
        found: dict[str, list[Omission]] = {reason: [] for reason in get_args(Reason)}
        for one in self.omissions:
            found[one.reason].append(one)
        return {reason: group for reason, group in found.items() if group}

    def lines(self, title: str) -> list[str]:
        """Return a line with the numbers of forecasts, and a line for each reason that names the first forecast.

        >>> print(*Ledger(3, (Omission(0, 24, "no_analysis"),)).lines("training"), sep="\\n")
        training: 2 of 3 forecasts are used
        training: 1 left out with no analysis at their valid time, first 1970-01-01T00:00 + 24 h
        """
        found = [f"{title}: {self.used:,} of {self.forecasts:,} forecasts are used"]
        return found + [f"{title}: {text}" for text in self.sentences()]

    def sentences(self) -> list[str]:
        """Return a text for each reason, with the number of forecasts and the first forecast."""
        return omission_texts(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Return the numbers as JSON values, with the first forecast of each reason as text."""
        return {"forecasts": self.forecasts, "used": self.used} | {
            reason: {"count": len(group), "first": str(group[0])} for reason, group in self.by_reason.items()
        }


def omission_texts(values: Mapping[str, Any]) -> list[str]:
    """Return the texts of `Ledger.sentences` from the values of `Ledger.to_json`."""
    return [
        f"{group['count']:,} {'used' if reason in _USED else 'left out'} with {_WORDS[reason]}, first {group['first']}"
        for reason, group in values.items()
        if reason in _WORDS
    ]
