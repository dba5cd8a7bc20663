"""Moments: two pseudo-members that replace an ensemble of M members, for models that use only its mean and spread.

For mean m and unbiased standard deviation s, the pseudo-members are m - s/√2 and m + s/√2. Their mean and unbiased
standard deviation are exactly m and s, so such a model gives the same forecast, and a sample is M/2 times smaller.
"""

from __future__ import annotations

import numpy as np


def pseudo_members(ensemble: np.ndarray) -> np.ndarray:
    """Return pseudo-members (2, C, h, W) of members (M, C, h, W), in their precision; NaN where a member is missing.

    The moments are computed in double precision. A single member has no spread: both pseudo-members are equal to it.

    >>> pseudo_members(np.array([1.0, 2.0, 6.0]).reshape(3, 1, 1, 1)).mean()
    np.float64(3.0)
    """
    count = len(ensemble)
    out = np.empty((2, *ensemble.shape[1:]), ensemble.dtype)
    for channel in range(ensemble.shape[1]):
        # One member at a time, to bound memory to a few fields; NaN propagates.
        mean = np.zeros(ensemble.shape[2:])
        for member in ensemble[:, channel]:
            mean += member
        mean /= count
        squares = np.zeros_like(mean)
        for member in ensemble[:, channel]:
            departure = member - mean
            squares += np.multiply(departure, departure, out=departure)
        half = np.sqrt(squares / (2 * max(count - 1, 1)))
        np.subtract(mean, half, out=out[0, channel], casting="same_kind")
        np.add(mean, half, out=out[1, channel], casting="same_kind")
    return out
