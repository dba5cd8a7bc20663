"""Student's t distribution: tail probabilities and quantiles, for any positive number of degrees of freedom."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

import numpy as np

TERMS = 1000
"""Most terms of the continued fraction. It needs about as many as the square root of the degrees of freedom."""


def two_sided_p(t: np.ndarray | float, freedom: np.ndarray | float) -> np.ndarray:
    """Return P(|T| > |t|) for Student's T with `freedom` degrees of freedom: I(ν/(ν + t²); ν/2, 1/2).

    I is the regularised incomplete beta function.

    >>> round(float(two_sided_p(2.2621571628, 9)), 6)
    0.05
    """
    t, freedom = np.broadcast_arrays(np.abs(np.asarray(t, float)), np.asarray(freedom, float))
    shape, t, freedom = t.shape, t.ravel(), freedom.ravel()
    scale = np.maximum(np.sqrt(freedom), t)  # keeps the squares finite
    inside, outside = (np.sqrt(freedom) / scale) ** 2, (t / scale) ** 2
    x, other = inside / (inside + outside), outside / (inside + outside)
    half, log_beta = np.full(t.shape, 0.5), _log_beta_half(freedom / 2)
    p = np.full(t.shape, np.nan)
    # The fraction converges fast if its x is below the mean of the beta distribution.
    near = other * (freedom + 3) < 3
    below, above = np.flatnonzero(near), np.flatnonzero(~near & np.isfinite(x))
    p[below] = 1 - _incomplete_beta(other[below], x[below], half[below], freedom[below] / 2, log_beta[below])
    p[above] = _incomplete_beta(x[above], other[above], freedom[above] / 2, half[above], log_beta[above])
    return p.reshape(shape)


def t_quantile(p: float, freedom: np.ndarray | float) -> np.ndarray:
    """Return the t with P(T < t) = p, for 1/2 < p < 1.

    Newton's method on the logarithm of the tail as a function of log t, which is concave.

    >>> round(float(t_quantile(0.975, 9)), 6)
    2.262157
    """
    freedom = np.asarray(freedom, float)
    tail = 2 * (1 - p)
    t = np.full(freedom.shape, 1.0)
    for _ in range(60):
        now = two_sided_p(t, freedom)
        step = now * np.log(now / tail) / (2 * t * _density(t, freedom))
        t = t * np.exp(np.clip(step, -2, 2))
        if np.all(np.abs(step) < 1e-13):
            break
    return t


@lru_cache(maxsize=1)
def _quantile_table() -> tuple[np.ndarray, np.ndarray]:
    inverse = np.linspace(0, 1, 1001)
    normal = NormalDist().inv_cdf(0.975)
    return inverse, np.log(np.append(normal, t_quantile(0.975, 1 / inverse[1:])))


def t_of_95(freedom: np.ndarray) -> np.ndarray:
    """Return the t of a 95 % interval for at least one degree of freedom, to six digits, from a table.

    >>> round(float(t_of_95(np.array(9.0))), 4)
    2.2622
    """
    quantile: np.ndarray = np.exp(np.interp(1 / freedom, *_quantile_table()))
    return quantile


def _density(t: np.ndarray, freedom: np.ndarray) -> np.ndarray:
    exponent = -_log_beta_half(freedom / 2) - np.log(freedom) / 2 - (freedom + 1) / 2 * np.log1p(t * t / freedom)
    density: np.ndarray = np.exp(exponent)
    return density


def _log_beta_half(a: np.ndarray) -> np.ndarray:
    """Return log B(a, 1/2) = log Γ(1/2) - log (Γ(a + 1/2)/Γ(a)).

    For large a the ratio comes from its asymptotic series, because the difference of two logarithms of Γ loses digits
    (Tricomi & Erdélyi 1951, doi:10.2140/pjm.1951.1.133).
    """
    values, place = np.unique(a, return_inverse=True)  # a map has few different values
    ratio = np.array([
        math.lgamma(v + 0.5) - math.lgamma(v) if v < 20 else
        math.log(v) / 2 - 1 / (8 * v) + 1 / (192 * v**3) - 1 / (640 * v**5) + 17 / (14336 * v**7)
        for v in values.tolist()
    ])  # fmt: skip
    return math.log(math.pi) / 2 - ratio[place].reshape(np.shape(a))


def _incomplete_beta(
    x: np.ndarray, other: np.ndarray, a: np.ndarray, b: np.ndarray, log_beta: np.ndarray
) -> np.ndarray:
    """Return I(x; a, b) by its continued fraction (Abramowitz & Stegun 26.5.8); `other` is 1 - x.

    The fraction is evaluated from the front (Lentz 1976, doi:10.1364/AO.15.000668).
    """
    tiny = 1e-300
    with np.errstate(divide="ignore"):  # log 0 for t = 0
        front = np.exp(a * np.log(x) + b * np.log(other) - log_beta) / a
    c, d = np.ones_like(x), 1 / _away_from_zero(1 - (a + b) * x / (a + 1), tiny)
    fraction = d.copy()
    for m in range(1, TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        change = np.ones_like(x)
        for term in (even, odd):
            d = 1 / _away_from_zero(1 + term * d, tiny)
            c = _away_from_zero(1 + term / c, tiny)
            change = change * c * d
        fraction = fraction * change
        if np.all(np.abs(change - 1) < 1e-15):
            break
    return np.where(x > 0, front * fraction, 0.0)


def _away_from_zero(value: np.ndarray, tiny: float) -> np.ndarray:
    return np.where(np.abs(value) < tiny, tiny, value)
