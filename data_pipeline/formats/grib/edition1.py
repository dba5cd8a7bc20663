"""GRIB1: where a message of ECMWF's ensembles keeps its time, member and packing."""

from __future__ import annotations

import numpy as np

from data_pipeline.formats.grib.glance import GLANCE, NEVER, Heads, Keys, seconds
from data_pipeline.formats.grib.scan import HEAD

NUMBER_AT_50 = (1, 26, 30, 36)
"""ECMWF's local definitions of section 1 that hold the member's number in octet 50."""
ECMWF = 98
HOURS = 1
SECTION_2, SECTION_3 = 128, 64
"""Bits of octet 8 of section 1: there is a grid, there is a bitmap."""


def glance(heads: Heads, keys: Keys) -> np.ndarray:
    """Return what the octets say, one GLANCE for each message; octet n of section 1 is `octets[:, n + 7]`.

    Plain are messages of ECMWF with one of the local definitions known here, a grid section, and a step in hours
    that is a single time (time range indicator 0 or 10) or the start itself (1).
    """
    octets = heads.octets[:, :60].astype(np.int64)
    found = np.zeros(len(octets), GLANCE)
    grid = heads.number(np.array(8), 3) + 8
    gridded = octets[:, 15] & SECTION_2 > 0
    values = grid + np.where(gridded, heads.number(grid, 3), 0)

    unit, p1, p2, indicator = octets[:, 25:29].T
    day = seconds((octets[:, 32] - 1) * 100 + octets[:, 20], *octets[:, 21:25].T)
    single = np.isin(indicator, (0, 10)) | ((indicator == 1) & (p1 + p2 == 0))
    found["plain"] = (
        gridded & single & (unit == HOURS) & (octets[:, 12] == ECMWF) & np.isin(octets[:, 48], NUMBER_AT_50)
        & (grid >= 58) & (values <= HEAD) & (day > NEVER)
    )  # fmt: skip
    found["init"] = day
    found["step"] = 60 * np.where(indicator == 10, p1 << 8 | p2, p1)
    found["number"] = octets[:, 57]
    found["key"] = keys.of(heads, np.where(found["plain"], values, -1)[:, None], _columns)

    # Section 4: length, flags with the number of unused bits, E, R, bits per value.
    size, flags = heads.number(values, 3), heads.number(values + 3, 1)
    bits = heads.number(values + 10, 1)
    simple = (octets[:, 15] & SECTION_3 == 0) & (flags & 0xF0 == 0) & (size > 11) & (values + 11 <= HEAD)
    found["bits"] = np.where(simple, bits, -1)
    found["data"] = values + 11
    found["count"] = np.where(bits > 0, (8 * (size - 11) - (flags & 0x0F)) // np.maximum(bits, 1), -1)
    found["binary"] = heads.signed(values + 4, 2)
    found["decimal"] = heads.signed(np.array(34), 2)
    found["reference"] = np.where(simple, _hexadecimal(heads.number(values + 6, 4)), 0)
    return found


def _columns(end: int) -> np.ndarray:
    """Return the octets of sections 1 and 2 without date, step and number."""
    return np.r_[8:20, 28:32, 33:57, 58:end]


def _hexadecimal(word: np.ndarray) -> np.ndarray:
    """Return floating point numbers to the base 16: sign, 7 bits of exponent, 24 of fraction."""
    return np.ldexp(np.where(word >> 31, -1.0, 1.0) * (word & 0xFFFFFF), 4 * ((word >> 24 & 127) - 70))
