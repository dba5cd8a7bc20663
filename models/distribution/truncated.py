"""The normal distribution truncated at a lower bound, for example of wind speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from models.distribution.base import leading, scaled_to_mean
from models.distribution.location_scale import Bounded
from models.distribution.standard import SQRT_2, SQRT_PI, Standard, StandardNormal

_TAIL_START, _FRACTION_TERMS = 3.0, 25
"""Where the continued fraction of Mills' ratio starts (z), and its number of terms; they give all digits of float64."""


@dataclass(frozen=True, eq=False)
class TruncatedNormal(Bounded):
    """Law of X = μ + σZ given that X > `lower`, with Z standard normal.

    With l = (lower - μ)/σ, there are two formulas for each quantity. For l > 0, little probability is left above
    `lower`: the excess over `lower` is nearly exponential, and differences of probabilities have no digits. The
    formulas for l > 0 need the mean excess m(l) = φ(l)/Φ(-l) - l only.
    """

    standard: ClassVar[Standard] = StandardNormal()
    exported: ClassVar[bool] = False

    @property
    def mean(self) -> Tensor:
        """μ + σ φ(l)/Φ(-l), which is lower + σ m(l)."""
        head, tail = self._bound
        return torch.where(
            self._in_tail,
            self.lower + self.sigma * _excess(tail)[0],
            self.mu + self.sigma * self.standard.upper_mean(head) / self.standard.cdf(-head),
        )

    @property
    def std(self) -> Tensor:
        """σ √(1 + l h - h²) with h = φ(l)/Φ(-l), which is σ √(1 - h m(l))."""
        head, tail = self._bound
        hazard = self.standard.upper_mean(head) / self.standard.cdf(-head)
        excess, rest = _excess(tail)
        # √m √(1/m - l - m), because the product under one root may underflow.
        outer, inner = excess.sqrt() * (rest - excess).sqrt(), (1 + hazard * (head - hazard)).sqrt()
        return self.sigma * torch.where(self._in_tail, outer, inner)

    def quantile(self, level: Tensor) -> Tensor:
        """Inverse of `cdf`, at least `lower`."""
        level = leading(level, self.mu)
        head, tail = self._bound
        mass = self.standard.cdf(-head)
        below, above = self.standard.cdf(head) + level * mass, (1 - level) * mass
        # From the nearer end, because probabilities near 1 have few digits.
        z = torch.where(below < above, self.standard.quantile(below), -self.standard.quantile(above))
        inner = torch.maximum(self.mu + self.sigma * z, self.lower)
        log_survival = torch.log1p(-level)
        # The survival function lies below exp(-t(l + t/2)). Newton's method starts at the root of this bound.
        excess = -2 * log_survival / (tail + torch.sqrt(tail * tail - 2 * log_survival))
        first = tail + _excess(tail)[0]
        for _ in range(8):
            z = tail + excess
            hazard = z + _excess(z)[0]
            found = torch.log(first / hazard) - excess * (tail + excess / 2)  # as `_log_survival`
            excess = excess + (found - log_survival) / hazard
        outer = torch.where(level < 1, self.lower + self.sigma * excess.clamp(min=0), torch.inf)
        return torch.where(self._in_tail, outer, inner)

    def cdf(self, value: Tensor) -> Tensor:
        """1 - Φ(-z)/Φ(-l) with z = (value - μ)/σ, and zero below `lower`."""
        head, tail = self._bound
        excess = self._above(value)
        below = self.standard.cdf(self._z(torch.maximum(value, self.lower))) - self.standard.cdf(head)
        return torch.where(self._in_tail, -torch.expm1(_log_survival(tail, excess)), below / self.standard.cdf(-head))

    def log_prob(self, value: Tensor) -> Tensor:
        """log φ(z) - log Φ(-l) - log σ, and minus infinity below `lower`."""
        head, tail = self._bound
        excess = self._above(value)
        inner = self.standard.log_density(self._z(value)) - self.standard.log_cdf(-head)
        outer = torch.log(tail + _excess(tail)[0]) - excess * (tail + excess / 2)
        density = torch.where(self._in_tail, outer, inner) - torch.log(self.sigma)
        return torch.where(value < self.lower, -torch.inf, density)

    def crps(self, truth: Tensor, fair: float = False) -> Tensor:
        """σ [z(1 - 2S) + 2φ(z)/P - Φ(-√2 l)/(√π P²)] with P = Φ(-l), S = Φ(-z)/P and z = (y - μ)/σ.

        For a truth below `lower`, its distance from `lower` is added (Thorarinsdottir & Gneiting 2010,
        doi:10.1111/j.1467-985X.2009.00616.x). For l > 0 the same is σ [e - 2m(l) + 2S m(z) + J], where e = z - l and J,
        the integral of the squared survival function, is (l n + 2 m(l) n - m(l)²)/(l + n) with n = m(√2 l)/√2.
        """
        head, tail = self._bound
        standard, y = self.standard, torch.maximum(truth, self.lower)
        z, excess = self._z(y), self._above(truth)
        mass = standard.cdf(-head)
        inner = (y - self.mu) * (1 - 2 * standard.cdf(-z) / mass) + self.sigma * (
            2 * standard.upper_mean(z) / mass - standard.cdf(-SQRT_2 * head) / (SQRT_PI * mass * mass)
        )
        m, n = _excess(tail)[0], _excess(SQRT_2 * tail)[0] / SQRT_2
        squared = (tail * n + 2 * m * n - m * m) / (tail + n)
        beyond = torch.exp(_log_survival(tail, excess)) * _excess(tail + excess)[0]
        outer = (y - self.lower) + self.sigma * (2 * (beyond - m) + squared)
        return torch.where(self._in_tail, outer, inner) + (self.lower - truth).clamp(min=0)

    def average(self, others: Sequence[Self], weights: Tensor | None = None) -> Self:
        """Return the distribution with the means of μ and σ, scaled about `lower` to the mean of the means."""
        found: Self = scaled_to_mean(super().average(others, weights), (self, *others), weights)
        return found

    @property
    def _in_tail(self) -> Tensor:
        """Where l > 0."""
        return self.lower > self.mu

    @property
    def _bound(self) -> tuple[Tensor, Tensor]:
        """l where l <= 0, else 0; and l where l > 0, else 0. Unused formulas need finite gradients, too."""
        bound = self._z(self.lower)
        return torch.where(self._in_tail, 0, bound), torch.where(self._in_tail, bound, 0)

    def _above(self, value: Tensor) -> Tensor:
        """(value - lower)/σ, at least zero."""
        return (value - self.lower).clamp(min=0) / self.sigma


def _excess(z: Tensor) -> tuple[Tensor, Tensor]:
    """Return m(z) = φ(z)/Φ(-z) - z for z >= 0, and 1/m(z) - z."""
    m, rest, _ = _Excess.apply(z)
    return m, rest


class _Excess(torch.autograd.Function):
    """The first three of m_k = k/(z + m_{k+1}), where m_1 is the mean excess, with m_k' = m_k² + z m_k - k.

    Computed from the scaled error function, and for large z from the continued fraction 1/(z + 2/(z + 3/(z + ...))),
    which needs no difference of nearly equal numbers (https://dlmf.nist.gov/7.9). Nor does m_k' = m_k (m_k - m_{k+1}).
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> tuple[Tensor, ...]:
        near, far = z.clamp(max=_TAIL_START), z.clamp(min=_TAIL_START)
        first = SQRT_2 / (SQRT_PI * torch.special.erfcx(near / SQRT_2)) - near
        second = 1 / first - near
        rest = torch.zeros_like(far)
        for k in range(_FRACTION_TERMS, 2, -1):
            rest = k / (far + rest)
        beyond, inner = 2 / (far + rest), (first, second, 2 / second - near)
        outer = 1 / (far + beyond), beyond, rest
        found = tuple(torch.where(z > _TAIL_START, *pair) for pair in zip(outer, inner, strict=True))
        ctx.save_for_backward(z, *found)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        z, first, second, third = ctx.saved_tensors
        slopes = first * (first - second), second * (second - third), third * (third + z) - 3
        return sum((gradient * slope for gradient, slope in zip(gradients, slopes, strict=True)), torch.zeros_like(z))


def _log_survival(bound: Tensor, excess: Tensor) -> Tensor:
    """log Φ(-z) - log Φ(-l) for l = `bound` >= 0 and z = l + `excess`."""
    z = bound + excess
    return torch.log((bound + _excess(bound)[0]) / (z + _excess(z)[0])) - excess * (bound + excess / 2)
