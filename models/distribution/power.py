"""Distributions of powers: a variable such as precipitation, whose root follows another distribution."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from data_pipeline.common.errors import InputError
from models.distribution.base import Distribution, average, in_double, missing_as, root, weighted_mean

_RULE = [(float(node), float(weight)) for node, weight in zip(*np.polynomial.legendre.leggauss(28), strict=True)]
_LAST = 34.0
"""Nodes and weights of Gauss-Legendre, and the largest |log(τ/(1 - τ))| that is integrated: a probability of 2e-15 lies
beyond."""

_STEPS, _WIDEST = 8, 10.0
"""Steps of the search for a wider Y, and the greatest factor of its standard deviation."""


@dataclass(frozen=True, eq=False)
class PowerTransformed(Distribution):
    """Law of X = lower + max(Y - lower, 0)^(1/power), where Y follows the distribution `inner`.

    For `power` = 1/2 and `lower` = 0, the root of X follows `inner`, left-censored at zero: the usual model of
    precipitation. Mean, standard deviation and CRPS are integrals of the quantile function over log(τ/(1 - τ)), by
    Gauss-Legendre in double precision. For `power` = 1/2 their relative error is less than 1e-6; for 1/4, the standard
    deviation of a nearly always dry forecast has an error of 1e-4.

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
        return self._native(in_double(self)._mean)

    @property
    def std(self) -> Tensor:
        """Standard deviation."""
        exact = in_double(self)
        mean = exact._mean
        variance = exact._mass * (exact.lower - mean).square()
        for level, weight in level_nodes(exact._mass, torch.ones_like(exact._mass)):
            variance = variance + weight * (exact._quantile(level) - mean).square()
        return self._native(root(variance))

    def quantile(self, level: Tensor) -> Tensor:
        """The power of the quantile of Y."""
        return from_power(self.inner.quantile(level), self.power, self.lower)

    def cdf(self, value: Tensor) -> Tensor:
        """P(Y <= the root of the value), and zero below `lower`."""
        below = self.inner.cdf(to_power(value, self.power, self.lower))
        return torch.where(value < self.lower, 0, below)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density above `lower`; at `lower` the logarithm of its probability."""
        above = value > self.lower
        slope = np.log(self.power) + (self.power - 1) * torch.log(torch.where(above, value - self.lower, 1))
        root_of_value, censored = to_power(value, self.power, self.lower), self.inner.raised(self.lower)
        if censored is not None:
            return censored.log_prob(root_of_value) + torch.where(above, slope, 0)
        known = self._mass > 0
        mass = torch.where(known, torch.log(torch.where(known, self._mass, 1)), -torch.inf)
        return missing_as(value, torch.where(above, self.inner.log_prob(root_of_value) + slope, mass))

    def crps(self, truth: Tensor, fair: float = False) -> Tensor:
        """∫ 2τ(y - Q(τ)) dτ up to F(y), plus ∫ 2(1 - τ)(Q(τ) - y) dτ from F(y) on.

        This is the integral of the quantile score over all levels (Laio & Tamea 2007, doi:10.5194/hess-11-1267-2007).
        For a truth below `lower`, its distance from `lower` is added.
        """
        exact = in_double(self)
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

    def widened(self, error: Tensor) -> PowerTransformed:
        """Widen Y, at most `_WIDEST` times, until the variance of X has grown by that of the error."""
        std, spread, wide = self.std, self.inner.std, self
        wanted, factor = torch.hypot(std, error), torch.ones_like(std)
        for _ in range(_STEPS):
            found = wide.std
            growth = torch.where(found > 0, wanted / torch.where(found > 0, found, 1), 1)
            factor = (factor * growth.sqrt()).clamp(1, _WIDEST)
            wide = replace(self, inner=self.inner.widened(spread * (factor.square() - 1).sqrt()))
        return wide

    @property
    def name(self) -> str:
        """Name of the distribution in messages."""
        return f"power of a {self.inner.name}"

    def average(self, others: Sequence[PowerTransformed], weights: Tensor | None = None) -> PowerTransformed:
        """Return the power of the average of the distributions `inner`."""
        parts = self, *others
        if len(powers := sorted({part.power for part in parts})) > 1:
            given = " and ".join(f"{power:g}" for power in powers)
            raise InputError(f"forecasts with model.power {given} cannot be averaged; combine those of one power")
        inner = average([part.inner for part in parts], weights)
        return PowerTransformed(inner, self.power, weighted_mean([part.lower for part in parts], weights))

    def export_form(self) -> dict[str, Any] | None:
        """Return the parameters, if `inner` is a location-scale family that NumPy has."""
        inner = self.inner.export_form()
        return {"kind": type(self).__name__, **vars(self), "inner": inner} if inner and "mu" in inner else None

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

    def _quantile(self, level: Tensor) -> Tensor:
        """Quantiles at levels (*S)."""
        return from_power(self.inner.quantile(level[None])[0], self.power, self.lower)

    def _native(self, value: Tensor) -> Tensor:
        return value.to(self.lower.dtype)


def to_power(value: Tensor, power: float, lower: Tensor) -> Tensor:
    """Return lower + max(value - lower, 0)^power; its derivative is 0 at `lower`, also where the limit is infinite."""
    above = value - lower
    outside = above <= 0
    return lower + torch.where(outside, 0, torch.where(outside, 1, above) ** power)


def from_power(value: Tensor, power: float, lower: Tensor) -> Tensor:
    """Return lower + max(value - lower, 0)^(1/power), the inverse of `to_power`."""
    return to_power(value, 1 / power, lower)


def level_nodes(low: Tensor, high: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield levels τ between `low` and `high`, and their weights in an integral by τ.

    Nodes are those of Gauss-Legendre for s, where τ = 1/(1 + exp(-sinh s)). They are dense where dτ/ds is large.
    """
    start, end = (torch.asinh(_bounded_logit(level)) for level in (low, high))
    middle, half = (start + end) / 2, (end - start) / 2
    for node, weight in _RULE:
        s = middle + half * node
        u = torch.sinh(s)
        level = torch.sigmoid(u)
        yield level, weight * half * torch.cosh(s) * level * torch.sigmoid(-u)


def _bounded_logit(level: Tensor) -> Tensor:
    """Return log(τ/(1 - τ)), at most `_LAST` in size; its derivative is 0 at the levels 0 and 1."""
    inside = (level > 0) & (level < 1)
    end = torch.where(level > 0.5, _LAST, -_LAST) + 0 * level  # NaN stays NaN
    return torch.where(inside, torch.logit(torch.where(inside, level, 0.5)).clamp(-_LAST, _LAST), end)


def power_transformed(distribution: Distribution, power: float, lower: Tensor) -> Distribution:
    """Return the law of lower + max(Y - lower, 0)^(1/power) for Y from a distribution.

    The power of an ensemble is an ensemble, the power of an empirical distribution an empirical distribution.
    """

    def transformed(part: Distribution) -> Distribution:
        found = part.of_values(lambda values: from_power(values, power, lower))
        return PowerTransformed(part, power, lower.expand_as(part.mean)) if found is None else found

    return distribution.map(transformed)


def threshold_weighted_crps(
    distribution: Distribution, truth: Tensor, threshold: Tensor, fair: float = False
) -> Tensor:
    """∫ (F(x) - 1{y <= x})² dx over x >= `threshold` only, (*S) (Gneiting & Ranjan 2011, doi:10.1198/jbes.2010.08110).

    It is the CRPS of max(X, threshold) against max(y, threshold) (Allen et al. 2023, doi:10.1137/22M1532184). Where
    this has no closed form, the integral by Gauss-Legendre has a relative error of 1e-6. `fair` is as in `crps`.

    >>> from models.distribution.location_scale import Normal
    >>> one = torch.ones(1)
    >>> threshold_weighted_crps(Normal(0 * one, one), -one, threshold=-100 * one) == Normal(0 * one, one).crps(-one)
    tensor([True])
    """

    def score(part: Distribution) -> Tensor:
        raised = part.raised(threshold)
        if raised is not None:
            return raised.crps(torch.maximum(truth, threshold), fair)
        numeric = PowerTransformed(in_double(part), 1.0, threshold.double())
        return numeric.crps(torch.maximum(truth, threshold).double()).to(truth)

    return distribution.scored(score)
