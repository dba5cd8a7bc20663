"""Normalisation layers: within each cell, or over the whole globe with sums over its ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from data_pipeline.grid import Grid
from models.layers.kernels.choice import usable
from models.parallel.domain import Domain
from models.parallel.exchange import sum_over


class ChannelNorm(nn.Module):
    """Layer normalisation over the channels of each cell; the parameters do not depend on the grid.

    The result has its channels last in memory. With `gelu`, the activation GELU follows.
    """

    def __init__(self, channels: int, gelu: bool = False) -> None:
        super().__init__()
        self.gelu = gelu
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, C, H, W) to the same shape."""
        if usable(x):
            from models.layers.kernels.channel_norm import channel_norm

            return channel_norm(x, self.weight, self.bias, self.gelu)
        cells = x.movedim(1, -1)
        if self.gelu and x.device.type == "cpu" and x.dtype == self.weight.dtype and not torch.compiler.is_compiling():
            y: Tensor = _NormGELU.apply(cells.contiguous(), self.weight, self.bias)
        else:
            y = functional.layer_norm(cells, self.weight.shape, self.weight, self.bias)
            y = functional.gelu(y) if self.gelu else y
        return y.movedim(-1, 1)


CACHED_NUMBERS = 1 << 16
"""Numbers of a block that normalisation and activation compute before the next block; three blocks fit a cache."""


class _NormGELU(torch.autograd.Function):
    """Layer normalisation over the last axis of (..., C), then GELU, in blocks that stay in the processor's cache.

    The normalised values are neither written to memory nor kept for the backward pass, which computes them again.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, bias)
        return norm_gelu(normalised_blocks(x, weight, bias), torch.empty_like(x))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        x, weight, bias = ctx.saved_tensors
        return norm_gelu_backward(normalised_blocks(x, weight, bias), gradient, x, weight, bias)


Normalised = Iterable[tuple[Tensor, Tensor, Tensor]]
"""For each block of cells the normalised numbers (n, C), the mean and the inverse standard deviation, both (n, 1)."""


def normalised_blocks(x: Tensor, weight: Tensor, bias: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield the layer normalisation of `x` (..., C), contiguous, over its last axis, block by block."""
    for block in _blocks(x):
        yield torch.native_layer_norm(block, weight.shape, weight, bias, _EPSILON)


def norm_gelu(normalised: Normalised, out: Tensor) -> Tensor:
    """Write GELU of all blocks into `out` (..., C), contiguous."""
    for (normal, _, _), target in zip(normalised, _blocks(out), strict=True):
        torch.ops.aten.gelu.out(normal, out=target)
    return out


def norm_gelu_backward(
    normalised: Normalised, gradient: Tensor, x: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of `x` (..., C), `weight` and `bias` from the gradient of `norm_gelu`."""
    found, sums = torch.empty_like(x), []
    parts = zip(*(_blocks(part) for part in (x, gradient.contiguous(), found)), strict=True)
    for (normal, mean, per_deviation), (block, later, target) in zip(normalised, parts, strict=True):
        later = torch.ops.aten.gelu_backward(later, normal)
        for_block, *for_parameters = torch.ops.aten.native_layer_norm_backward(
            later, block, weight.shape, mean, per_deviation, weight, bias, [True, True, True]
        )
        target.copy_(for_block)
        sums.append(torch.stack(for_parameters))
    for_weight, for_bias = torch.stack(sums).sum(0)
    return found, for_weight, for_bias


_EPSILON = 1e-5
"""Added to the variance, as in `torch.nn.LayerNorm`."""


def _blocks(x: Tensor) -> tuple[Tensor, ...]:
    """Return views (n, C) of `x` (..., C), contiguous, of about `CACHED_NUMBERS` numbers for each thread."""
    return x.view(-1, x.shape[-1]).split(max(CACHED_NUMBERS * torch.get_num_threads() // x.shape[-1], 1))


class FieldNorm(nn.Module):
    """Layer normalisation (Ba et al. 2016, arXiv:1607.06450) of each sample over all channels and cells of the globe.

    Every channel of every cell has a factor and an offset of its own, so the layer belongs to one grid. Every rank has
    the parameters of the whole globe and uses those of its tile.
    """

    def __init__(self, grid: Grid | Domain, channels: int) -> None:
        super().__init__()
        self.out = Domain.of(grid)
        self.weight = nn.Parameter(torch.ones(channels, *self.out.shape))
        self.bias = nn.Parameter(torch.zeros(channels, *self.out.shape))

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, C, H, W) to the same shape."""
        if self.out.ranks == 1:
            return functional.layer_norm(x, self.weight.shape, self.weight, self.bias)
        C, cells = x.shape[1], self.out.shape[0] * self.out.shape[1]
        one = self.weight.new_ones(C)
        y = _Normalized.apply(x, one, torch.zeros_like(one), _EPSILON, 1, False, float(C * cells), self.out.sharers)[0]
        return y * self.out.cut(self.weight) + self.out.cut(self.bias)


class BatchNorm2d(nn.BatchNorm2d):
    """Batch normalisation (Ioffe & Szegedy 2015, arXiv:1502.03167) of each channel over all samples and cells.

    Statistics are over the samples of all ranks, whatever their numbers, so that running statistics agree. Evaluation
    uses the running statistics and has no communication. In a step with too few samples for all ranks, samples on ranks
    of weight zero count as well.
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor
    momentum: float

    def __init__(self, grid: Grid | Domain, channels: int) -> None:
        super().__init__(channels)
        self.out = Domain.of(grid)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, C, H, W) to the same shape."""
        if not self.training or not self.out.steppers:
            return super().forward(x)
        y, mean, variance, count = _Normalized.apply(
            x, self.weight, self.bias, self.eps, self.num_features, True, None, self.out.steppers
        )
        with torch.no_grad():
            self.num_batches_tracked += 1
            self.running_mean.lerp_(mean.flatten().to(self.running_mean), self.momentum)
            unbiased = variance.flatten() * (count / (count - 1))
            self.running_var.lerp_(unbiased.to(self.running_var), self.momentum)
        return y


class _Normalized(torch.autograd.Function):
    """(x - mean) / standard deviation, times the channel's weight, plus its bias.

    Mean and variance are taken over each of `groups` groups of channels on all ranks of `group`, of each sample or
    `across_samples`. They are combined in float64 from the means and variances of each rank, sample and channel (Chan,
    Golub & LeVeque 1983), so that a large mean does not cost digits of the variance. `count` is the number of values of
    a group; if it is None, ranks sum it. The backward pass keeps the input, as PyTorch's own layers do.

    A table is a statistic per sample and channel (B, C); a pooled table is (B or 1, groups, 1).
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float,
        groups: int, across_samples: bool, count: float | None, group: str,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        cells = x.shape[2] * x.shape[3]
        pivot = wide.mean((2, 3), keepdim=True)
        rest = wide - pivot
        near, left, squares = (t.double() for t in (pivot[..., 0, 0], rest.sum((2, 3)), rest.square().sum((2, 3))))

        sums = _pool(near * cells + left, groups, across_samples)
        # `new_full` fills on the device; a copy from the host would make a GPU wait.
        own = sums.new_full((int(count is None),), cells * x.shape[0] * x.shape[1] / groups)
        total = sum_over(group, torch.cat([sums.flatten(), own]))
        counted = total[-1] if count is None else sums.new_full((), count)
        mean = total[: sums.numel()].view_as(sums) / counted
        away = _spread(mean, x) - near
        departures = _pool(squares - 2 * away * left + cells * away.square(), groups, across_samples)
        variance = sum_over(group, departures) / counted

        per_deviation = _spread(torch.rsqrt(variance + eps), x)
        ctx.save_for_backward(x, weight, pivot, away, per_deviation, counted)
        ctx.pooled = groups, across_samples, group
        ctx.mark_non_differentiable(mean, variance, counted)
        stretch = per_deviation * weight
        y = rest.mul_(_table(stretch, rest)).add_(_table(bias - away * stretch, rest))
        return y.to(x), mean, variance, counted

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, pivot, away, per_deviation, count = ctx.saved_tensors
        groups, across_samples, group = ctx.pooled
        gradient = gradient.to(pivot)
        # In units of the standard deviation.
        departure = (x.to(pivot) - pivot).sub_(_table(away, pivot)).mul_(_table(per_deviation, pivot))
        for_bias, for_weight = gradient.sum((2, 3)).double(), (gradient * departure).sum((2, 3)).double()
        pooled = torch.stack([_pool(table * weight, groups, across_samples) for table in (for_bias, for_weight)])
        level, slope = (_spread(part, x) for part in sum_over(group, pooled) / count)
        gradient = gradient * _table(per_deviation * weight, pivot)
        gradient -= departure.mul_(_table(per_deviation * slope, pivot)).add_(_table(per_deviation * level, pivot))
        return gradient.to(x), for_weight.sum(0).to(weight), for_bias.sum(0).to(weight), *[None] * 5


def _pool(table: Tensor, groups: int, across_samples: bool) -> Tensor:
    """Return the sums of a table (B, C) over the channels of each group, and perhaps samples: (B or 1, groups, 1)."""
    sums = table.view(len(table), groups, -1).sum(2, keepdim=True)
    return sums.sum(0, keepdim=True) if across_samples else sums


def _spread(pooled: Tensor, x: Tensor) -> Tensor:
    """Return the pooled value that belongs to each sample and channel of `x`, (B, C)."""
    B, C = x.shape[:2]
    return pooled.expand(B, -1, C // pooled.shape[1]).reshape(B, C)


def _table(table: Tensor, like: Tensor) -> Tensor:
    """Return a table (B, C) as a factor (B, C, 1, 1) of fields in the type of `like`."""
    return table.to(like)[..., None, None]
