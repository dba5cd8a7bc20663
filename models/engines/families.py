"""The distributions of `models.distribution` as NumPy arrays, for programs without PyTorch: moments, quantiles, cdf.

An exported model returns the parameters of its distribution. Everything else about it is computed here, in double
precision. `KINDS` lists the distributions; `CensoredShiftedGamma` and `TruncatedNormal` need special functions that
NumPy lacks.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import Any, ClassVar, Protocol

import numpy as np

_NODES, _REACH = 300, 40.0
"""Nodes of Gauss-Legendre in the moments of a power, and the largest |z| that is integrated."""


_FAR = 20.0
"""Beyond this |x|, erfc(x) is below 1e-175 and its asymptotic series has an error below 1e-16."""
_SCALE, _DEGREE = 3.5, 40


class Family(Protocol):
    """A univariate distribution in every cell, (*S)."""

    def mean(self) -> np.ndarray:
        """Return the expectation, (*S)."""
        ...

    def std(self) -> np.ndarray:
        """Return the standard deviation, (*S)."""
        ...

    def quantiles(self, levels: np.ndarray) -> np.ndarray:
        """Return the quantiles (K, *S) at the levels (K,)."""
        ...

    def cdf(self, values: np.ndarray) -> np.ndarray:
        """Return P(X <= value), (K, *S), for values (K, ...) that broadcast to this shape."""
        ...


class _Normal:
    """The standard normal distribution."""

    std = 1.0

    def cdf(self, z: np.ndarray) -> np.ndarray:
        return normal_cdf(z)

    def density(self, z: np.ndarray) -> np.ndarray:
        return np.exp(-z * z / 2) / math.sqrt(2 * math.pi)

    def quantile(self, level: float) -> float:
        return NormalDist().inv_cdf(level)


class _Logistic:
    """The standard logistic distribution."""

    std = math.pi / math.sqrt(3)

    def cdf(self, z: np.ndarray) -> np.ndarray:
        return (1 + np.tanh(z / 2)) / 2

    def density(self, z: np.ndarray) -> np.ndarray:
        return 1 / (4 * np.cosh(np.clip(z, -350, 350) / 2) ** 2)

    def quantile(self, level: float) -> float:
        return math.log(level / (1 - level))


@dataclass(frozen=True, eq=False)
class LocationScaleArrays:
    """Distribution of μ + σZ, or of max(μ + σZ, lower) with a `lower` bound."""

    mu: np.ndarray
    sigma: np.ndarray
    lower: np.ndarray | None = None
    standard: ClassVar[_Normal | _Logistic] = _Normal()

    def mean(self) -> np.ndarray:
        """Return μ, or the mean of the censored variable."""
        return self.mu if self.lower is None else _censored_moments(self, 1.0)[0]

    def std(self) -> np.ndarray:
        """Return the standard deviation."""
        return self.sigma * self.standard.std if self.lower is None else _censored_moments(self, 1.0)[1]

    def quantiles(self, levels: np.ndarray) -> np.ndarray:
        """Return the quantiles at the levels."""
        z = np.array([self.standard.quantile(float(level)) for level in levels])
        found = z.reshape(-1, *[1] * self.mu.ndim) * self.sigma
        found += self.mu
        return found if self.lower is None else np.maximum(found, self.lower, out=found)

    def cdf(self, values: np.ndarray) -> np.ndarray:
        """Return F((value - μ)/σ), and 0 below the bound."""
        below = self.standard.cdf((values - self.mu) / self.sigma)
        return below if self.lower is None else np.where(values < self.lower, 0.0, below)


class LogisticArrays(LocationScaleArrays):
    """`LocationScaleArrays` with the logistic distribution."""

    standard = _Logistic()


@dataclass(frozen=True, eq=False)
class EnsembleArrays:
    """The empirical distribution of members (M, *S)."""

    members: np.ndarray

    def mean(self) -> np.ndarray:
        """Return the mean of the members."""
        return self.members.mean(0)

    def std(self) -> np.ndarray:
        """Return the unbiased standard deviation; zero for a single member."""
        return self.members.std(0, ddof=1) if len(self.members) > 1 else np.zeros_like(self.members[0])

    def quantiles(self, levels: np.ndarray) -> np.ndarray:
        """Interpolate between the sorted members; the k-th member has level (k - 1)/(M - 1)."""
        position = np.asarray(levels, np.float64) * (len(self.members) - 1)
        below, above = np.floor(position).astype(int), np.ceil(position).astype(int)
        ordered = np.sort(self.members, axis=0)
        part = (position - below).reshape(-1, *[1] * (ordered.ndim - 1))
        return ordered[below] + (ordered[above] - ordered[below]) * part

    def cdf(self, values: np.ndarray) -> np.ndarray:
        """Return the fraction of members up to the value."""
        return np.stack([(self.members <= value).mean(0) for value in values])


@dataclass(frozen=True, eq=False)
class BernsteinArrays:
    """Quantile function Σ α_k b_k(τ) with Bernstein polynomials and coefficients (d + 1, *S) that do not decrease."""

    coefficients: np.ndarray

    def mean(self) -> np.ndarray:
        """Return the mean of the coefficients."""
        return self.coefficients.mean(0)

    def std(self) -> np.ndarray:
        """Return the root of Σ Σ a_j a_k ∫ b_j b_k for the coefficients a minus their mean."""
        a, d = self.coefficients - self.mean(), len(self.coefficients) - 1
        matrix = [
            [math.comb(d, j) * math.comb(d, k) / math.comb(2 * d, j + k) / (2 * d + 1) for k in range(d + 1)]
            for j in range(d + 1)
        ]
        return np.sqrt(np.maximum((a * np.tensordot(np.array(matrix), a, 1)).sum(0), 0))

    def quantiles(self, levels: np.ndarray) -> np.ndarray:
        """Return Q(level)."""
        d = len(self.coefficients) - 1
        k, level = np.arange(d + 1), np.asarray(levels, np.float64)[:, None]
        basis = np.array([math.comb(d, j) for j in k]) * level**k * (1 - level) ** (d - k)
        return np.tensordot(basis, self.coefficients, 1)

    def cdf(self, values: np.ndarray) -> np.ndarray:
        """Return the largest level whose quantile is not above the value, by bisection."""
        return np.stack([self._level(value) for value in values])

    def _level(self, value: np.ndarray) -> np.ndarray:
        a = self.coefficients - value
        low, width = np.zeros_like(a[0]), 1.0
        for _ in range(40):
            width /= 2
            low = np.where(_bernstein(a, low + width) <= 0, low + width, low)
        return np.where(a[-1] <= 0, 1.0, np.where(a[0] > 0, 0.0, low + width / 2))


@dataclass(frozen=True, eq=False)
class QuantileArrays:
    """Quantiles `values` (N, *S), not decreasing, at the increasing `levels` (N,)."""

    values: np.ndarray
    levels: np.ndarray

    def mean(self) -> np.ndarray:
        """Return the mean of the values, with probabilities that end half-way between the levels."""
        return np.tensordot(self._probabilities, self.values, 1)

    def std(self) -> np.ndarray:
        """Return the standard deviation, divided by 1 - Σ p²."""
        p = self._probabilities
        return np.sqrt(np.tensordot(p, (self.values - self.mean()) ** 2, 1) / (1 - (p * p).sum()))

    def quantiles(self, levels: np.ndarray) -> np.ndarray:
        """Interpolate linearly between the quantiles."""
        place = np.interp(levels, self.levels, np.arange(len(self.levels), dtype=np.float64))
        below = np.minimum(place.astype(int), len(self.levels) - 2)
        part = (place - below).reshape(-1, *[1] * (self.values.ndim - 1))
        return self.values[below] + (self.values[below + 1] - self.values[below]) * part

    def cdf(self, values: np.ndarray) -> np.ndarray:
        """Interpolate the level; 0 below the first and 1 from the last quantile on."""
        return np.stack([self._level(value) for value in values])

    def _level(self, value: np.ndarray) -> np.ndarray:
        count, last = (self.values <= value).sum(0), len(self.levels) - 1
        above = np.clip(count, 1, last)
        low, high = (np.take_along_axis(self.values, k[None], 0)[0] for k in (above - 1, above))
        part = np.where(high > low, (value - low) / np.where(high > low, high - low, 1), 0)
        level = self.levels[above - 1] + (self.levels[above] - self.levels[above - 1]) * part
        return np.where(count == 0, 0.0, np.where(count == len(self.levels), 1.0, level))

    @property
    def _probabilities(self) -> np.ndarray:
        return np.diff(np.concatenate([[0.0], (self.levels[1:] + self.levels[:-1]) / 2, [1.0]]))


@dataclass(frozen=True, eq=False)
class PowerArrays:
    """Law of lower + max(Y - lower, 0)^(1/power) for Y from a location-scale family."""

    inner: LocationScaleArrays
    power: float
    lower: np.ndarray

    def mean(self) -> np.ndarray:
        """Return the expectation."""
        return _censored_moments(self._censored, 1 / self.power)[0]

    def std(self) -> np.ndarray:
        """Return the standard deviation."""
        return _censored_moments(self._censored, 1 / self.power)[1]

    def quantiles(self, levels: np.ndarray) -> np.ndarray:
        """Return the power of the quantiles of Y."""
        return self.lower + np.maximum(self.inner.quantiles(levels) - self.lower, 0) ** (1 / self.power)

    def cdf(self, values: np.ndarray) -> np.ndarray:
        """Return P(Y <= the root of the value), and 0 below the bound."""
        below = self.inner.cdf(self.lower + np.maximum(values - self.lower, 0) ** self.power)
        return np.where(values < self.lower, 0.0, below)

    @property
    def _censored(self) -> LocationScaleArrays:
        return type(self.inner)(self.inner.mu, self.inner.sigma, self.lower)


class Joined(ABC):
    """A distribution that is joined in each cell from several families; all arrays are over (T, H, W)."""

    @abstractmethod
    def _joined(self, compute: Callable[[Any], np.ndarray]) -> np.ndarray:
        """Return the joined result of a function of a family."""

    def mean(self) -> np.ndarray:
        """Return the expectation."""
        return self._joined(lambda family: family.mean())

    def std(self) -> np.ndarray:
        """Return the standard deviation."""
        return self._joined(lambda family: family.std())

    def quantiles(self, levels: np.ndarray) -> np.ndarray:
        """Return the quantiles (K, T, H, W) at the levels (K,)."""
        return self._joined(lambda family: family.quantiles(levels))

    def cdf(self, values: np.ndarray) -> np.ndarray:
        """Return the probabilities (K, T, H, W) of values up to `values`."""
        return self._joined(lambda family: family.cdf(values))


@dataclass(frozen=True, eq=False)
class ByTargetArrays(Joined):
    """A family for each target, each over all targets (T, H, W)."""

    families: Sequence[Family]

    def _joined(self, compute: Callable[[Any], np.ndarray]) -> np.ndarray:
        return np.stack([compute(family)[..., t, :, :] for t, family in enumerate(self.families)], -3)


def _censored_moments(family: LocationScaleArrays, exponent: float) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation of lower + max(Y - lower, 0)^exponent, where Y = μ + σZ.

    Gauss-Legendre quadrature over z gives the integrals, from the bound to where no probability is left.
    """
    assert family.lower is not None
    bound = (family.lower - family.mu) / family.sigma
    start = np.clip(bound, -_REACH, _REACH)
    half = (_REACH - start) / 2
    first, second = np.zeros_like(start), np.zeros_like(start)
    for node, weight in zip(*_legendre(_NODES), strict=True):
        z = start + half * (node + 1)
        above = (family.sigma * np.maximum(z - bound, 0)) ** exponent
        share = weight * half * family.standard.density(z)
        first += share * above
        second += share * above * above
    return family.lower + first, np.sqrt(np.maximum(second - first * first, 0))


@cache
def _legendre(count: int) -> tuple[np.ndarray, np.ndarray]:
    return np.polynomial.legendre.leggauss(count)


def normal_cdf(z: np.ndarray) -> np.ndarray:
    """Return Φ(z), also far in the lower tail with a relative error below 1e-13; NumPy has no error function.

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


def _bernstein(coefficients: np.ndarray, level: np.ndarray) -> np.ndarray:
    """Return Σ c_k b_k(level), by Horner's scheme for Bernstein polynomials (Farin 2002, section 5.1)."""
    d, rest, power = len(coefficients) - 1, 1 - level, np.ones_like(level)
    total = coefficients[0] * power
    for k in range(1, d + 1):
        power = power * level
        total = total * rest + math.comb(d, k) * power * coefficients[k]
    return total


KINDS: dict[str, type] = {
    "Normal": LocationScaleArrays,
    "Logistic": LogisticArrays,
    "CensoredNormal": LocationScaleArrays,
    "CensoredLogistic": LogisticArrays,
    "Ensemble": EnsembleArrays,
    "Bernstein": BernsteinArrays,
    "Quantiles": QuantileArrays,
    "PowerTransformed": PowerArrays,
}
"""The distributions that can be exported, by the names of their classes in `models.distribution`."""
