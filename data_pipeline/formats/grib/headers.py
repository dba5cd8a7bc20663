"""Read dates, steps, members and packing from the first bytes of many GRIB messages at once, without ecCodes.

Only the usual forms of ensemble messages are read here; `table` reads all other messages with ecCodes.
Octets and sections are numbered from 1, as in the WMO Manual on Codes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import numpy as np

from data_pipeline.formats.grib.scan import FIRST_BYTES

HEADER = np.dtype(
    [
        ("plain", "?"), ("key", "i4"), ("init", "i8"), ("step", "i4"), ("interval", "i4"), ("number", "i4"),
        ("data", "i8"), ("bits", "i2"), ("count", "i8"), ("binary", "i4"), ("decimal", "i4"), ("reference", "f8"),
    ]
)  # fmt: skip
"""The header of one message.

`plain` is true where `init` (seconds since 1970), `step` (minutes), `interval` (minutes, 0 for a single time) and
`number` could be read; `number` is -1 for kinds of message without members. Messages of one kind have the same `key`.
`bits` is -1 unless the message is in simple packing without a bitmap; in simple packing, `count` values (-1: any
number) begin at byte `data`.
"""

NO_DATE = -(1 << 62)
"""Seconds since 1970 of a date that does not exist."""
HOUR = 1
"""Code of the time unit hour: GRIB1 table 4, GRIB2 table 4.4."""

GRIB1_GRID, GRIB1_BITMAP = 128, 64
"""Bits of octet 8 of GRIB1's section 1: the message has a grid section; it has a bitmap."""
SINGLE_TIMES, START, LONG_STEP, RANGES = (0, 10), 1, 10, (2, 3, 4, 5)
"""GRIB1 time range indicators.

`SINGLE_TIMES`: a step in octet 19, for `LONG_STEP` in octets 19 and 20. `START`: the start of the forecast. `RANGES`:
an interval between two steps.
"""
ECMWF = 98
"""Code of the originating centre ECMWF."""
NUMBER_AT_50 = (1, 26, 30, 36)
"""ECMWF's local definitions of GRIB1's section 1 that hold the member's number in octet 50."""

MEMBER_TEMPLATES = (1, 11, 60, 61)
"""GRIB2 product templates with the member's number in octet 36; templates 0 and 8 have none."""
INTERVAL_TEMPLATES = {8: 34, 11: 37, 61: 44}
"""GRIB2 product templates with a time interval; for each, the offset in section 4 of the end of the interval."""
MAX_HOURS = 1_000_000
"""Steps must be shorter; ecCodes does not write all digits of longer ones."""
SIMPLE_PACKING, NO_BITMAP = 0, 255


@dataclass(frozen=True, eq=False)
class FirstBytes:
    """The first bytes (`octets`, messages × bytes) of several messages, and the messages' lengths."""

    octets: np.ndarray
    lengths: np.ndarray

    def where(self, condition: np.ndarray) -> FirstBytes:
        """Return only the messages for which `condition` holds."""
        return FirstBytes(self.octets[condition], self.lengths[condition])

    def unsigned(self, position: np.ndarray, count: int) -> np.ndarray:
        """Return the unsigned integer in `count` octets at each message's `position`; 0 beyond its first bytes."""
        width = self.octets.shape[1]
        row = np.arange(len(self.octets))
        value = np.zeros(len(row), np.int64)
        for k in range(count):
            value = value << 8 | self.octets[row, np.minimum(position + k, width - 1)]
        return np.where(position + count <= width, value, 0)

    def signed(self, position: np.ndarray, count: int) -> np.ndarray:
        """Return an integer whose first bit is its sign, as GRIB stores it."""
        value = self.unsigned(position, count)
        half = 1 << (8 * count - 1)
        return np.where(value < half, value, half - value)


class KindKeys:
    """Numbers the kinds of message: messages that differ only in the octets of time and member get equal keys."""

    def __init__(self) -> None:
        self._keys: dict[Hashable, int] = {}

    def assign(self, first: FirstBytes, shape: np.ndarray, columns: Callable[..., np.ndarray]) -> np.ndarray:
        """Return a key for each message.

        Messages get equal keys if they have the same row of `shape` (one row per message) and equal octets at the
        positions `columns(*row)`. A message with a negative number in its row gets the key -1.
        """
        keys = np.full(len(shape), -1, np.int32)
        known = (shape >= 0).all(axis=1)
        shapes, group = np.unique(shape[known], axis=0, return_inverse=True)
        rows = np.flatnonzero(known)
        for k, one in enumerate(shapes.tolist()):
            mine = rows[group == k]
            selected = columns(*one)
            octets, width = first.octets[np.ix_(mine, selected)].tobytes(), len(selected)
            prefix = tuple(one)
            keys[mine] = [
                self._keys.setdefault((prefix, octets[at : at + width]), len(self._keys))
                for at in range(0, len(octets), width)
            ]
        return keys


def read_headers(first: FirstBytes) -> np.ndarray:
    """Return a `HEADER` for each message."""
    headers, keys = np.zeros(len(first.octets), HEADER), KindKeys()
    for edition, read in ((1, grib1_headers), (2, grib2_headers)):
        mine = first.octets[:, 7] == edition
        if mine.any():
            headers[mine] = read(first.where(mine), keys)
    return headers


def grib1_headers(first: FirstBytes, keys: KindKeys) -> np.ndarray:
    """Return a `HEADER` for each GRIB1 message; octet n of section 1 is `octets[:, n + 7]`.

    A message is plain if it comes from ECMWF, has a local definition in `NUMBER_AT_50` and a grid section, and its
    step is in hours: a single time, the start, or an interval (`RANGES`).
    """
    octets = first.octets[:, :60].astype(np.int64)
    headers = np.zeros(len(octets), HEADER)
    grid = first.unsigned(np.array(8), 3) + 8
    gridded = octets[:, 15] & GRIB1_GRID > 0
    values = grid + np.where(gridded, first.unsigned(grid, 3), 0)

    unit, p1, p2, indicator = octets[:, 25:29].T
    init = _seconds((octets[:, 32] - 1) * 100 + octets[:, 20], *octets[:, 21:25].T)
    ranged = np.isin(indicator, RANGES) & (p1 <= p2)
    timed = np.isin(indicator, SINGLE_TIMES) | ((indicator == START) & (p1 + p2 == 0)) | ranged
    headers["plain"] = (
        gridded & timed & (unit == HOUR) & (octets[:, 12] == ECMWF) & np.isin(octets[:, 48], NUMBER_AT_50)
        & (grid >= 58) & (values <= FIRST_BYTES) & (init > NO_DATE)
    )  # fmt: skip
    headers["init"] = init
    headers["step"] = 60 * np.select([indicator == LONG_STEP, ranged], [p1 << 8 | p2, p2], p1)
    headers["interval"] = 60 * np.where(ranged, p2 - p1, 0)
    headers["number"] = octets[:, 57]
    headers["key"] = keys.assign(first, np.where(headers["plain"], values, -1)[:, None], _grib1_columns)

    # Section 4 begins with its length, flags and the number of unused bits, E, R, and the bits per value.
    size, flags = first.unsigned(values, 3), first.unsigned(values + 3, 1)
    bits = first.unsigned(values + 10, 1)
    simple = (octets[:, 15] & GRIB1_BITMAP == 0) & (flags & 0xF0 == 0) & (size > 11) & (values + 11 <= FIRST_BYTES)
    headers["bits"] = np.where(simple, bits, -1)
    headers["data"] = values + 11
    headers["count"] = np.where(bits > 0, (8 * (size - 11) - (flags & 0x0F)) // np.maximum(bits, 1), -1)
    headers["binary"] = first.signed(values + 4, 2)
    headers["decimal"] = first.signed(np.array(34), 2)
    headers["reference"] = np.where(simple, _hexadecimal_float(first.unsigned(values + 6, 4)), 0)
    return headers


def grib2_headers(first: FirstBytes, keys: KindKeys) -> np.ndarray:
    """Return a `HEADER` for each GRIB2 message; octet n of a section is at the section's position + n - 1.

    A message is plain if it holds a single field with product template 0, 8 or one of `MEMBER_TEMPLATES`, and if its
    times are in hours.
    """
    headers = np.zeros(len(first.octets), HEADER)
    positions, single = _grib2_sections(first)
    product, packing, bitmap, data = positions[:, 1:].T
    time = 16  # position of section 1

    template = first.unsigned(product + 7, 2)
    known = single & np.isin(template, (0, *MEMBER_TEMPLATES, *INTERVAL_TEMPLATES))
    hours = first.unsigned(product + 18, 4)
    length = np.zeros_like(hours)
    for number, offset in INTERVAL_TEMPLATES.items():
        interval = product + offset + 7
        mine = template == number
        length = np.where(mine, first.unsigned(interval + 8, 4), length)
        known &= ~mine | ((first.unsigned(interval, 1) == 1) & (first.unsigned(interval + 7, 1) == HOUR))
    known &= (first.unsigned(product + 17, 1) == HOUR) & (hours + length < MAX_HOURS)
    init = _seconds(first.unsigned(np.array(time + 12), 2), *first.octets[:, time + 14 : time + 18].astype(np.int64).T)
    headers["plain"] = known & (init > NO_DATE)
    headers["init"] = init
    headers["step"] = 60 * np.where(known, hours + length, 0)
    headers["interval"] = 60 * np.where(known, length, 0)
    headers["number"] = np.where(np.isin(template, MEMBER_TEMPLATES), first.unsigned(product + 35, 1), -1)
    shape = np.stack([product, packing, template], axis=1)
    headers["key"] = keys.assign(first, np.where(headers["plain"][:, None], shape, -1), _grib2_columns)

    bits, count = first.unsigned(packing + 19, 1), first.unsigned(packing + 5, 4)
    simple = single & (first.unsigned(packing + 9, 2) == SIMPLE_PACKING) & (first.unsigned(bitmap + 5, 1) == NO_BITMAP)
    simple &= first.unsigned(data, 4) == 5 + (bits * count + 7) // 8
    headers["bits"] = np.where(simple, bits, -1)
    headers["data"] = data + 5
    headers["count"] = count
    headers["binary"] = first.signed(packing + 15, 2)
    headers["decimal"] = first.signed(packing + 17, 2)
    headers["reference"] = np.where(simple, first.unsigned(packing + 11, 4), 0).astype(np.uint32).view(np.float32)
    return headers


def _grib1_columns(end: int) -> np.ndarray:
    """Return the octets of sections 1 and 2 without date, step and number."""
    return np.r_[8:20, 28:32, 33:57, 58:end]


def _grib2_columns(product: int, packing: int, template: int) -> np.ndarray:
    """Return the octets of sections 1 to 4 without date, step and number."""
    varying = [np.r_[28:34, product + 18 : product + 22]]
    if template in MEMBER_TEMPLATES:
        varying.append(np.array([product + 35]))
    if template in INTERVAL_TEMPLATES:
        start = product + INTERVAL_TEMPLATES[template]
        varying.append(np.arange(start, start + 7))
    return np.setdiff1d(np.arange(16, packing), np.concatenate(varying))


def _grib2_sections(first: FirstBytes) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of sections 3 to 7, and whether each message has exactly one of sections 1 and 3 to 7.

    Section 2 may be present. All sections must begin within the first bytes of the message.
    """
    at = np.full(len(first.octets), 16)
    single = first.unsigned(at + 4, 1) == 1
    positions = np.zeros((len(at), 5), np.int64)
    at = at + first.unsigned(at, 4)
    at = at + np.where(first.unsigned(at + 4, 1) == 2, first.unsigned(at, 4), 0)
    for k, section in enumerate((3, 4, 5, 6, 7)):
        single &= (first.unsigned(at + 4, 1) == section) & (at < FIRST_BYTES)
        positions[:, k] = at
        at = at + first.unsigned(at, 4)
    single &= (first.unsigned(np.array(16), 4) == 21) & (at + 4 == first.lengths)
    return positions, single


def _hexadecimal_float(word: np.ndarray) -> np.ndarray:
    """Return IBM floating point numbers, which GRIB1 uses: sign, 7 bits of exponent to the base 16, 24 of fraction."""
    return np.ldexp(np.where(word >> 31, -1.0, 1.0) * (word & 0xFFFFFF), 4 * ((word >> 24 & 127) - 70))


def _seconds(year: np.ndarray, month: np.ndarray, day: np.ndarray, hour: np.ndarray, minute: np.ndarray) -> np.ndarray:
    """Return seconds since 1970; `NO_DATE` where there is no such date."""
    months = (year - 1970) * 12 + month - 1
    first = months.astype("datetime64[M]").astype("datetime64[D]")
    date = first + (day - 1)
    real = (month >= 1) & (month <= 12) & (day >= 1) & (date.astype("datetime64[M]") == first.astype("datetime64[M]"))
    real &= (year >= 1) & (year <= 9999) & (hour < 24) & (minute < 60)
    return np.where(real, date.astype(np.int64) * 86_400 + hour * 3600 + minute * 60, NO_DATE)
