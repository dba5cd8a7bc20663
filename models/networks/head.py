"""How some numbers of a network per target and cell become a distribution."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from data_pipeline.common.checks import check_choice, check_integer
from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.distribution import FAMILIES, Bernstein, CensoredShiftedGamma, Distribution, LocationScale, Normal
from models.distribution.location_scale import Bounded
from models.distribution.standard import SQRT_2PI
from models.networks.start import Start, start_for
from models.parallel.domain import Domain
from models.parallel.exchange import assemble

HEADS = (*FAMILIES, "censored_shifted_gamma", "bernstein")
"""The kinds of heads by the name that configurations use."""


def head_for(kind: str, task: Task, grid: Grid | Domain, baseline: dict[str, Any] | None = None) -> Head:
    """Return the head of the name `kind`, one of `HEADS`, on the start that `start_for` makes of the options."""
    check_choice("model.head", kind, HEADS)
    begin = start_for(baseline, task, grid)
    if kind == "bernstein":
        return BernsteinHead(task, start=begin)
    if kind == "censored_shifted_gamma":
        return GammaHead(task, grid, begin)
    family = FAMILIES[kind]
    if issubclass(family, Bounded):
        return BoundedHead(task, grid, family, begin)
    return LocationScaleHead(task, family, begin)


class Head(nn.Module):
    """Turns `count` maps, some for each target, and mean m and spread s of the `start` into a distribution.

    Zero maps are the start, by default the raw ensemble, as a distribution of this kind, where all training starts.
    """

    def __init__(self, task: Task, maps: int, start: Start | None = None) -> None:
        super().__init__()
        self.start, self._maps = start or Start(task), maps
        self.count = maps * len(task.targets)

    def forward(self, output: Tensor, sample: Sample) -> Distribution:
        """Return the distribution over (B, T, H, W) for network output (B, count, H, W)."""
        # Scores are never taken in half precision.
        output = output.to(torch.promote_types(output.dtype, torch.float32))
        return self.distribution(*self.start(sample), *output.chunk(self._maps, dim=1))

    def distribution(self, m: Tensor, s: Tensor, *maps: Tensor) -> Distribution:
        """Return the distribution for mean, spread and maps o₀, o₁, ..., (B, T, H, W) each."""
        raise NotImplementedError

    def normalise(self, location: Tensor, scale: Tensor) -> None:
        """Learn the units (x - location)/scale in which samples will come, if they matter."""
        self.start.normalise(location, scale)

    def fit(self, batches: Iterable[Sample]) -> None:
        """Fit the start to the training samples, if there is something to fit."""
        self.start.fit(batches)


class LocationScaleHead(Head):
    """μ = m + s o₀, σ = s exp(o₁)/ς, where ς is the standard deviation of the family's standard distribution."""

    def __init__(self, task: Task, family: type[LocationScale], start: Start | None = None) -> None:
        super().__init__(task, 2, start)
        self._family = family

    def distribution(self, m: Tensor, s: Tensor, *maps: Tensor) -> LocationScale:
        """Return the distribution of the family."""
        return self._family(*self._arguments(m, s, *maps))

    def _arguments(self, m: Tensor, s: Tensor, *maps: Tensor) -> tuple[Tensor, ...]:
        shift, stretch = maps
        return m + s * shift, s * factor(stretch) / self._family.standard.std


class GaussianHead(LocationScaleHead):
    """μ = m + s o₀, σ = s exp(o₁) (ENS-10, Ashkboos et al. 2022)."""

    def __init__(self, task: Task) -> None:
        super().__init__(task, Normal)


class BoundedHead(LocationScaleHead):
    """The same for a family that has nothing below the targets' physical bounds."""

    def __init__(
        self, task: Task, grid: Grid | Domain, family: type[LocationScale], start: Start | None = None
    ) -> None:
        super().__init__(task, family, start)
        self.bound = LowerBound(task, grid)

    def normalise(self, location: Tensor, scale: Tensor) -> None:
        """Move bounds into these units."""
        super().normalise(location, scale)
        self.bound.normalise(location, scale)

    def _arguments(self, m: Tensor, s: Tensor, *maps: Tensor) -> tuple[Tensor, ...]:
        return *super()._arguments(m, s, *maps), self.bound()


class GammaHead(Head):
    """A gamma distribution that begins at l - δ, δ = s exp(o₂), and is censored at the targets' lower bound l.

    Its mean lies g = (d + s) exp(o₀ s/(d + s)) above the beginning, d = m - l, and its standard deviation is s exp(o₁):
    o₀ is a factor where the ensemble is dry, d = 0, and shifts by spreads where it is far above the bound. Uncorrected
    the one is exponential and the other nearly normal.
    """

    FARTHEST = 300.0
    """Standard deviations between beginning and mean at most; the skewness is less than 0.007 then."""

    def __init__(self, task: Task, grid: Grid | Domain, start: Start | None = None) -> None:
        super().__init__(task, 3, start)
        self.bound = LowerBound(task, grid)

    def normalise(self, location: Tensor, scale: Tensor) -> None:
        """Move bounds into these units."""
        super().normalise(location, scale)
        self.bound.normalise(location, scale)

    def distribution(self, m: Tensor, s: Tensor, *maps: Tensor) -> CensoredShiftedGamma:
        """Return the censored, shifted gamma distribution."""
        amount, stretch, shift = maps
        lower = self.bound()
        raw, std = (m - lower).clamp(min=0) + s, s * factor(stretch)
        mean = raw * factor(amount * s / raw)
        above = torch.minimum(mean, self.FARTHEST * std)
        begin = lower - s * factor(shift) + (mean - above)
        return CensoredShiftedGamma((above / std).square(), std * (std / above), begin, lower)


class BernsteinHead(Head):
    """Coefficients α of a quantile function of degree d (Bremnes 2020, doi:10.1175/MWR-D-19-0227.1).

    Their mean, which is that of the distribution, is m + s o₀, and the steps from each to the next are
    s ζ_k exp(o_k), which is never negative: quantiles do not cross. The steps ζ are those of a function near the
    standard normal one. There is no probability beyond the ends, for d = 12 at first 2.4 s on either side.
    """

    steps: Tensor

    def __init__(self, task: Task, degree: int = 12, start: Start | None = None) -> None:
        check_integer("degree", degree, 1)
        super().__init__(task, degree + 1, start)
        steps = torch.tensor(normal_coefficients(degree)).diff()
        self.register_buffer("steps", steps.to(torch.get_default_dtype()), persistent=False)

    def distribution(self, m: Tensor, s: Tensor, *maps: Tensor) -> Bernstein:
        """Return the distribution with this quantile function."""
        location, *stretches = maps
        steps = [step * factor(o) for step, o in zip(self.steps, stretches, strict=True)]
        heights = torch.stack([torch.zeros_like(location), *steps]).cumsum(0)
        return Bernstein(m + s * (location + heights - heights.mean(0)))


class LowerBound(nn.Module):
    """The least value that each target can have, at every cell in the units in which samples come."""

    value: Tensor

    def __init__(self, task: Task, grid: Grid | Domain) -> None:
        super().__init__()
        self._domain, self._physical = Domain.of(grid), []
        for target in task.targets:
            if (lower := target.bounds[0]) is None:
                raise InputError(f"model.head: {target} has no lower bound to be censored at; take head=normal")
            self._physical.append([[lower]])
        self.register_buffer("value", torch.tensor(self._physical).expand(-1, *grid.shape).clone())

    def normalise(self, location: Tensor, scale: Tensor) -> None:
        """Put the bound into the units (x - location)/scale."""
        bound = torch.tensor(self._physical).to(location)
        self.value.copy_(assemble((bound - location) / scale, self._domain))

    def forward(self) -> Tensor:
        """Return the bounds (T, H, W) of the own tile."""
        return self._domain.cut(self.value)


def normal_coefficients(degree: int) -> list[float]:
    """Return increasing Bernstein coefficients of mean 0 and standard deviation 1 for a quantile function near Φ⁻¹.

    What the integrals of b_k Φ⁻¹ less those of b_k Q say is added to the coefficients of Q, times d + 1, ten times from
    zero on. Once gives the expected order statistics of d + 1 draws, which have too little in the tails; forever, the
    nearest polynomial, which decreases in places.
    """
    # On the CPU, also where a model is only outlined: these are numbers, not tensors of it.
    with torch.device("cpu"):
        return _normal_coefficients(degree)


def _normal_coefficients(degree: int) -> list[float]:
    z = torch.linspace(-12, 12, 4001, dtype=torch.float64)
    density, below = torch.exp(-z * z / 2) / SQRT_2PI * (z[1] - z[0]), torch.special.ndtr(z)
    powers = [math.comb(degree, k) * below**k * (1 - below) ** (degree - k) for k in range(degree + 1)]
    basis = torch.stack(powers)
    coefficients = torch.zeros(degree + 1, dtype=torch.float64)
    for _ in range(10):
        coefficients = coefficients + (degree + 1) * (basis * density * (z - coefficients @ basis)).sum(1)
    coefficients = (coefficients - coefficients.flip(0)) / 2
    return (coefficients / Bernstein(coefficients).std).tolist()


def factor(output: Tensor) -> Tensor:
    """Return exp(output), at most e⁸ and at least e⁻⁸."""
    return torch.exp(output.clamp(-8, 8))


def silent(inputs: int, outputs: int) -> nn.Conv2d:
    """Return a network's last layer, cell by cell, that says nothing until it is trained."""
    layer = nn.Conv2d(inputs, outputs, 1)
    layer.weight.data.zero_()
    layer.bias.data.zero_()  # type: ignore[union-attr]
    return layer
