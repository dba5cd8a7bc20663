"""Moments: two pseudo-members that replace an ensemble of M members, for models that use only its mean and spread.

For mean m and unbiased standard deviation s, the pseudo-members are m - s/√2 and m + s/√2. Their mean and unbiased
standard deviation are exactly m and s, so such a model gives the same forecast from a sample that is M/2 times smaller.
"""

from __future__ import annotations

import numpy as np

from data_pipeline.protocols import WHOLE, FieldReader, MomentReader, Window

MOMENTS_VERSION = 2
"""Increase this when `pseudo_members` returns other values, so that stores of moments and caches are made again."""


def pseudo_members(ensemble: np.ndarray) -> np.ndarray:
    """Return pseudo-members (2, C, h, W) of members (M, C, h, W), in their precision; NaN where a member is missing.

    In single precision, either both pseudo-members of a cell are finite, or neither is.

    One pass over the members sums their departures d from the first member, and d², in the precision of the ensemble:

        m = x₁ + Σd / M        s² = (Σd² - (Σd)² / M) / (M - 1)

    The difference loses at most a factor of M in precision, because the first member is at most √M standard deviations
    s away from m. Equal members have exactly zero spread. Squares of departures below 1e-19 underflow in single
    precision.

    >>> pseudo_members(np.array([1.0, 2.0, 6.0]).reshape(3, 1, 1, 1)).mean()
    np.float64(3.0)
    """
    count = len(ensemble)
    out = np.empty((2, *ensemble.shape[1:]), ensemble.dtype)
    for channel in range(ensemble.shape[1]):
        # One member at a time, to bound memory to a few fields; NaN propagates.
        first = ensemble[0, channel]
        total, squares = np.zeros_like(first), np.zeros_like(first)
        for member in ensemble[1:, channel]:
            departure = member - first
            total += departure
            squares += np.multiply(departure, departure, out=departure)
        # `formats/grib/packed_moments.py` does the same operations in the same order.
        away = total.astype(np.float64)
        mean = first + away * (1 / count)
        variance = (squares - away * away * (1 / count)) * (1 / (2 * max(count - 1, 1)))
        half = np.sqrt(np.maximum(variance.astype(ensemble.dtype), 0))
        np.subtract(mean, half, out=out[0, channel], casting="same_kind")
        np.add(mean, half, out=out[1, channel], casting="same_kind")
    return out


def read_moments(reader: FieldReader, wanted: np.ndarray, out: np.ndarray, window: Window = WHOLE) -> None:
    """Fill `out` (2, C, h, w) with the pseudo-members of the fields `wanted` (M, C), without them if that is possible.

    The values are the same, bit for bit.
    """
    if isinstance(reader, MomentReader) and out.dtype == np.float32:
        reader.read_moments(wanted, out, window)
    else:
        reduce_members(reader, wanted, out, window)


def reduce_members(reader: FieldReader, wanted: np.ndarray, out: np.ndarray, window: Window) -> None:
    """Fill `out` (2, C, h, w) with the pseudo-members of the fields `wanted` (M, C), which are read into memory."""
    members = np.empty((len(wanted), *out.shape[1:]), out.dtype)
    reader.read(wanted, members, window)
    out[...] = pseudo_members(members)


def complete_cells(members: np.ndarray) -> np.ndarray:
    """Return where all members (M, ...) have a value."""
    with np.errstate(over="ignore", invalid="ignore"):
        # Most samples have no missing value. A sum detects this at memory speed, because NaN propagates.
        if np.isfinite(members.sum()):
            return np.ones(members.shape[1:], bool)
    return np.logical_and.reduce([np.isfinite(member) for member in members])
