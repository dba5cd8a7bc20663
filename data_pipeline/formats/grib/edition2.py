"""GRIB2: where a message keeps its time, member and packing."""

from __future__ import annotations

import numpy as np

from data_pipeline.formats.grib.glance import GLANCE, NEVER, Heads, Keys, seconds
from data_pipeline.formats.grib.scan import HEAD

HOURS = 1
ENSEMBLE = (1, 11)
"""Product templates with the member's number in octet 36; those without are 0 and 8."""
INTERVAL = {8: 34, 11: 37}
"""Product templates of a time interval, and where the twelve octets of its end and count begin."""
LONGEST = 1_000_000
"""Hours that ecCodes writes with all their digits."""
SIMPLE, NO_BITMAP = 0, 255


def glance(heads: Heads, keys: Keys) -> np.ndarray:
    """Return what the octets say, one GLANCE for each message; octet n of a section is that at its place + n - 1.

    Plain are messages of a single field with product template 0, 1, 8 or 11 and times in hours.
    """
    found = np.zeros(len(heads.octets), GLANCE)
    places, whole = _sections(heads)
    product, packing, bitmap, data = places[:, 1:].T
    time = 16  # section 1 is the first

    template = heads.number(product + 7, 2)
    known = whole & np.isin(template, (0, *ENSEMBLE, *INTERVAL))
    hours = heads.number(product + 18, 4)
    length = np.zeros_like(hours)
    for number, at in INTERVAL.items():
        one = product + at + 7
        mine = template == number
        length = np.where(mine, heads.number(one + 8, 4), length)
        known &= ~mine | ((heads.number(one, 1) == 1) & (heads.number(one + 7, 1) == HOURS))
    known &= (heads.number(product + 17, 1) == HOURS) & (hours + length < LONGEST)
    day = seconds(heads.number(np.array(time + 12), 2), *heads.octets[:, time + 14 : time + 18].astype(np.int64).T)
    found["plain"] = known & (day > NEVER)
    found["init"] = day
    found["step"] = 60 * np.where(known, hours + length, 0)
    found["number"] = np.where(np.isin(template, ENSEMBLE), heads.number(product + 35, 1), -1)
    shape = np.stack([product, packing, template], axis=1)
    found["key"] = keys.of(heads, np.where(found["plain"][:, None], shape, -1), _columns)

    bits, count = heads.number(packing + 19, 1), heads.number(packing + 5, 4)
    simple = whole & (heads.number(packing + 9, 2) == SIMPLE) & (heads.number(bitmap + 5, 1) == NO_BITMAP)
    simple &= heads.number(data, 4) == 5 + (bits * count + 7) // 8
    found["bits"] = np.where(simple, bits, -1)
    found["data"] = data + 5
    found["count"] = count
    found["binary"] = heads.signed(packing + 15, 2)
    found["decimal"] = heads.signed(packing + 17, 2)
    found["reference"] = np.where(simple, heads.number(packing + 11, 4), 0).astype(np.uint32).view(np.float32)
    return found


def _sections(heads: Heads) -> tuple[np.ndarray, np.ndarray]:
    """Return where sections 3 to 7 begin, and whether the message is these, 1 and perhaps 2 and nothing else.

    All of them must begin among the first bytes of the message.
    """
    at = np.full(len(heads.octets), 16)
    whole = heads.number(at + 4, 1) == 1
    places = np.zeros((len(at), 5), np.int64)
    at = at + heads.number(at, 4)
    at = at + np.where(heads.number(at + 4, 1) == 2, heads.number(at, 4), 0)
    for k, section in enumerate((3, 4, 5, 6, 7)):
        whole &= (heads.number(at + 4, 1) == section) & (at < HEAD)
        places[:, k] = at
        at = at + heads.number(at, 4)
    whole &= (heads.number(np.array(16), 4) == 21) & (at + 4 == heads.lengths)
    return places, whole


def _columns(product: int, packing: int, template: int) -> np.ndarray:
    """Return the octets of sections 1 to 4 without date, step and number."""
    varying = [np.r_[28:34, product + 18 : product + 22]]
    if template in ENSEMBLE:
        varying.append(np.array([product + 35]))
    if template in INTERVAL:
        start = product + INTERVAL[template]
        varying.append(np.arange(start, start + 7))
    return np.setdiff1d(np.arange(16, packing), np.concatenate(varying))
