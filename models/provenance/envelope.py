"""Envelope: what a corrector has seen in training, against which `correct` checks each forecast.

The statistics of a channel come from its ensemble mean and its spread only, because models of moments are trained on
two pseudo-members (`data_pipeline.samples.pseudo_members`), whose extremes differ from the extremes of the members.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

MonthOfMeans = tuple[int, float, float, float, float]
"""Number of samples, and mean, standard deviation, minimum and maximum of their means over the grid."""
EXTREME_MARGIN = 0.5
"""An ensemble mean may lie beyond the extremes of training by this part of their difference."""
BOUNDED_MARGIN = 1.0
"""`EXTREME_MARGIN` of a channel near a physical bound, such as precipitation, whose extremes have long tails."""
MEAN_MARGIN = 4.0
"""A mean over the grid may lie so many standard deviations beyond the extreme means of its season in training."""
GREATEST_SPREAD_RATIO = 4.0
"""A spread may be so many times smaller or greater than all spreads in training."""
FEW_SAMPLES = 20
"""With n samples of a season, the margin of the mean is (1 + FEW_SAMPLES / n) times as wide."""


@dataclass(frozen=True)
class ChannelSummary:
    """One channel of one forecast: extremes of the ensemble mean, its mean over the grid, and the mean spread.

    All are NaN if no cell has a value.
    """

    low: float
    high: float
    mean: float
    spread: float


@dataclass(frozen=True)
class ChannelRange:
    """The range of one channel in training; all values in the units of the training data.

    `months` has for each month of valid times (1 to 12) the number of samples, and mean, standard deviation, minimum
    and maximum of their means over the grid.
    """

    low: float
    high: float
    least_spread: float
    greatest_spread: float
    months: Mapping[int, MonthOfMeans]

    def season(self, month: int) -> MonthOfMeans | None:
        """Return the entry of `months` for a month and its two neighbours together; None without samples."""
        near = [self.months[m] for m in ((month - 2) % 12 + 1, month, month % 12 + 1) if m in self.months]
        if not near:
            return None
        count = sum(n for n, *_ in near)
        mean = sum(n * m for n, m, *_ in near) / count
        variance = sum(n * (s**2 + (m - mean) ** 2) for n, m, s, *_ in near) / count
        return count, mean, variance**0.5, min(low for *_, low, _ in near), max(high for *_, high in near)

    def problem(self, name: str, found: ChannelSummary, month: int, bounded: bool, members: int) -> Problem | None:
        """Return the problem of a forecast of this channel, called `name`; None if there is none."""
        if np.isnan(found.mean):
            return None
        width = self.high - self.low
        margin = (BOUNDED_MARGIN if bounded else EXTREME_MARGIN) * width
        low, high = self.low - margin, self.high + margin
        between = f"training: {self.low:.5g} to {self.high:.5g}"
        if width > 0 and not low <= found.mean <= high:
            return Problem(
                f"{name} has the mean {found.mean:.5g} over the grid, far beyond all values in {between}; its values "
                "seem to have other units than its message states",
                fatal=True,
            )
        if width > 0 and not (low <= found.low and found.high <= high):
            return Problem(f"{name} has values from {found.low:.5g} to {found.high:.5g}, far beyond those in {between}")
        if (season := self.season(month)) is not None:
            count, _, std, least, greatest = season
            margin = MEAN_MARGIN * (1 + FEW_SAMPLES / count) * std
            if std > 0 and not least - margin <= found.mean <= greatest + margin:
                return Problem(
                    f"{name} has the mean {found.mean:.5g} over the grid; in training it was {least:.5g} to "
                    f"{greatest:.5g} at this time of the year"
                )
        least, greatest = self.least_spread / GREATEST_SPREAD_RATIO, self.greatest_spread * GREATEST_SPREAD_RATIO
        if members > 1 and self.greatest_spread > 0 and not least <= found.spread <= greatest:
            return Problem(
                f"{name} has the spread {found.spread:.3g}; in training it was {self.least_spread:.3g} to "
                f"{self.greatest_spread:.3g}"
            )
        return None

    def merged(self, other: ChannelRange) -> ChannelRange:
        """Return the range that holds both; months of both must come from the same training data."""
        return ChannelRange(
            min(self.low, other.low),
            max(self.high, other.high),
            min(self.least_spread, other.least_spread),
            max(self.greatest_spread, other.greatest_spread),
            {**other.months, **self.months},
        )


@dataclass(frozen=True)
class Problem:
    """A sentence about a forecast that differs from all in training. No fallback helps against a `fatal` problem.

    `of_time`: its start or valid time differs, and nothing is known of its values.
    """

    sentence: str
    fatal: bool = False
    of_time: bool = False


@dataclass(frozen=True)
class Envelope:
    """Ranges of the channels in training, by channel name; hours of starts (UTC); months of valid times; members."""

    channels: Mapping[str, ChannelRange]
    hours: tuple[int, ...]
    months: tuple[int, ...]
    members: tuple[int, ...]

    @classmethod
    def of(
        cls, names: Sequence[str], summaries: np.ndarray, init_time: np.ndarray, lead_time: np.ndarray, members: int
    ) -> Envelope:
        """Return the envelope of N samples from summaries (N, C, 6) of the channels `names`.

        `init_time` (N,) counts seconds since 1970, `lead_time` (N,) hours.
        """
        starts = init_time.astype("datetime64[s]")
        valid = starts + lead_time.astype("timedelta64[h]")
        months = valid.astype("datetime64[M]").astype(int) % 12 + 1
        hours = starts.astype("datetime64[h]").astype(int) % 24
        channels = {}
        for channel, name in enumerate(names):
            found = [finish(row) for row in summaries[:, channel]]
            there = np.array([not np.isnan(one.mean) for one in found])
            if not there.any():
                continue
            mean, spread = np.array([one.mean for one in found]), np.array([one.spread for one in found])[there]
            by_month: dict[int, MonthOfMeans] = {}
            for month in np.unique(months[there]).tolist():
                own = mean[there & (months == month)]
                mid, std, least, greatest = (_rounded(f(own)) for f in (np.mean, np.std, np.min, np.max))
                by_month[month] = (len(own), mid, std, least, greatest)
            channels[name] = ChannelRange(
                _rounded(min(one.low for one in found if not np.isnan(one.low))),
                _rounded(max(one.high for one in found if not np.isnan(one.high))),
                _rounded(np.nanmin(spread)), _rounded(np.nanmax(spread)), by_month,
            )  # fmt: skip
        return cls(channels, tuple(np.unique(hours).tolist()), tuple(np.unique(months).tolist()), (members,))

    def problems(
        self, found: Mapping[str, ChannelSummary], init_time: np.datetime64, lead_time: int, members: int,
        bounded: Sequence[str] = (),
    ) -> list[Problem]:  # fmt: skip
        """Return the problems of a forecast; `bounded` are the channels near a physical bound."""
        month = _valid_month(init_time, lead_time)
        made = self.time_problems(init_time, lead_time)
        if 5 * members < 4 * min(self.members):
            have = f"{members} member{'s' * (members > 1)}"
            made.append(Problem(f"it has {have}, and the corrector was trained on {min(self.members)}"))
        for name, summary in found.items():
            if name in self.channels and (
                problem := self.channels[name].problem(name, summary, month, name in bounded, members)
            ):
                made.append(problem)
        return made

    def time_problems(self, init_time: np.datetime64, lead_time: int) -> list[Problem]:
        """Return the problems of a forecast of the hour of its start, and of the month of its valid time."""
        start = init_time.astype("datetime64[s]")
        hour = int(start.astype("datetime64[h]").astype(int)) % 24
        month, found = _valid_month(init_time, lead_time), []
        if hour not in self.hours:
            found.append(
                f"it starts at {hour:02d} UTC, and the corrector was trained on starts at {_hours(self.hours)}"
            )
        if month not in self.months:
            trained = ", ".join(MONTHS[one - 1] for one in self.months)
            found.append(f"it is valid in {MONTHS[month - 1]}, and the corrector was trained on {trained}")
        return [Problem(sentence, of_time=True) for sentence in found]

    def merged(self, other: Envelope) -> Envelope:
        """Return the envelope of two correctors that are used together: only what both have seen counts as seen.

        Ranges of a channel are joined, because correctors of the same data differ by rounding only.
        """
        both = {
            name: one.merged(other.channels[name]) if name in other.channels else one
            for name, one in self.channels.items()
        }
        hours, months = (
            tuple(sorted({*mine} & {*theirs}))
            for mine, theirs in ((self.hours, other.hours), (self.months, other.months))
        )
        return Envelope({**other.channels, **both}, hours, months, tuple(sorted({*self.members, *other.members})))

    def to_json(self) -> dict[str, Any]:
        """Return plain values from which `from_json` makes an equal envelope."""
        channels = {
            name: {
                "range": [one.low, one.high],
                "spread": [one.least_spread, one.greatest_spread],
                "months": {str(month): list(values) for month, values in one.months.items()},
            }
            for name, one in self.channels.items()
        }
        return {
            "channels": channels, "hours": list(self.hours), "months": list(self.months), "members": list(self.members)
        }  # fmt: skip

    @classmethod
    def from_json(cls, values: Any) -> Envelope | None:
        """Return the envelope from the values of `to_json`, None for None. Raises `ValueError` for other values."""
        if values is None:
            return None
        try:
            channels = {}
            for name, one in values["channels"].items():
                months = {}
                for month, (count, *rest) in one["months"].items():
                    mean, std, least, greatest = _finite(rest, 4)
                    months[_whole(month, 1, 12)] = (_whole(count, 1), mean, std, least, greatest)
                (low, high), (small, great) = _finite(one["range"], 2), _finite(one["spread"], 2)
                channels[str(name)] = ChannelRange(low, high, small, great, months)
            hours = tuple(_whole(hour, 0, 23) for hour in values["hours"])
            seen = tuple(_whole(month, 1, 12) for month in values["months"])
            members = tuple(_whole(count, 1) for count in values["members"])
        except (KeyError, TypeError, IndexError, AttributeError, OverflowError) as error:
            raise ValueError(f"its envelope is invalid ({type(error).__name__}: {error})") from None
        if not members:
            raise ValueError("its envelope has no number of members")
        return cls(channels, hours, seen, members)


MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
          "December")  # fmt: skip


def finish(row: np.ndarray) -> ChannelSummary:
    """Return the summary of a channel from its statistics (6,) on the whole grid."""
    total, spread, weight, cells, low, high = map(float, row)
    if not weight:
        return ChannelSummary(np.nan, np.nan, np.nan, np.nan)
    return ChannelSummary(low, high, total / weight, spread / cells if cells else np.nan)


def untrained_sentence(name: str, count: int, total: int, example: str) -> str:
    """Return a sentence about forecasts at times without training, the same in `correct` and in `evaluate`.

    >>> untrained_sentence("emos", 2, 9, "it is valid in May, and the corrector was trained on April")
    '2 of 9 forecasts of emos are at times without training: it is valid in May, and the corrector was trained on April'
    """
    return f"{count} of {total} forecasts of {name} are at times without training: {example}"


def _valid_month(init_time: np.datetime64, lead_time: int) -> int:
    valid = init_time.astype("datetime64[s]") + np.timedelta64(lead_time, "h")
    return int(valid.astype("datetime64[M]").astype(int)) % 12 + 1


def _rounded(value: float) -> float:
    """Return a value with seven digits: more would only make the file larger."""
    return float(f"{float(value):.7g}")


def _hours(hours: Sequence[int]) -> str:
    return f"{', '.join(f'{hour:02d}' for hour in hours)} UTC"


def _whole(value: object, least: int, greatest: int = 2**31) -> int:
    number = int(value)  # type: ignore[call-overload]
    if not least <= number <= greatest:
        raise ValueError(f"its envelope is invalid: {number} is not from {least} to {greatest}")
    return int(number)


def _finite(values: Sequence[object], count: int) -> tuple[float, ...]:
    numbers = tuple(float(value) for value in values)  # type: ignore[arg-type]
    if len(numbers) != count or not np.isfinite(numbers).all():
        raise ValueError(f"its envelope is invalid: {list(values)} are not {count} finite numbers")
    return numbers
