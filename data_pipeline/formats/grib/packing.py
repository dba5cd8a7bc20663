"""Decode simple packing without a bitmap with numpy; nearly every ensemble is stored in this packing.

A value is (R + X 2^E) / 10^D with whole numbers X of 8, 16, 24 or 32 bits (WMO Manual on Codes, regulation 92.9.4);
with 0 bits all values are R. Results equal those of ecCodes bit for bit; see docs/decisions/003-grib-reading.md.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import eccodes
import numpy as np

from data_pipeline.formats.catalog import DOUBLE

PACKED_BYTES = {8: 1, 16: 2, 24: 3, 32: 4}
"""Bytes of a packed value, by its bits."""

BUFFER_START = 4
"""Position of the first packed value in a buffer; values of 24 bits are read together with the byte before them."""

BLOCK_VALUES = 1 << 19
"""Values decoded at once; fewer would fit the cache, but threads would wait for the interpreter's lock (measured)."""

SMALL_BLOCK_VALUES = 1 << 14
"""Values decoded at once where intermediate results need a separate buffer."""


class Packing(NamedTuple):
    """Bits per value, R, E and D of simple packing; `bits` is -1 for packings that only ecCodes decodes."""

    bits: int
    reference: float
    binary: int
    decimal: int


def decodable(bits: np.ndarray, reference: np.ndarray, binary: np.ndarray, decimal: np.ndarray) -> np.ndarray:
    """Whether this module decodes the packing: whole bytes, and no result near the limits of single precision.

    A constant field with a decimal scale is left to ecCodes, which does not apply the scale.
    """
    usual = (binary >= -100) & (binary <= 40) & (abs(decimal) <= 10)
    sound = (reference == 0) | ((abs(reference) >= 1e-30) & (abs(reference) <= 1e25))
    return usual & sound & (np.isin(bits, list(PACKED_BYTES)) | ((bits == 0) & (decimal == 0)))


def unpack(buffer: np.ndarray, packing: Packing, out: np.ndarray) -> None:
    """Fill `out` (flat, float32 or float64) from the packed values in `buffer`, which begin at `BUFFER_START`."""
    if not packing.bits:
        out[:] = packing.reference
        return
    # The sum of two numbers of 24 binary digits is the same in single precision and rounded from double precision.
    direct = out.dtype == DOUBLE or (packing.bits <= 24 and not packing.decimal)
    block = BLOCK_VALUES if direct else SMALL_BLOCK_VALUES
    scale, divisor = scale_factors(packing.binary, packing.decimal, out.dtype)
    for start in range(0, len(out), block):
        part = out[start : start + block]
        integers = _integers(buffer, packing.bits, start, len(part))
        values = part if direct else np.empty(len(part), DOUBLE)
        np.copyto(values, integers, casting="unsafe")
        np.multiply(values, values.dtype.type(scale), out=values)
        np.add(values, values.dtype.type(packing.reference), out=values)
        if packing.decimal:
            np.multiply(values, divisor, out=values)
        if values is not part:
            np.copyto(part, values, casting="same_kind")


def _integers(buffer: np.ndarray, bits: int, start: int, count: int) -> np.ndarray:
    """Return `count` packed integers from position `start` on."""
    at = BUFFER_START + start * PACKED_BYTES[bits]
    if bits == 24:  # the three lower bytes of four
        wide = np.ndarray(count, ">u4", buffer.data, at - 1, (3,)).astype(np.int32)
        return np.bitwise_and(wide, 0xFFFFFF, out=wide)
    return np.ndarray(count, f">u{PACKED_BYTES[bits]}", buffer.data, at)


@cache
def scale_factors(binary: int, decimal: int, dtype: np.dtype) -> tuple[float, float]:
    """Return 2^E and 10^-D as ecCodes computes them: by repeated multiplication or division in precision `dtype`.

    The results are Python floats, so calculations with them are in double precision.
    """
    ten, divisor = dtype.type(10), dtype.type(1)
    for _ in range(abs(decimal)):
        divisor = divisor / ten if decimal > 0 else divisor * ten
    return 2.0**binary, float(divisor)


COMPLEX_PACKINGS = ("grid_complex", "grid_complex_spatial_differencing")
"""Packings of NCEP (GRIB2 templates 5.2 and 5.3). Their key `bitsPerValue` holds the bits of the groups' references."""


class Resolution(NamedTuple):
    """Bits per value, and the step 2^E / 10^D; both are 0 for a constant field."""

    bits: int
    step: float

    @classmethod
    def of(cls, handle: int) -> Resolution:
        """Return the resolution of an ecCodes message.

        For complex packing, the bits are the number that simple packing would need for the same range and step; the
        values are decoded to find the range. Damaged scale factors, with a step of zero or infinity, give 0 bits.
        """
        binary, decimal = (eccodes.codes_get_long(handle, f"{base}ScaleFactor") for base in ("binary", "decimal"))
        with np.errstate(all="ignore"):
            step = float(np.float64(2) ** binary / np.float64(10) ** decimal)
        if eccodes.codes_get_string(handle, "packingType") in COMPLEX_PACKINGS:
            eccodes.codes_set_double(handle, "missingValue", np.nan)
            values = eccodes.codes_get_double_array(handle, "values")
            finite = values[np.isfinite(values)]
            with np.errstate(all="ignore"):
                steps = float(np.ptp(finite) / np.float64(step)) if finite.size else 0.0
            bits = round(steps).bit_length() if np.isfinite(steps) else 0
        else:
            bits = eccodes.codes_get_long(handle, "bitsPerValue")
        return cls(bits, step if bits else 0.0)
