"""One distribution in some places, another elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from models.distribution.interface import Distribution


@dataclass(frozen=True, eq=False)
class Patched:
    """`inner` where `where` (*S), or what broadcasts to it, is True, and `outer` elsewhere."""

    where: Tensor
    inner: Distribution
    outer: Distribution

    @property
    def mean(self) -> Tensor:
        """Expectation."""
        return torch.where(self.where, self.inner.mean, self.outer.mean)

    @property
    def std(self) -> Tensor:
        """Standard deviation."""
        return torch.where(self.where, self.inner.std, self.outer.std)

    def quantile(self, level: Tensor) -> Tensor:
        """Quantiles, level (K,) gives (K, *S)."""
        return torch.where(self.where, self.inner.quantile(level), self.outer.quantile(level))

    def cdf(self, value: Tensor) -> Tensor:
        """Probability of not exceeding `value`."""
        return torch.where(self.where, self.inner.cdf(value), self.outer.cdf(value))

    def log_prob(self, value: Tensor) -> Tensor:
        """Logarithm of the density."""
        return torch.where(self.where, self.inner.log_prob(value), self.outer.log_prob(value))

    def crps(self, truth: Tensor, fair: float = False) -> Tensor:
        """Continuous ranked probability score."""
        return torch.where(self.where, self.inner.crps(truth, fair), self.outer.crps(truth, fair))

    def affine(self, location: Tensor, scale: Tensor) -> Patched:
        """Shift and stretch both."""
        return Patched(self.where, self.inner.affine(location, scale), self.outer.affine(location, scale))

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Independent draws from both."""
        return torch.where(self.where, self.inner.sample(count, generator), self.outer.sample(count, generator))
