"""Distributions of powers: a variable such as precipitation, whose root follows another distribution."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from models.distribution.base import Distribution, Patched
from models.distribution.empirical import Empirical
from models.distribution.ensemble import Ensemble

_NODES, _LAST = 28, 34.0
"""Nodes of Gauss-Legendre, and the largest |log(τ/(1 - τ))| that is integrated: a probability of 2e-15 lies beyond."""


@dataclass(frozen=True, eq=False)
class PowerTransformed:
    """Law of X = lower + max(Y - lower, 0)^(1/power), where Y follows the distribution `inner`.

    For `power` = 1/2 and `lower` = 0, the root of X follows `inner`, left-censored at zero: the usual model of
    precipitation. Mean, standard deviation and CRPS are integrals of the quantile function over log(τ/(1 - τ)), by
    Gauss-Legendre in double precision. For `power` = 1/2 their relative error is less than 1e-6; for 1/4 that of the
    standard deviation of a nearly always dry forecast is 1e-4.

    >>> from models.distribution.location_scale import Normal
    >>> PowerTransformed(Normal(torch.tensor([3.0]), torch.tensor([1.0])), 0.5, torch.tensor([0.0])).mean.round()
    tensor([10.])
    """

    inner: Distribution
    power: float
    lower: Tensor

    @property
    def mean(self) -> Tensor:
        """Expectation."""
        return self._native(self._exact._mean)

    @property
    def std(self) -> Tensor:
        """Standard deviation."""
        exact = self._exact
        mean = exact._mean
        variance = exact._mass * (exact.lower - mean).square()
        for level, weight in level_nodes(exact._mass, torch.ones_like(exact._mass)):
            variance = variance + weight * (exact._quantile(level) - mean).square()
        return self._native(variance.sqrt())

    def quantile(self, level: Tensor) -> Tensor:
        """The power of the quantile of Y."""
        return from_power(self.inner.quantile(level), self.power, self.lower)

    def cdf(self, value: Tensor) -> Tensor:
        """P(Y <= the root of the value), and zero below `lower`."""
        below = self.inner.cdf(to_power(value, self.power, self.lower))
        return torch.where(value < self.lower, 0, below)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density above `lower`; at `lower` the logarithm of its probability."""
        root = to_power(value, self.power, self.lower)
        above = torch.where(value > self.lower, value - self.lower, 1)
        density = self.inner.log_prob(root) + np.log(self.power) + (self.power - 1) * torch.log(above)
        return torch.where(value > self.lower, density, torch.log(self.inner.cdf(self.lower)))

    def crps(self, truth: Tensor, fair: float = False) -> Tensor:
        """∫ 2τ(y - Q(τ)) dτ up to F(y), plus ∫ 2(1 - τ)(Q(τ) - y) dτ from there on; a truth below adds its distance.

        This is the integral of the quantile score over all levels (Laio & Tamea 2007, doi:10.5194/hess-11-1267-2007).
        """
        exact = self._exact
        y = torch.maximum(truth.double(), exact.lower)
        level = exact.cdf(y)
        score = exact._mass.square() * (y - exact.lower)
        for tau, weight in level_nodes(exact._mass, level):
            score = score + 2 * weight * tau * (y - exact._quantile(tau))
        for tau, weight in level_nodes(level, torch.ones_like(level)):
            score = score + 2 * weight * (1 - tau) * (exact._quantile(tau) - y)
        return self._native(score + (exact.lower - truth).clamp(min=0))

    def affine(self, location: Tensor, scale: Tensor) -> PowerTransformed:
        """Shift and scale X, its lower bound, and Y such that X stays a power of it."""
        lower, factor = location + scale * self.lower, scale**self.power
        return PowerTransformed(self.inner.affine(lower - factor * self.lower, factor), self.power, lower)

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Independent draws."""
        return from_power(self.inner.sample(count, generator), self.power, self.lower)

    @property
    def _mean(self) -> Tensor:
        total = self._mass * self.lower
        for level, weight in level_nodes(self._mass, torch.ones_like(self._mass)):
            total = total + weight * self._quantile(level)
        return total

    @property
    def _mass(self) -> Tensor:
        """Probability of `lower`."""
        return self.inner.cdf(self.lower)

    @property
    def _exact(self) -> PowerTransformed:
        """The same distribution in double precision."""
        inner: Any = self.inner
        numbers = {field.name: getattr(inner, field.name) for field in fields(inner)}
        double = {name: value.double() for name, value in numbers.items() if isinstance(value, Tensor)}
        return PowerTransformed(replace(inner, **double), self.power, self.lower.double())

    def _quantile(self, level: Tensor) -> Tensor:
        """Quantiles at levels (*S)."""
        return from_power(self.inner.quantile(level[None])[0], self.power, self.lower)

    def _native(self, value: Tensor) -> Tensor:
        return value.to(self.lower.dtype)


def to_power(value: Tensor, power: float, lower: Tensor) -> Tensor:
    """Return lower + max(value - lower, 0)^power."""
    return lower + (value - lower).clamp(min=0) ** power


def from_power(value: Tensor, power: float, lower: Tensor) -> Tensor:
    """Return lower + max(value - lower, 0)^(1/power), the inverse of `to_power`."""
    return to_power(value, 1 / power, lower)


def level_nodes(low: Tensor, high: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield levels τ between `low` and `high`, and their weights in an integral by τ.

    Nodes are those of Gauss-Legendre for s, where τ = 1/(1 + exp(-sinh s)). They are dense where dτ/ds is large.
    """
    start, end = (torch.asinh(torch.logit(level).clamp(-_LAST, _LAST)) for level in (low, high))
    middle, half = (start + end) / 2, (end - start) / 2
    for node, weight in zip(*np.polynomial.legendre.leggauss(_NODES), strict=True):
        s = middle + half * float(node)
        u = torch.sinh(s)
        level = torch.sigmoid(u)
        yield level, float(weight) * half * torch.cosh(s) * level * torch.sigmoid(-u)


def power_transformed(distribution: Distribution, power: float, lower: Tensor) -> Distribution:
    """Return the law of lower + max(Y - lower, 0)^(1/power) for Y from a distribution.

    Powers of an ensemble are an ensemble, and so for an empirical distribution.
    """
    if isinstance(distribution, Ensemble):
        return Ensemble(from_power(distribution.members, power, lower))
    if isinstance(distribution, Empirical):
        return Empirical(from_power(distribution.values, power, lower))
    if isinstance(distribution, Patched):
        inner, outer = (power_transformed(part, power, lower) for part in (distribution.inner, distribution.outer))
        return Patched(distribution.where, inner, outer)
    return PowerTransformed(distribution, power, lower.expand_as(distribution.mean))
