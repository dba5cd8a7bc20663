"""Heads: from a few network outputs per target and cell to a distribution."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from data_pipeline.common.checks import check_choice, check_integer, per_target
from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.distribution import FAMILIES, GAMMA, Bernstein, CensoredShiftedGamma, Distribution, LocationScale, by_target
from models.distribution.location_scale import Bounded
from models.distribution.standard import SQRT_2PI
from models.networks.baseline import Baseline, BaselineOption, make_baseline
from models.networks.error_climate import ErrorClimate
from models.parallel.domain import Domain
from models.parallel.exchange import assemble

HEADS = (*FAMILIES, GAMMA, "bernstein")
"""Values of the option `head`."""
HeadOption = str | Sequence[str]


def make_head(kind: HeadOption, task: Task, grid: Grid | Domain, baseline: BaselineOption = None) -> Head:
    """Return the head `kind`, one of `HEADS` or a list of `FAMILIES` with one for each target.

    `baseline` is the option of `make_baseline`.
    """
    families = per_target(kind, len(task.targets), "head")
    for each in families:
        check_choice("model.head", each, HEADS if isinstance(kind, str) else tuple(FAMILIES))
    start = make_baseline(baseline, task, grid)
    if kind == "bernstein":
        return BernsteinHead(task, baseline=start)
    if kind == GAMMA:
        return GammaHead(task, grid, start)
    bounded = [issubclass(FAMILIES[each], Bounded) for each in families]
    bound = LowerBound(task, grid, bounded) if any(bounded) else None
    return LocationScaleHead(task, [FAMILIES[each] for each in families], bound, start)


class Head(nn.Module):
    """Makes a distribution from mean m and spread s of a baseline and `count` network outputs, equally many per target.

    Outputs of zero give the baseline, by default the raw ensemble, as a distribution of this kind: training starts
    there.
    """

    def __init__(self, task: Task, maps: int, baseline: Baseline | None = None) -> None:
        super().__init__()
        # Corrector files call the baseline `start`.
        self.start, self._maps = baseline or Baseline(task), maps
        self.count = maps * len(task.targets)

    def forward(self, output: Tensor, sample: Sample, errors: Tensor | None = None) -> Distribution:
        """Return the distribution over (B, T, H, W) for network output (B, count, H, W).

        `errors` (B, 2T, H, W) come from `ErrorClimate`; the baseline `climate` needs them.
        """
        # Scores are computed in single precision at least.
        output = output.to(torch.promote_types(output.dtype, torch.float32))
        return self.distribution(*self.start(sample, errors), *output.chunk(self._maps, dim=1))

    def distribution(self, m: Tensor, s: Tensor, *maps: Tensor) -> Distribution:
        """Return the distribution for mean, spread and outputs o₀, o₁, ..., (B, T, H, W) each."""
        raise NotImplementedError

    def normalise(self, location: Tensor, scale: Tensor) -> None:
        """Set the units (x - location)/scale of samples, if they matter."""
        self.start.normalise(location, scale)

    def fit(self, batches: Iterable[Sample], errors: ErrorClimate | None = None) -> None:
        """Fit past `errors` and the baseline to the training samples, as `Baseline.fit`."""
        self.start.fit(batches, errors)


class LocationScaleHead(Head):
    """μ = m + s o₀, σ = s exp(o₁)/ς, where ς is the standard deviation of the family's standard distribution.

    `families` has the family of each target; bounded ones have no probability below `bound`.
    """

    def __init__(
        self,
        task: Task,
        families: Sequence[type[LocationScale]],
        bound: LowerBound | None = None,
        baseline: Baseline | None = None,
    ) -> None:
        super().__init__(task, 2, baseline)
        self._families, self.bound = families, bound

    def normalise(self, location: Tensor, scale: Tensor) -> None:
        """Convert the bounds to the units (x - location)/scale."""
        super().normalise(location, scale)
        if self.bound is not None:
            self.bound.normalise(location, scale)

    def distribution(self, m: Tensor, s: Tensor, *maps: Tensor) -> Distribution:
        """Return the distribution of the family of each target."""
        shift, stretch = maps
        mu, std = m + s * shift, s * bounded_exp(stretch)

        def of_family(family: type[LocationScale]) -> LocationScale:
            bound = [self.bound()] if self.bound is not None and issubclass(family, Bounded) else []
            return family(mu, std / family.standard.std, *bound)

        return by_target(self._families, of_family)


class GammaHead(Head):
    """A gamma distribution whose support starts at l - δ, δ = s exp(o₂), censored at the targets' lower bound l.

    Its mean lies g = (d + s) exp(o₀ s/(d + s)) above the start of the support, d = m - l; its standard deviation is
    s exp(o₁). So o₀ is a factor where the ensemble is dry, d = 0, and a shift in units of s where it is far above the
    bound. For outputs of zero the distribution is exponential in the first case and nearly normal in the second.
    """

    MAX_RATIO = 300.0
    """Largest distance from the start of the support to the mean, in standard deviations: a skewness of 0.007."""

    def __init__(self, task: Task, grid: Grid | Domain, baseline: Baseline | None = None) -> None:
        super().__init__(task, 3, baseline)
        self.bound = LowerBound(task, grid, [True] * len(task.targets))

    def normalise(self, location: Tensor, scale: Tensor) -> None:
        """Convert the bounds to the units (x - location)/scale."""
        super().normalise(location, scale)
        self.bound.normalise(location, scale)

    def distribution(self, m: Tensor, s: Tensor, *maps: Tensor) -> CensoredShiftedGamma:
        """Return the censored, shifted gamma distribution."""
        amount, stretch, shift = maps
        lower = self.bound()
        raw, std = (m - lower).clamp(min=0) + s, s * bounded_exp(stretch)
        mean = raw * bounded_exp(amount * s / raw)
        above = torch.minimum(mean, self.MAX_RATIO * std)
        support_start = lower - s * bounded_exp(shift) + (mean - above)
        return CensoredShiftedGamma((above / std).square(), std * (std / above), support_start, lower)


class BernsteinHead(Head):
    """Coefficients α of a quantile function of degree d (Bremnes 2020, doi:10.1175/MWR-D-19-0227.1).

    The mean of the coefficients, which is the mean of the distribution, is m + s o₀. Differences of successive
    coefficients are s ζ_k exp(o_k) > 0, so that quantiles do not cross. The ζ belong to a quantile function near the
    standard normal one. The support is bounded; for d = 12 and outputs of zero it ends 2.4 s from the mean.
    """

    steps: Tensor

    def __init__(self, task: Task, degree: int = 12, baseline: Baseline | None = None) -> None:
        check_integer("degree", degree, 1)
        super().__init__(task, degree + 1, baseline)
        steps = torch.tensor(normal_coefficients(degree)).diff()
        self.register_buffer("steps", steps.to(torch.get_default_dtype()), persistent=False)

    def distribution(self, m: Tensor, s: Tensor, *maps: Tensor) -> Bernstein:
        """Return the distribution with this quantile function."""
        location, *stretches = maps
        steps = [step * bounded_exp(o) for step, o in zip(self.steps, stretches, strict=True)]
        heights = torch.stack([torch.zeros_like(location), *steps]).cumsum(0)
        return Bernstein(m + s * (location + heights - heights.mean(0)))


class LowerBound(nn.Module):
    """The smallest possible value of each target in every cell, in the units of samples.

    Raises `InputError` for a target without a bound that is `needed`; the value of other such targets is not used.
    """

    value: Tensor

    def __init__(self, task: Task, grid: Grid | Domain, needed: Sequence[bool]) -> None:
        super().__init__()
        self._domain, self._physical = Domain.of(grid), []
        for target, bounded in zip(task.targets, needed, strict=True):
            lower = target.bounds[0]
            if bounded and lower is None:
                raise InputError(f"model.head: {target} has no lower bound to be censored at; take head=normal")
            self._physical.append([[float(lower or 0)]])
        self.register_buffer("value", torch.tensor(self._physical).expand(-1, *grid.shape).clone())

    def normalise(self, location: Tensor, scale: Tensor) -> None:
        """Convert the bound to the units (x - location)/scale."""
        bound = torch.tensor(self._physical).to(location)
        self.value.copy_(assemble((bound - location) / scale, self._domain))

    def forward(self) -> Tensor:
        """Return the bounds (T, H, W) of this rank's tile."""
        return self._domain.cut(self.value)


def normal_coefficients(degree: int) -> list[float]:
    """Return increasing Bernstein coefficients of mean 0 and standard deviation 1 for a quantile function near Φ⁻¹.

    Ten iterations from zero coefficients: (d + 1) ∫ b_k (Φ⁻¹ - Q) is added to coefficient k of Q. One iteration gives
    the expected order statistics of d + 1 draws, whose tails are too short. The limit of many iterations is the nearest
    polynomial, which is not monotonic.
    """
    # On the CPU also where the model is built on the device `meta`, because the coefficients are computed.
    with torch.device("cpu"):
        z = torch.linspace(-12, 12, 4001, dtype=torch.float64)
        density, below = torch.exp(-z * z / 2) / SQRT_2PI * (z[1] - z[0]), torch.special.ndtr(z)
        powers = [math.comb(degree, k) * below**k * (1 - below) ** (degree - k) for k in range(degree + 1)]
        basis, coefficients = torch.stack(powers), torch.zeros(degree + 1, dtype=torch.float64)
        for _ in range(10):
            coefficients = coefficients + (degree + 1) * (basis * density * (z - coefficients @ basis)).sum(1)
        coefficients = (coefficients - coefficients.flip(0)) / 2
        return (coefficients / Bernstein(coefficients).std).tolist()


def bounded_exp(output: Tensor) -> Tensor:
    """Return exp(output), limited to [e⁻⁸, e⁸]."""
    return torch.exp(output.clamp(-8, 8))


def zero_convolution(inputs: int, outputs: int) -> nn.Conv2d:
    """Return a convolution 1 x 1 with zero weights, the last layer of a network: its output starts at zero."""
    layer = nn.Conv2d(inputs, outputs, 1)
    layer.weight.data.zero_()
    layer.bias.data.zero_()  # type: ignore[union-attr]
    return layer
