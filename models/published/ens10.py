"""ENS-10's U-Net (Ashkboos et al. 2022, arXiv:2206.14786), parameter for parameter, on any grid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.distribution import Normal
from models.layers.convolution import Conv2d
from models.layers.norms import BatchNorm2d
from models.layers.resolution import BilinearUpsample, MaxPool2d
from models.networks.error_climate import log_of_spread
from models.networks.head import LocationScaleHead
from models.parallel.domain import Domain
from models.statistical.predictors import spread

WIDTHS = (32, 64, 128)
"""Channels at each resolution, the finest first."""


class ConvNormReLU(nn.Module):
    """Convolution of size `kernel`, batch normalisation, ReLU.

    The normalisation removes the convolution's bias. The gradient of the bias would be rounding errors, which Adam
    would scale up to full steps that differ between meshes. The bias is kept, so that published weights can be loaded,
    with a gradient of exactly zero. `parity` is the parity of the inputs (`HaloPad`), for the first layer of a network.
    """

    def __init__(
        self, grid: Grid | Domain, inputs: int, outputs: int, parity: Sequence[int] = (), kernel: int = 3
    ) -> None:
        super().__init__()
        self.convolution = Conv2d(grid, inputs, outputs, kernel, parity=parity)
        self.norm = BatchNorm2d(grid, outputs)
        self.convolution.register_parameter("bias", None)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, inputs, H, W) to (B, outputs, H, W)."""
        return torch.relu_(self.norm(add_fixed_bias(self.convolution(x), self.bias)))


def add_fixed_bias(x: Tensor, bias: Tensor) -> Tensor:
    """Return x (B, C, H, W) plus a bias (C) with a gradient of zero.

    The gradient is given, because data parallelism expects one for every parameter. `x` may be overwritten.
    """
    if torch.compiler.is_compiling():
        return x + (bias.detach() + 0 * bias).to(x)[:, None, None]
    return _FixedBias.apply(x, bias)


class _FixedBias(torch.autograd.Function):
    """Adds the bias in place, with a gradient of zero for it: the true gradient would cost a sum over all cells."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        ctx.save_for_backward(bias)
        return x.add_(bias.to(x)[:, None, None])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient, torch.zeros_like(ctx.saved_tensors[0])


class ENS10UNet(nn.Module):
    """The U-Net of the benchmark: three resolutions, mean and spread of every input, no static fields.

    The shapes of all parameters are the published ones: 633,698 numbers for the 7 inputs of Z500 and T850, 636,002
    for the 11 of T2m. Differences, where the original has a defect or does not suit every grid:

    - The globe is continued around in longitude and across the poles. The original has zeros there.
    - The last of an odd number of rows or columns is pooled with the next cells on the globe. The original leaves out
      the last row, and then joins decoded maps to skip connections that lie one row further north.
    - Inputs are departures from the cell's mean in units of the variable, and the logarithm of the spread. The
      original divides by a standard deviation plus 0.1 in physical units, which suppresses humidity.
    - The last layer starts at zero, so that the first forecast is the raw ensemble, as in all networks here. Biases
      before a normalisation are fixed, see `ConvNormReLU`.
    """

    moments_only = any_grid = tiles = True

    def __init__(self, task: Task, grid: Grid | Domain) -> None:
        super().__init__()
        fine = Domain.of(grid)
        if min(fine.shape) < 5:
            raise InputError(
                f"model ens10_unet halves the grid twice, which needs 5 rows and columns, and got {fine.grid}; "
                "take model=mlp"
            )
        middle = fine.coarsen()
        coarse = middle.coarsen()
        grids = fine, middle, coarse
        self.head = LocationScaleHead(task, [Normal] * len(task.targets))
        a, b, c = WIDTHS
        parity = [sign for own in task.parity for sign in (own, 1)]  # mean and log spread in turn
        self.encoder = nn.ModuleList(
            nn.Sequential(ConvNormReLU(g, inputs, width, signs), ConvNormReLU(g, width, width))
            for g, inputs, width, signs in zip(grids, (len(parity), a, b), WIDTHS, (parity, (), ()), strict=True)
        )
        self.decoder = nn.ModuleList(
            nn.Sequential(ConvNormReLU(g, inputs, inner), ConvNormReLU(g, inner, outputs))
            for g, inputs, inner, outputs in ((coarse, c, c, b), (middle, 2 * b, b, a), (fine, 2 * a, a, a))
        )
        self.down = nn.ModuleList([MaxPool2d(fine), MaxPool2d(middle)])
        self.up = nn.ModuleList([BilinearUpsample(middle), BilinearUpsample(fine)])
        self.last = Conv2d(fine, a, self.head.count)
        for parameter in self.last.parameters():
            nn.init.zeros_(parameter)

    def forward(self, sample: Sample) -> Normal:
        """Return the corrected distribution of a batch."""
        first, second, third = self.encoder
        x = first(moments_in_turn(sample))
        y = second(self.down[0](x))
        z = third(self.down[1](y))
        last, middle, finest = self.decoder
        y = middle(torch.cat([y, self.up[0](last(z))], dim=1))
        x = finest(torch.cat([x, self.up[1](y)], dim=1))
        return self.head(self.last(x), sample)


def moments_in_turn(sample: Sample) -> Tensor:
    """Return mean and log spread of each input in turn, (B, 2 C, H, W)."""
    log_spread = log_of_spread(spread(sample.ensemble)).masked_fill(~sample.mask, 0)
    return torch.stack([sample.ensemble.mean(1), log_spread], dim=2).flatten(1, 2)
