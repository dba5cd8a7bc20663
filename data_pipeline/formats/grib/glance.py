"""What the first bytes of a file's messages say without ecCodes: for all of them at once, where it is plain.

This module holds what both editions share; `edition1` and `edition2` know where each of them keeps it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import numpy as np

GLANCE = np.dtype(
    [
        ("plain", "?"), ("key", "i4"), ("init", "i8"), ("step", "i4"), ("number", "i4"), ("data", "i8"),
        ("bits", "i2"), ("count", "i8"), ("binary", "i4"), ("decimal", "i4"), ("reference", "f8"),
    ]
)  # fmt: skip
"""One message.

`plain`: `init`, `step` and `number` are known (`number` is -1 where this kind of message has none), and `key` tells
its kind apart from those of other messages. `bits` is -1 where the message is not in simple packing without a bitmap;
else `count` values (-1: any) lie from byte `data` on, packed with these scale factors.
"""


@dataclass(frozen=True, eq=False)
class Heads:
    """The first bytes of messages, one row for each, and how long the messages are."""

    octets: np.ndarray
    lengths: np.ndarray

    def where(self, condition: np.ndarray) -> Heads:
        """Return only the messages for which `condition` holds."""
        return Heads(self.octets[condition], self.lengths[condition])

    def number(self, position: np.ndarray, count: int) -> np.ndarray:
        """Return the whole number in `count` octets at a `position` of each message; 0 beyond its first bytes."""
        width = self.octets.shape[1]
        row = np.arange(len(self.octets))
        value = np.zeros(len(row), np.int64)
        for k in range(count):
            value = value << 8 | self.octets[row, np.minimum(position + k, width - 1)]
        return np.where(position + count <= width, value, 0)

    def signed(self, position: np.ndarray, count: int) -> np.ndarray:
        """Return a number whose first bit is its sign."""
        value = self.number(position, count)
        half = 1 << (8 * count - 1)
        return np.where(value < half, value, half - value)


class Keys:
    """Numbers for what tells kinds of message apart: equal octets get equal numbers."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}

    def of(self, heads: Heads, shape: np.ndarray, columns: Callable[..., np.ndarray]) -> np.ndarray:
        """Return a number for each message, by those octets that `columns` chooses for the row of its `shape`.

        A negative shape stands for messages that have no key; their number is -1.
        """
        keys = np.full(len(shape), -1, np.int32)
        known = (shape >= 0).all(axis=1)
        shapes, group = np.unique(shape[known], axis=0, return_inverse=True)
        rows = np.flatnonzero(known)
        for k, one in enumerate(shapes.tolist()):
            mine = rows[group == k]
            chosen = columns(*one)
            octets, width = heads.octets[np.ix_(mine, chosen)].tobytes(), len(chosen)
            prefix = tuple(one)
            keys[mine] = [
                self._numbers.setdefault((prefix, octets[at : at + width]), len(self._numbers))
                for at in range(0, len(octets), width)
            ]
        return keys


def seconds(year: np.ndarray, month: np.ndarray, day: np.ndarray, hour: np.ndarray, minute: np.ndarray) -> np.ndarray:
    """Return seconds since 1970; -2^62 where there is no such date."""
    months = (year - 1970) * 12 + month - 1
    first = months.astype("datetime64[M]").astype("datetime64[D]")
    date = first + (day - 1)
    real = (month >= 1) & (month <= 12) & (day >= 1) & (date.astype("datetime64[M]") == first.astype("datetime64[M]"))
    real &= (year >= 1) & (year <= 9999) & (hour < 24) & (minute < 60)
    return np.where(real, date.astype(np.int64) * 86_400 + hour * 3600 + minute * 60, NEVER)


NEVER = -(1 << 62)
"""The seconds of a date that does not exist."""
