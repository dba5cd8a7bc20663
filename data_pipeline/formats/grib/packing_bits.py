"""Resolution of a message: how many bits per value its packing has, and its step."""

from __future__ import annotations

from typing import NamedTuple

import eccodes
import numpy as np

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
