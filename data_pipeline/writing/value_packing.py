"""ValuePacking: how the numbers of a NetCDF variable are stored, and how to store other numbers in the same way.

A stored value v represents the number `v * scale_factor + add_offset` (CF conventions, section 8.1). Rounding to stored
values keeps the order of any two numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

FILL = np.float32(9.969209968386869e36)
"""The value of missing cells in new variables, the default of the NetCDF library."""
LIMITS = ("valid_min", "valid_max", "valid_range")
"""Attributes that make readers mask values outside these limits, which are in units of the stored values."""


@dataclass(frozen=True)
class ValuePacking:
    """Type, scale and offset of stored values; `codes` are the stored values that mean a missing value.

    `fill` is the code that is written. If a variable has no code, `fill` is NaN for a float type, the library's default
    for an integer type, and None for a one-byte type. `limits` are the stored values between which readers do not mask.
    """

    kind: np.dtype
    scale: float = 1.0
    offset: float = 0.0
    codes: tuple[float, ...] = ()
    fill: float | None = np.nan
    limits: tuple[float, float] = (-np.inf, np.inf)

    @classmethod
    def of(cls, kind: np.dtype, attributes: Mapping[str, Any]) -> ValuePacking:
        """Return the packing of a variable from its numpy type and its attributes."""
        from netCDF4 import default_fillvals

        own = np.dtype(kind)
        if own.kind == "i" and str(attributes.get("_Unsigned", "false")).lower() == "true":
            own = np.dtype(f"u{own.itemsize}")
        codes: list[float] = []
        for name in ("_FillValue", "missing_value"):
            if name in attributes:
                found = np.atleast_1d(np.asarray(attributes[name]))
                found = found.view(own) if own.kind == "u" and found.dtype.kind == "i" else found
                codes += [float(value) for value in found.astype(np.float64)]
        fill: float | None = codes[0] if codes else np.nan
        if not codes and own.kind in "iu":
            # Readers mask the library's default fill value, except for one-byte types.
            fill = None if own.itemsize == 1 else float(default_fillvals[own.str[1:]])
        elif not codes:
            codes = [float(default_fillvals[own.str[1:]])]
        codes += [fill] if fill is not None and np.isfinite(fill) else []
        low, high = attributes.get("valid_range", (-np.inf, np.inf))
        limits = float(attributes.get("valid_min", low)), float(attributes.get("valid_max", high))
        scale, offset = (float(attributes.get(key, value)) for key, value in (("scale_factor", 1), ("add_offset", 0)))
        return cls(own, scale, offset, tuple(dict.fromkeys(codes)), fill, limits)

    @property
    def rounds(self) -> bool:
        """Whether stored values are integers, whose range is limited."""
        return self.kind.kind in "iu"

    def fits(self, lowest: float, highest: float) -> bool:
        """Whether the numbers between two limits can be stored."""
        if not self.rounds or not np.isfinite([lowest, highest]).all():
            return True
        stored = np.round((np.array([lowest, highest]) - self.offset) / self.scale)
        info = np.iinfo(self.kind)
        inside = not any(stored.min() <= code <= stored.max() for code in self.codes)
        return inside and info.min <= stored.min() and stored.max() <= info.max

    def widened(self, lowest: float, highest: float) -> ValuePacking:
        """Return the finest packing of the same type for the numbers between two limits."""
        info = np.iinfo(self.kind)
        ends = [info.min - 1.0, *sorted(code for code in self.codes if info.min <= code <= info.max), info.max + 1.0]
        k = int(np.diff(ends).argmax())
        first, last = ends[k] + 1, ends[k + 1] - 1
        scale = (highest - lowest) / (last - first) or 1.0
        return replace(self, scale=scale, offset=lowest - first * scale, limits=(-np.inf, np.inf))

    def pack(self, numbers: np.ndarray) -> np.ndarray:
        """Return the stored values of `numbers`; NaN is stored as a missing value.

        In a float type, a number that would be stored as a missing-value code is moved to the next larger value.
        """
        missing = np.isnan(numbers)
        stored = np.asarray(numbers, np.float64)
        if (self.scale, self.offset) != (1.0, 0.0):
            stored = (stored - self.offset) / self.scale
        if self.rounds:
            if self.fill is None and missing.any():
                raise ValueError("this type has no code for missing values")
            return np.where(missing, self.fill or 0, np.round(stored)).astype(self.kind)
        packed = stored.astype(self.kind)
        for code in self.codes:
            hit = packed == self.kind.type(code)
            packed[hit] = np.nextafter(packed[hit], self.kind.type(np.inf))
        packed[missing] = self.fill
        return packed

    def unpack(self, stored: np.ndarray) -> np.ndarray:
        """Return numbers from stored values; NaN where they are missing."""
        values = stored.view(self.kind) if stored.dtype.kind == "i" and self.kind.kind == "u" else stored
        missing = np.isin(values.astype(np.float64), self.codes)
        return np.where(missing, np.nan, values.astype(np.float64) * self.scale + self.offset)
