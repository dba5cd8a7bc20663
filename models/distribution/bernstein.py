"""A distribution whose quantile function is a polynomial: flexible in shape, with a lowest and a highest value."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from models.distribution.base import Distribution, leading, missing_as, root


@dataclass(frozen=True, eq=False)
class Bernstein(Distribution):
    """Distribution with quantile function Q(τ) = Σ α_k b_k(τ), b_k the Bernstein polynomials of degree d.

    `coefficients` holds the α_k, (d + 1, *S), from the lowest to the highest value of the distribution (Bremnes 2020,
    doi:10.1175/MWR-D-19-0227.1). A coefficient smaller than an earlier one is raised to it. Scores are exact, without
    a sum over levels.

    >>> Bernstein(torch.tensor([[1.0], [3.0]])).mean
    tensor([2.])
    """

    coefficients: Tensor
    exported: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if len(self.coefficients) < 2:
            raise ValueError("a Bernstein quantile function needs at least two coefficients")
        object.__setattr__(self, "coefficients", self.coefficients.cummax(0).values)

    @property
    def mean(self) -> Tensor:
        """Mean of the coefficients, because every b_k has the integral 1/(d + 1)."""
        return self.coefficients.mean(0)

    @property
    def std(self) -> Tensor:
        """Root of Σ Σ a_j a_k ∫ b_j b_k, where a are the coefficients minus their mean."""
        a, d = self.coefficients - self.mean, self._degree
        variance = torch.zeros_like(a[0])
        for j in range(d + 1):
            for k in range(d + 1):
                product = math.comb(d, j) * math.comb(d, k) / math.comb(2 * d, j + k) / (2 * d + 1)
                variance = variance + product * a[j] * a[k]
        return root(variance)

    def quantile(self, level: Tensor) -> Tensor:
        """Q(level)."""
        return _polynomial(self.coefficients, leading(level, self.coefficients[0]))

    def cdf(self, value: Tensor) -> Tensor:
        """The largest τ with Q(τ) <= value; 0 below the lowest value, and 1 from the highest value on."""
        known = self._level(value)
        # Gradients of the inverse function; they are zero where Q is flat.
        slope = self._slope(known)
        step = (value - _polynomial(self.coefficients, known)) / slope.clamp(min=torch.finfo(slope.dtype).tiny ** 0.4)
        inside = (known > 0) & (known < 1) & (slope > 0)
        return torch.where(inside, known + step - step.detach(), known)

    def log_prob(self, value: Tensor) -> Tensor:
        """-log Q'(F(value)), and minus infinity below the lowest and above the highest value."""
        slope = self._slope(self.cdf(value))
        density = -torch.log(slope.clamp(min=torch.finfo(slope.dtype).tiny ** 0.4))
        outside = (value < self.coefficients[0]) | (value > self.coefficients[-1])
        return missing_as(value, torch.where(outside, -torch.inf, density))

    def crps(self, truth: Tensor, fair: float = False) -> Tensor:
        """∫|Q(τ) - y| dτ - ∫(2τ - 1) Q(τ) dτ, both integrals of polynomials.

        With a = α - y and p = F(y), the first integral is Σ a_k/(d + 1) minus twice the integral up to p. The latter is
        the polynomial of degree d + 1 whose coefficients are the partial sums of a_k/(d + 1). The second integral is
        Σ a_k (2k - d)/((d + 1)(d + 2)).
        """
        a, d = self.coefficients - truth, self._degree
        partial = torch.cat([torch.zeros_like(a[:1]), a.cumsum(0)]) / (d + 1)
        k = torch.arange(d + 1, dtype=a.dtype, device=a.device)
        spread = (leading(2 * k - d, a[0]) * a).sum(0) / ((d + 1) * (d + 2))
        # The derivative of the score by p is zero, because the integrand changes sign there.
        return a.mean(0) - 2 * _polynomial(partial, self._level(truth)) - spread

    def affine(self, location: Tensor, scale: Tensor) -> Bernstein:
        """Shift and scale every coefficient."""
        return Bernstein(location + scale * self.coefficients)

    @property
    def _degree(self) -> int:
        """Degree d of the polynomial: one less than the number of coefficients."""
        return len(self.coefficients) - 1

    def _slope(self, level: Tensor) -> Tensor:
        """Q'(level), a polynomial of degree d - 1."""
        return _polynomial(self._degree * self.coefficients.diff(dim=0), level)

    @torch.no_grad()
    def _level(self, value: Tensor) -> Tensor:
        """Return F(value) by bisection, with one step for each binary digit."""
        # Differences from the value, because large nearly equal numbers lose digits.
        a = self.coefficients - value
        low = torch.zeros_like(a[0])
        width = 1.0
        for _ in range(1 - math.frexp(torch.finfo(a.dtype).eps)[1]):
            width /= 2
            low = torch.where(_polynomial(a, low + width) <= 0, low + width, low)
        return missing_as(value, torch.where(a[-1] <= 0, 1, torch.where(a[0] > 0, 0, low + width / 2)))


def _polynomial(coefficients: Tensor, level: Tensor) -> Tensor:
    """Return Σ c_k b_k(level) by Horner's scheme for Bernstein polynomials (Farin 2002, section 5.1)."""
    d = len(coefficients) - 1
    rest, power = 1 - level, torch.ones_like(level)
    total = coefficients[0] * power
    for k in range(1, d + 1):
        power = power * level
        total = total * rest + math.comb(d, k) * power * coefficients[k]
    return total
