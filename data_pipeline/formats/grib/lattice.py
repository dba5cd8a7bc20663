"""Lattice: values that packing leaves as they are, the same for all members of a forecast.

Simple packing rounds a field to R + X 2^E with a reference R and a step 2^E of its own (WMO Manual on
Codes, regulation 92.9.4). Two members that are packed one by one may so change places where they are closer than
a step. Members on one lattice cannot.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import eccodes
import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.formats.grib.cache import table_of
from data_pipeline.formats.grib.scan import read
from data_pipeline.task import Variable

DEFAULT_BITS = 16


@dataclass(frozen=True)
class Lattice:
    """Multiples of 2^E, with E as small as `bits` per value allow for the field with the widest range."""

    bits: int = DEFAULT_BITS

    @classmethod
    def of(cls, source: str | Path, variable: Variable) -> Lattice:
        """Return the lattice for corrections of `variable` in the file `source`: with the bits of its finest message.

        Where a file was packed to a number of decimal digits, every message has as many bits as its range
        asks for. A correction may widen any of these ranges, so that all members get the bits of the widest.
        """
        table = table_of(Path(source))
        kinds = [number for number, kind in enumerate(table.kinds) if kind.variable == variable]
        if not kinds:
            raise InputError(f"{source} has no {variable}")
        records = table.records[np.isin(table.records["kind"], kinds)]
        finest = int(records["bits"].max())
        with Path(source).open("rb", buffering=0) as file:
            for record in records[records["bits"] < 0]:
                message = read(file.fileno(), Path(source), int(record["offset"]), int(record["length"]))
                handle = eccodes.codes_new_from_message(message)
                finest = max(finest, eccodes.codes_get_long(handle, "bitsPerValue"))
                eccodes.codes_release(handle)
        return cls(
            finest if finest > 0 else DEFAULT_BITS
        )  # fields that are constant are packed in 0 bits, and say nothing

    def round(self, members: np.ndarray) -> np.ndarray:
        """Return `members` (M, H, W) on their common lattice, NaN where they are NaN."""
        members = np.asarray(members, np.float64)
        finite = np.isfinite(members)
        if not finite.any():
            return members
        highest = np.where(finite, members, -np.inf).max((1, 2))
        lowest = np.where(finite, members, np.inf).min((1, 2))
        widest = np.max(np.where(finite.any((1, 2)), highest - lowest, 0))
        largest = np.abs(members[finite]).max()
        # Two steps less than there are, for rounding moves both ends; and no finer than a reference value can be,
        # whose hexadecimal floating point in GRIB1 carries 21 binary digits.
        step = max(widest / max(2.0**self.bits - 3, 1), largest * 2.0**-20, np.finfo(np.float32).tiny)
        step = 2.0 ** np.ceil(np.log2(step))
        return np.round(members / step) * step
