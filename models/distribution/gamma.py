"""The censored, shifted gamma distribution of precipitation: often zero, many small amounts, some large ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from models.distribution.base import Distribution, leading, missing_as, scaled_to_mean, weighted_mean
from models.distribution.standard import SQRT_2PI, SQRT_PI, StandardNormal

_SHAPE_RANGE = 1e-9, 1e12
"""Range of shapes; others are clamped to it. The largest shape is practically a normal distribution."""
_SMALLEST_RATIO, _LARGEST_RATIO = 0.01, 300.0
"""Smallest and largest distance from the start of the support to the mean, in standard deviations."""
_LARGE_SHAPE = 20.0
"""From this shape on, series in 1/k are accurate to the last few digits of float64."""


@dataclass(frozen=True, eq=False)
class CensoredShiftedGamma(Distribution):
    """Law of max(shift + scale G, lower), where G has the density x^(k - 1) exp(-x)/Γ(k) with k = `shape`.

    A distribution of precipitation (Scheuerer & Hamill 2015, doi:10.1175/MWR-D-15-0061.1): `shift` lies below `lower`,
    and `lower` has the whole probability of the shifted gamma distribution up to there. Where `shift` lies above
    `lower`, nothing is censored. All computations are in float64, because differences of incomplete gamma functions
    have few digits in float32.
    """

    shape: Tensor
    scale: Tensor
    shift: Tensor
    lower: Tensor

    def __post_init__(self) -> None:
        lower = torch.as_tensor(self.lower, dtype=self.shape.dtype).to(self.shape.device, non_blocking=True)
        shape, scale, shift, lower = torch.broadcast_tensors(self.shape, self.scale, self.shift, lower)
        object.__setattr__(self, "shape", shape.clamp(*_SHAPE_RANGE))
        object.__setattr__(self, "scale", scale.clamp(min=torch.finfo(scale.dtype).tiny ** 0.4))
        object.__setattr__(self, "shift", shift)
        object.__setattr__(self, "lower", lower)

    @classmethod
    def of_location(cls, mu: Tensor, sigma: Tensor, delta: Tensor, lower: Tensor) -> CensoredShiftedGamma:
        """Return the distribution whose support starts at lower - delta, with the standard deviation sigma, uncensored.

        The distance from there to the mean is σ r with r = log(1 + exp((mu - lower + delta)/sigma)), which is positive
        for any mu. So mu is the uncensored mean where it lies far above `lower`; where it lies far below, nearly all
        probability is on `lower`. The shape is r², limited to 1e-4 ... 9e4.
        """
        sigma = sigma.clamp(min=torch.finfo(sigma.dtype).tiny ** 0.4)
        # A larger delta changes the shape no more, but would take all digits of the other terms.
        delta = torch.minimum(delta, _LARGEST_RATIO * sigma)
        distance = torch.nn.functional.softplus((mu - lower + delta) / sigma)
        ratio = torch.sqrt(distance.square() + _SMALLEST_RATIO**2).clamp(max=_LARGEST_RATIO)
        start = lower - delta + sigma * (distance - ratio).clamp(min=0)
        return cls(ratio.square(), sigma / ratio, start, lower)

    @property
    def mean(self) -> Tensor:
        """lower + scale [(k - c) Q + k D], where c = (lower - shift)/scale, Q = P(G > c) and D as in `_log_term`."""
        return self._native(self._lower + self._scale * self._excess[0])

    @property
    def std(self) -> Tensor:
        """Standard deviation, from the second moment about c, which is [(k - c)² + k] Q + (k + 1 - c) k D."""
        return self._native(self._scale * self._excess[1].clamp(min=torch.finfo(torch.float64).tiny).sqrt())

    def quantile(self, level: Tensor) -> Tensor:
        """Inverse of `cdf`, at least `lower`."""
        k, level = self._shape, leading(level, self._shape)
        with torch.no_grad():
            found = _inverse(k, level)
        # Gradients of the inverse function, where there is a density.
        slope = _mass(k.detach(), found)
        step = (level - _probability(k, found)) * found / slope.clamp(min=_TINY)
        step = torch.where((slope > _TINY) & (found > _TINY) & found.isfinite(), step - step.detach(), 0)
        return self._native(torch.maximum(self._shift + self._scale * (found + step), self._lower))

    def cdf(self, value: Tensor) -> Tensor:
        """P(G <= (value - shift)/scale), and zero below `lower`."""
        below = _probability(self._shape, self._z(value))
        return missing_as(value, self._native(torch.where(value < self.lower, 0, below)))

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density above `lower`; at `lower` the logarithm of its probability."""
        k, z, c = self._shape, self._z(value).clamp(min=_TINY), self._z(self.lower)
        density = _log_term(k, z) + torch.log(k) - torch.log(z) - torch.log(self._scale)
        density = torch.where(self._z(value) < 0, -torch.inf, density)
        return self._native(torch.where(value <= self.lower, _log_probability(k, c), density))

    def crps(self, truth: Tensor, fair: float = False) -> Tensor:
        """CRPS of the uncensored distribution minus the integral of F² up to `lower`.

        In units of the scale, with z = (y - shift)/scale and c = (lower - shift)/scale: the CRPS is
        (z - k)(2F(z) - 1) + 2k D(z) - h, the integral (c - k) F(c)² + 2k D(c) F(c) - h P(G + G' <= 2c), where
        h = E|G - G'|/2 = Γ(k + ½)/(√π Γ(k)). This is the formula of Scheuerer & Hamill, with F - D in place of the
        distribution function of the shape k + 1. For a truth below `lower`, its distance from `lower` is added.
        """
        k = self._shape
        # Near 0 the density may be so large that derivatives are differences of huge numbers.
        points = self._z(torch.maximum(truth, self.lower)), self._z(self.lower)
        z, c = (torch.where(point < _NEAR_ZERO, point.clamp(max=0), point) for point in points)
        below, censored = _probability(k, z), _probability(k, c)
        score = (z - k) * (2 * below - 1) + 2 * _mass(k, z)
        lost = (c - k) * censored.square() + 2 * _mass(k, c) * censored
        rest = _half_difference(k) * (1 - _probability(2 * k, 2 * c))
        return self._native(self._scale * (score - lost - rest)) + (self.lower - truth).clamp(min=0)

    def affine(self, location: Tensor, scale: Tensor) -> CensoredShiftedGamma:
        """Shift and scale the distribution and its bound; the shape stays."""
        return replace(
            self, scale=scale * self.scale, shift=location + scale * self.shift, lower=location + scale * self.lower
        )

    def average(self, others: Sequence[CensoredShiftedGamma], weights: Tensor | None = None) -> CensoredShiftedGamma:
        """Return the distribution with the means of shift, standard deviation and √k, scaled to the mean of the means.

        The weights of √k = d/σ are those of σ, so that the distance d = scale k from the shift to the mean is averaged,
        too. For equal shapes, without censoring, this is the mean of the quantile functions.
        """
        parts = self, *others
        ratios = [part.shape.sqrt() for part in parts]
        spreads = [part.scale * ratio for part, ratio in zip(parts, ratios, strict=True)]
        shift, lower, spread = (
            weighted_mean(values, weights)
            for values in ([part.shift for part in parts], [part.lower for part in parts], spreads)
        )
        change = [own / spread * (ratio - ratios[0]) for own, ratio in zip(spreads, ratios, strict=True)]
        ratio = ratios[0] + weighted_mean(change, weights)
        found = CensoredShiftedGamma(ratio.square(), spread / ratio, shift, lower)
        averaged: CensoredShiftedGamma = scaled_to_mean(found, parts, weights)
        return averaged

    @property
    def _excess(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of max(G - c, 0), in a form that keeps its digits where nothing is censored."""
        k, c = self._shape, self._z(self.lower)
        below, mass, d = _probability(k, c), _mass(k, c), k - c
        above = 1 - below
        variance = above * (d * d * below + k) + mass * (1 + d * (below - above)) - mass * mass
        return d * above + mass, variance

    def _z(self, value: Tensor) -> Tensor:
        return (value.double() - self._shift) / self._scale

    def _native(self, value: Tensor) -> Tensor:
        """Return a float64 tensor in the precision of the parameters."""
        return value.to(self.shape.dtype)

    @property
    def _shape(self) -> Tensor:
        return self.shape.double()

    @property
    def _scale(self) -> Tensor:
        return self.scale.double()

    @property
    def _shift(self) -> Tensor:
        return self.shift.double()

    @property
    def _lower(self) -> Tensor:
        return self.lower.double()


_TINY, _NEAR_ZERO = 1e-300, 1e-12
_ELEMENTS_AT_ONCE = 2**17
_QUADRATURE_NODES, _RECURRENCE_STEPS = 48, 8
"""With `_QUADRATURE_NODES`, the error of the derivative by a shape from `_RECURRENCE_STEPS` on is less than 2e-11."""
_QUADRATURE = np.polynomial.legendre.leggauss(_QUADRATURE_NODES)
"""Nodes and weights, computed once: a fit needs them in every step."""


class _IncompleteGamma(torch.autograd.Function):
    """P(k, x), the probability that G <= x, in float64 with its derivative by the shape k, which PyTorch lacks."""

    @staticmethod
    def forward(ctx: Any, k: Tensor, x: Tensor) -> Tensor:
        ctx.save_for_backward(k, x)
        return torch.special.gammainc(k, x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        k, x = ctx.saved_tensors
        by_k = gradient * _by_shape(k, x) if ctx.needs_input_grad[0] else None
        by_x = gradient * k * torch.exp(_log_term(k, x)) / x if ctx.needs_input_grad[1] else None
        return by_k, by_x


def _by_shape(k: Tensor, x: Tensor) -> Tensor:
    """Return ∂P(k, x)/∂k.

    P(k, x) is the sum of P(k + n, x) and D(k), ..., D(k + n - 1), whose derivatives are D(a)(log x - ψ(a + 1)). For the
    large shape a = k + n, v = log(G/a) has the density √(a/2π) exp(-a(e^v - 1 - v) - ...), which is narrow and smooth.
    ∂P/∂a is its integral up to log(x/a) with the weight v + log a - ψ(a), by Gauss-Legendre where the density is not
    negligible.
    """
    term, digamma, log_x = torch.exp(_log_term(k, x)), torch.digamma(k + 1), torch.log(x)
    total = torch.zeros_like(k)
    for step in range(1, _RECURRENCE_STEPS + 1):
        total = total + term * (log_x - digamma)
        term, digamma = term * x / (k + step), digamma + 1 / (k + step)
    a = k + _RECURRENCE_STEPS
    # Below v = -low and above v = high, a(e^v - 1 - v) exceeds 38 and the density is below the last digit of float64.
    size = 38 / a
    low, high = size / 3 + torch.sqrt(size * size / 9 + 2 * size), torch.sqrt(2 * size)
    half = (torch.minimum(torch.maximum(log_x - torch.log(a), -low), high) + low) / 2
    middle = half - low
    centre = _series(1 / a, (0, 1 / 2, 1 / 12, 0, -1 / 120, 0, 1 / 252, 0, -1 / 240, 0, 1 / 132))  # log a - ψ(a)
    integral = torch.zeros_like(a)
    # Several nodes are computed at once where there are few elements, because each operation takes some microseconds.
    at_once = max(1, min(_QUADRATURE_NODES, _ELEMENTS_AT_ONCE // max(a.numel(), 1)))
    rule = (torch.from_numpy(numbers).to(a, non_blocking=True) for numbers in _QUADRATURE)
    for nodes, weights in zip(*(leading(numbers, a).split(at_once) for numbers in rule), strict=True):
        v = middle + nodes * half
        integral = integral + (weights * torch.exp(-a * (torch.expm1(v) - v)) * (v + centre)).sum(0)
    return total + integral * half * torch.sqrt(a) * torch.exp(-_stirling(a)) / SQRT_2PI


def _probability(k: Tensor, z: Tensor) -> Tensor:
    """P(G <= z), zero for z <= 0."""
    inside = z > 0
    return torch.where(inside, _IncompleteGamma.apply(*torch.broadcast_tensors(k, torch.where(inside, z, 1))), 0)


def _mass(k: Tensor, z: Tensor) -> Tensor:
    """Return k D(z), which is z times the density at z; zero for z <= 0."""
    inside = z > 0
    return torch.where(inside, k * torch.exp(_log_term(k, torch.where(inside, z, 1))), 0)


def _log_probability(k: Tensor, z: Tensor) -> Tensor:
    """Log P(G <= z); where P underflows, from the first terms of P = D(1 + z/(k + 1) + ...)."""
    x = z.clamp(min=_TINY)
    below = _probability(k, x)
    known = below > _TINY
    ratio = (k + 1) / (k + 1 - torch.where(known, 0, x))
    found = torch.where(known, torch.log(torch.where(known, below, 1)), _log_term(k, x) + torch.log(ratio))
    return torch.where(z > 0, found, -torch.inf)


def _log_term(k: Tensor, x: Tensor) -> Tensor:
    """Log D(x), with D = x^k exp(-x)/Γ(k + 1) = P(k, x) - P(k + 1, x), for x > 0."""
    small, large = k.clamp(max=_LARGE_SHAPE), k.clamp(min=_LARGE_SHAPE)
    v = torch.log(x / large)
    series = -large * (torch.expm1(v) - v) - torch.log(large) / 2 - math.log(SQRT_2PI) - _stirling(large)
    return torch.where(k < _LARGE_SHAPE, small * torch.log(x) - x - torch.lgamma(small + 1), series)


def _stirling(k: Tensor) -> Tensor:
    """Log Γ(k + 1) minus log(√(2πk) k^k exp(-k)), for large k (https://dlmf.nist.gov/5.11.E1)."""
    return _series(1 / k, (0, 1 / 12, 0, -1 / 360, 0, 1 / 1260, 0, -1 / 1680, 0, 1 / 1188))


def _half_difference(k: Tensor) -> Tensor:
    """Γ(k + ½)/(√π Γ(k)) (for large k by https://dlmf.nist.gov/5.11.E13)."""
    small, large = k.clamp(max=_LARGE_SHAPE), k.clamp(min=_LARGE_SHAPE)
    series = _series(
        1 / large, (1, -1 / 8, 1 / 128, 5 / 1024, -21 / 32768, -399 / 262144, 869 / 4194304, 39325 / 33554432)
    )
    ratio = torch.exp(torch.lgamma(small + 0.5) - torch.lgamma(small))
    return torch.where(k < _LARGE_SHAPE, ratio, torch.sqrt(large) * series) / SQRT_PI


def _series(x: Tensor, coefficients: tuple[float, ...]) -> Tensor:
    """Return the polynomial of x with these coefficients, the constant first."""
    total = torch.zeros_like(x)
    for coefficient in reversed(coefficients):
        total = total * x + coefficient
    return total


def _inverse(k: Tensor, level: Tensor) -> Tensor:
    """Return x with P(k, x) = level, by Newton's method for log P below the median and log(1 - P) above.

    Both are concave functions of log x, so Newton's method converges from any initial value. It starts at the cube of
    Wilson & Hilferty (1931), or where that is too small, at the x with x^k/Γ(k + 1) = P.
    """
    k, level = torch.broadcast_tensors(k, level)
    inner = level.clamp(1e-300, 1 - 2**-53)
    cube = 1 - 1 / (9 * k) + StandardNormal().quantile(inner) / (3 * k.sqrt())
    power = (torch.log(inner) + torch.lgamma(k + 1)) / k
    u = torch.where(cube > 0.3, torch.log(k) + 3 * torch.log(cube.clamp(min=0.3)), power)
    lower = inner < 0.5
    for _ in range(10):
        x = torch.exp(u.clamp(-690, 690))
        below = torch.special.gammainc(k, x)
        part = torch.where(lower, below, 1 - below).clamp(min=_TINY)
        gap = torch.where(lower, torch.log(inner / part), torch.log(part / (1 - inner)))
        step = gap * part / _mass(k, x).clamp(min=_TINY)
        # Where 1 - P is flat, far to the left, a step could overshoot to where 1 - P underflows.
        u = u + torch.where(lower, step, step.clamp(-1, 1))
    x = torch.exp(u)
    return torch.where(level <= 0, 0, torch.where(level < 1, x, torch.inf))
