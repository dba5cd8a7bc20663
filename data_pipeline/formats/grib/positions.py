"""Positions of the cells of GRIB grids whose rows are no latitudes: projected, rotated and regional reduced grids.

ecCodes ignores the scanning mode of Lambert, polar stereographic and Mercator grids, so it places their cells wrongly
unless rows go east and north (ecCodes 2.50). These projections are computed here; ecCodes places the cells of all other
grids.
"""

from __future__ import annotations

from functools import lru_cache, partial

import eccodes
import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.formats.grib.keys import get_whole, opened
from data_pipeline.grids.conformal import Conformal, Pair
from data_pipeline.grids.points import Points

CONFORMAL = ("lambert", "mercator", "polar_stereographic", "lambert_lam", "mercator_lam", "polar_stereographic_lam")
PLANES = (*CONFORMAL, "rotated_ll", "rotated_gg", "lambert_azimuthal_equal_area")
"""Grid types whose cells form rows and columns in a plane."""
LINES = ("reduced_ll", "reduced_rotated_gg", "reduced_gg")
"""Grid types whose rows have different numbers of cells; they are read as points in the order of the file."""

I_NEGATIVELY, J_POSITIVELY, J_CONSECUTIVE, ALTERNATIVE_ROWS = 128, 64, 32, 16
"""Bits of the scanning mode: WMO GRIB1 code table 8, GRIB2 flag table 3.4."""
ALONG_GRID = 8
"""Bit of the resolution and component flags: vectors are along rows and columns (GRIB1 table 7, GRIB2 table 3.3)."""

SECTIONS_KEPT = 8
"""Grids whose positions stay in memory; 3 million points take 200 MB."""


def flags_of(handle: int) -> int:
    """Return the resolution and component flags of an ecCodes message; 0 for grids without them."""
    return get_whole(handle, "resolutionAndComponentFlags", 0)


def section_of(handle: int, grid_type: str) -> str:
    """Return the grid section of an ecCodes message as hexadecimal text, after the edition.

    Points are consecutive along i, and vectors eastward, so that grids of the same cells have the same section.
    """
    clone = eccodes.codes_clone(handle)
    try:
        scanning = eccodes.codes_get_long(clone, "scanningMode") & ~(J_CONSECUTIVE | ALTERNATIVE_ROWS)
        eccodes.codes_set_long(clone, "scanningMode", scanning)
        if flags_of(clone) & ALONG_GRID:
            eccodes.codes_set_long(clone, "resolutionAndComponentFlags", flags_of(clone) & ~ALONG_GRID)
        message = eccodes.codes_get_message(clone)
        start = eccodes.codes_get_long(clone, f"offsetSection{message[7] + 1}")
        length = eccodes.codes_get_long(clone, f"section{message[7] + 1}Length")
    finally:
        eccodes.codes_release(clone)
    section = bytearray(message[start : start + length])
    if message[7] == 1 and section[3] and grid_type in PLANES:  # the coefficients of the model's levels follow
        section = section[: section[4] - 1]
        section[0:5] = len(section).to_bytes(3, "big") + b"\0\xff"
    return f"{message[7]}{section.hex()}"


@lru_cache(maxsize=SECTIONS_KEPT)
def points_of(section: str) -> Points:
    """Return the cells of the grid in `section_of`: rows from low to high j, in each the cells from low to high i.

    Reduced grids keep the order of the file.
    """
    with opened(_message(int(section[0]), bytes.fromhex(section[1:]))) as handle:
        kind = eccodes.codes_get_string(handle, "gridType")
        try:
            if kind in CONFORMAL:
                latitudes, longitudes = _projected(handle, kind)
            else:
                latitudes, longitudes = (eccodes.codes_get_double_array(handle, f"{a}itudes") for a in ("lat", "long"))
        except eccodes.CodesInternalError as error:
            raise InputError(f"the positions of its grid {kind} cannot be computed: {error}") from None
        if kind in PLANES and kind not in CONFORMAL:
            scanning = eccodes.codes_get_long(handle, "scanningMode")
            columns = eccodes.codes_get_long(handle, "Ni")
            turned = (rising(one.reshape(-1, columns), scanning).ravel() for one in (latitudes, longitudes))
            latitudes, longitudes = turned
    return Points(tuple(latitudes.tolist()), tuple(((longitudes + 180) % 360 - 180).tolist()))


def rising(rows: np.ndarray, scanning: int) -> np.ndarray:
    """Return rows of a plane in the order of rising j and i; its own inverse."""
    return rows[:: 1 if scanning & J_POSITIVELY else -1, :: -1 if scanning & I_NEGATIVELY else 1]


def _projected(handle: int, kind: str) -> Pair:
    """Return latitudes and longitudes of the cells of a conformal projection, in the order of `rising`."""
    number = partial(eccodes.codes_get_double, handle)
    scanning = eccodes.codes_get_long(handle, "scanningMode")
    major, minor = ("earthMajorAxisInMetres", "earthMinorAxisInMetres")
    radius, polar = (number(key if eccodes.codes_is_defined(handle, key) else "radius") for key in (major, minor))
    if not 0 < polar <= radius:
        raise InputError(f"the grid {kind} does not state the size of the Earth")
    e2 = 1 - (polar / radius) ** 2
    if kind.startswith("lambert"):
        parallels = number("Latin1InDegrees"), number("Latin2InDegrees")
        projection = Conformal.lambert(radius, e2, number("LoVInDegrees"), *parallels)
    elif kind.startswith("polar"):
        south = get_whole(handle, "projectionCentreFlag", 0) & 128
        standard = abs(number("LaDInDegrees")) * (-1 if south else 1)
        projection = Conformal.stereographic(radius, e2, number("orientationOfTheGridInDegrees"), standard)
    else:
        if number("orientationOfTheGridInDegrees"):
            raise InputError("the grid is a Mercator grid that is turned against the equator")
        meridian = number("longitudeOfFirstGridPointInDegrees")
        projection = Conformal.mercator(radius, e2, meridian, number("LaDInDegrees"))
    first = (np.array(number(f"{axis}itudeOfFirstGridPointInDegrees")) for axis in ("lat", "long"))
    edge, steps = projection.project(*first), ("DiInMetres", "DjInMetres")
    steps = steps if kind.startswith("mercator") else ("DxInMetres", "DyInMetres")
    x, y = (
        start + step * (np.arange(count) - (count - 1) * backwards)
        for start, step, count, backwards in zip(
            edge, map(number, steps), (eccodes.codes_get_long(handle, key) for key in ("Ni", "Nj")),
            (bool(scanning & I_NEGATIVELY), not scanning & J_POSITIVELY), strict=True,
        )
    )  # fmt: skip
    latitudes, longitudes = projection.positions(*np.meshgrid(x, y))
    return latitudes.ravel(), longitudes.ravel()


def _message(edition: int, section: bytes) -> bytes:
    """Return a message with this grid section and the constant value 0, from which ecCodes reads the grid."""
    if edition == 1:
        product = bytearray(28)
        product[0:3], product[6:8] = (28).to_bytes(3, "big"), b"\xff\x80"  # no catalogued grid; section 2 is present
        product[3:5], product[12:15], product[24] = b"\x80\x62", b"\x01\x01\x01", 20
        values = (12).to_bytes(3, "big") + b"\x08" + bytes(8)
        body = bytes(product) + section + values
        return b"GRIB" + (len(body) + 12).to_bytes(3, "big") + b"\1" + body + b"7777"
    sample = eccodes.codes_grib_new_from_samples("regular_ll_pl_grib2")
    try:
        eccodes.codes_set_double_array(sample, "values", np.zeros(2))
        message = eccodes.codes_get_message(sample)
        starts = [eccodes.codes_get_long(sample, f"offsetSection{number}") for number in (3, 4)]
        packing = eccodes.codes_get_long(sample, "offsetSection5") - starts[1]
    finally:
        eccodes.codes_release(sample)
    rest = bytearray(message[starts[1] :])
    rest[packing + 5 : packing + 9] = section[6:10]  # the number of points
    length = starts[0] + len(section) + len(rest)
    return message[:8] + length.to_bytes(8, "big") + message[16 : starts[0]] + section + bytes(rest)
