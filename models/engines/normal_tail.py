"""The normal distribution function of NumPy arrays, in double precision: NumPy has no error function."""

from __future__ import annotations

import math
from functools import cache

import numpy as np

_FAR = 20.0
"""Beyond this |x|, erfc(x) is below 1e-175 and its asymptotic series has an error below 1e-16."""
_SCALE, _DEGREE = 3.5, 40


def normal_cdf(z: np.ndarray) -> np.ndarray:
    """Return Φ(z), also far in the lower tail with a relative error below 1e-13.

    Φ(z) = erfc(-z/√2)/2, and erfc(x) = exp(-x²) g(t) for x >= 0 with t = (x - k)/(x + k). The smooth function g is
    a Chebyshev polynomial through values of `math.erfc` (the substitution of Schonfelder 1978,
    doi:10.1090/S0025-5718-1978-0494846-8).
    """
    x = np.asarray(z, np.float64) / -math.sqrt(2)
    size = np.minimum(np.abs(x), _FAR)
    # exp(-x²) loses digits for large x; the product of two exponentials with an exact square does not.
    coarse = np.round(size * 16) / 16
    decay = np.exp(-coarse * coarse) * np.exp(-(size - coarse) * (size + coarse))
    tail = decay * np.polynomial.chebyshev.chebval((size - _SCALE) / (size + _SCALE), _coefficients()) / 2
    tail = np.where(np.abs(x) >= _FAR, 0.0, tail)
    return np.where(np.isnan(x), np.nan, np.where(x >= 0, tail, 1 - tail))


@cache
def _coefficients() -> np.ndarray:
    """Return the Chebyshev coefficients of exp(x²) erfc(x) as a function of t."""

    def scaled(t: np.ndarray) -> np.ndarray:
        return np.array([_scaled_erfc(_SCALE * (1 + each) / (1 - each)) for each in t])

    return np.polynomial.chebyshev.chebinterpolate(scaled, _DEGREE)


def _scaled_erfc(x: float) -> float:
    """Return exp(x²) erfc(x) for x >= 0; for large x by the continued fraction (https://dlmf.nist.gov/7.9.E4)."""
    if x < 3:
        return math.exp(x * x) * math.erfc(x)
    rest = 0.0
    for k in range(120, 0, -1):
        rest = k / 2 / (x + rest)
    return 1 / (math.sqrt(math.pi) * (x + rest))
