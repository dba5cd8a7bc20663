"""Lattice: round all members of a forecast to common values that simple packing does not change.

Simple packing rounds each field to R + X 2^E with a reference R and a step 2^E of its own (WMO Manual on Codes,
regulation 92.9.4). If members are packed separately, two members that differ by less than a step may change their
order. On a common lattice they cannot.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import eccodes
import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.formats.grib.cache import table_of
from data_pipeline.task import Variable

DEFAULT_BITS = 16


@dataclass(frozen=True)
class Lattice:
    """Multiples of 2^E, with the smallest E that `bits` per value allow for the member with the widest range."""

    bits: int = DEFAULT_BITS

    @classmethod
    def of(cls, source: str | Path, variable: Variable) -> Lattice:
        """Return the lattice for `variable` in the file `source`, with the most bits of any of its messages.

        In files packed to a number of decimal digits, the bits of a message depend on its range. A correction may widen
        any range, so all members get the most bits.
        """
        table = table_of(Path(source))
        kinds = [number for number, kind in enumerate(table.kinds) if kind.variable == variable]
        if not kinds:
            raise InputError(f"{source} has no {variable}; name a variable that is in the file")
        records = table.records[np.isin(table.records["kind"], kinds)]
        finest = int(records["bits"].max())
        with Path(source).open("rb", buffering=0) as file:
            for record in records[records["bits"] < 0]:
                handle = eccodes.codes_new_from_message(table.message(file.fileno(), record))
                finest = max(finest, eccodes.codes_get_long(handle, "bitsPerValue"))
                eccodes.codes_release(handle)
        # Constant fields are packed in 0 bits, whatever their precision.
        return cls(finest if finest > 0 else DEFAULT_BITS)

    def round(self, members: np.ndarray) -> np.ndarray:
        """Return `members` (M, H, W) rounded to their common lattice; NaN stays NaN."""
        members = np.asarray(members, np.float64)
        finite = np.isfinite(members)
        if not finite.any():
            return members
        highest = np.where(finite, members, -np.inf).max((1, 2))
        lowest = np.where(finite, members, np.inf).min((1, 2))
        widest = np.max(np.where(finite.any((1, 2)), highest - lowest, 0))
        largest = np.abs(members[finite]).max()
        # Two steps fewer than there are, because rounding moves both ends; and no finer than a reference value, which
        # has 21 binary digits in GRIB1's hexadecimal floating point.
        step = max(widest / max(2.0**self.bits - 3, 1), largest * 2.0**-20, np.finfo(np.float32).tiny)
        step = 2.0 ** np.ceil(np.log2(step))
        return np.round(members / step) * step
