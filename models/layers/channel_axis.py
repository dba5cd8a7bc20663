"""Layers whose channels the ranks of a channel axis divide (Dryden et al. 2019, doi:10.1145/3295500.3356207).

Convolutions come in pairs: the first computes this rank's filters (`FilterConv2d`), the second sums over this rank's
channels (`ChannelConv2d`). Norm and dropout between them work on this rank's channels. Outside the pair every rank has
all channels of its own tile, so that all other layers remain as they are (Korthikanti et al. 2022, arXiv:2205.05198).

All ranks have whole weights, and gradients of zero for the parts of other ranks: the sum of gradients over all ranks,
checkpoints and optimizers are independent of the axis.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from data_pipeline.common.errors import InputError
from models.layers.convolution import Conv2d
from models.layers.dropout import Dropout
from models.layers.norms import ChannelNorm
from models.parallel.domain import Domain
from models.parallel.exchange import sum_over
from models.parallel.mesh import Mesh
from models.parallel.redistribution import divide_channels, merge_tiles, sum_channels, sum_tiles


def check_channel_axis(model: nn.Module, mesh: Mesh) -> None:
    """Raise InputError if the mesh has a channel axis and the model has no layer that uses it."""
    if mesh.channels > 1 and not any(isinstance(layer, FilterConv2d) for layer in model.modules()):
        raise InputError(
            f"model {type(model).__name__} has no wide layers whose {mesh.channels} ranks could divide the channels "
            f"(the U-Net and the transformer have them if model.depth is at least 1); set trainer.mesh="
            f"[{mesh.data},{mesh.bands * mesh.channels},{mesh.sectors}]"
        )


class FilterConv2d(Conv2d):
    """Convolution from (B, inputs, tile) to (B, this rank's outputs, merged tile of the channel axis).

    Either every rank gets all inputs of the merged tile, or it gets its share of the inputs and computes their
    contribution to all outputs, which the ranks sum. The layer chooses the way that sends fewer bytes.
    """

    def __init__(self, domain: Domain, inputs: int, outputs: int) -> None:
        super().__init__(domain.merge(), inputs, outputs)
        self.domain, self._own, self._inputs = domain, domain.own_channels(outputs), slice(0, inputs)
        ranks, (rows, columns) = domain.channel_axis.ranks if domain.channel_axis else 1, domain.shape
        cells, halo = rows * columns, self.window.exchange.plan.cells_of_all if self.window.exchange else 0
        self.gathers = inputs < ranks or inputs * (cells * (ranks - 1) + halo * ranks) <= outputs * cells * ranks
        """Whether every rank gets all inputs."""
        if not self.gathers:
            self._inputs = domain.own_channels(inputs)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, inputs, h, w) of this rank's tile to (B, this rank's outputs, H, W) of the merged tile."""
        bias = None if self.bias is None else self.bias[self._own]
        if self.gathers:
            return self.convolve_with(merge_tiles(x, self.domain), self.weight[self._own], bias)
        x = self.convolve_with(divide_channels(x, self.domain), self.weight[:, self._inputs], None)
        x = sum_channels(x, self.domain)
        return x if bias is None else x + bias.to(x)[:, None, None]


class ChannelConv2d(Conv2d):
    """Convolution from (B, this rank's inputs, merged tile of the channel axis) to (B, outputs, tile)."""

    def __init__(self, domain: Domain, inputs: int, outputs: int) -> None:
        super().__init__(domain.merge(), inputs, outputs)
        self.domain, self._own = domain, domain.own_channels(inputs)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, this rank's inputs, H, W) of the merged tile to (B, outputs, h, w) of this rank's tile."""
        x = sum_tiles(self.convolve_with(x, self.weight[:, self._own], None), self.domain)
        return x if self.bias is None else x + self.bias.to(x)[:, None, None]


class DividedChannelNorm(ChannelNorm):
    """`ChannelNorm` of cells whose channels the ranks of a channel axis divide; ranks sum two numbers for each cell."""

    def __init__(self, domain: Domain, channels: int) -> None:
        super().__init__(channels)
        self._own = domain.own_channels(channels)
        self._group = domain.channel_axis.group if domain.channel_axis else ""

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, this rank's channels, H, W) to the same shape."""
        return _DividedNorm.apply(x, self.weight[self._own], self.bias[self._own], len(self.weight), self._group)


class _DividedNorm(torch.autograd.Function):
    """Layer normalisation over `channels`, of which `x` has a part; ranks sum the mean, then the variance."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, channels: int, group: str) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        mean = sum_over(group, wide.sum(1, keepdim=True)) / channels
        rest = wide - mean
        variance = sum_over(group, rest.square().sum(1, keepdim=True)) / channels
        per_deviation = torch.rsqrt(variance + EPSILON)
        ctx.save_for_backward(x, weight, mean, per_deviation)
        ctx.channels, ctx.group = channels, group
        return rest.mul_(per_deviation).mul_(weight.to(rest)[:, None, None]).add_(bias.to(rest)[:, None, None]).to(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, per_deviation = ctx.saved_tensors
        gradient = gradient.to(mean)
        # In units of the standard deviation.
        departure = (x.to(mean) - mean).mul_(per_deviation)
        for_bias, for_weight = gradient.sum((0, 2, 3)), (gradient * departure).sum((0, 2, 3))
        gradient = gradient * weight.to(mean)[:, None, None]
        sums = torch.cat([gradient.sum(1, keepdim=True), (gradient * departure).sum(1, keepdim=True)], 1)
        level, slope = (sum_over(ctx.group, sums) / ctx.channels).split(1, 1)
        gradient = (gradient - level).sub_(departure.mul_(slope)).mul_(per_deviation)
        return gradient.to(x), for_weight.to(weight), for_bias.to(weight), None, None


EPSILON = 1e-5
"""Added to the variance, as in `torch.nn.functional.layer_norm`."""


class DividedDropout(Dropout):
    """`Dropout` of whole channels, which the ranks of a channel axis divide; masks are the same as in one process."""

    def __init__(self, domain: Domain, share: float, channels: int) -> None:
        super().__init__(domain.merge(), share, channels=True)
        self.first_channel = domain.own_channels(channels).start
