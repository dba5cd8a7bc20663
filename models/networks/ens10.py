"""ENS-10's U-Net (Ashkboos et al. 2022, arXiv:2206.14786), parameter for parameter, on any grid."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.distribution import Normal
from models.layers.convolution import Conv2d
from models.layers.norms import BatchNorm2d
from models.layers.resolution import MaxPool2d
from models.layers.window import Window
from models.networks.features import visible
from models.networks.head import GaussianHead
from models.parallel.domain import Domain
from models.statistical.predictors import spread

WIDTHS = (32, 64, 128)
"""Channels at each resolution, the finest first."""


class Layer(nn.Module):
    """Convolution 3 x 3, or over another `kernel`, batch normalisation, ReLU.

    The normalisation takes away what the bias adds, so all that the bias could learn is rounding errors, which Adam
    would blow up to steps of full length, other ones on every mesh. It is kept for those who have weights to load,
    and its gradient is exactly zero. `parity` is that of the inputs (`Window`), for the first layer of a network.
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
        """(B, inputs, H, W) to (B, outputs, H, W)."""
        x = self.convolution(x)
        return torch.relu(self.norm(x + idle(self.bias).to(x)[:, None, None]))


def idle(bias: Tensor) -> Tensor:
    """Return a bias that does not learn, but has a gradient as every parameter, which data parallelism expects."""
    return bias.detach() + 0 * bias


class Bilinear(nn.Module):
    """Twice the resolution by linear interpolation, where a coarse cell lies amid the fine ones that it was pooled of.

    In the interior it is PyTorch's `Upsample(scale_factor=2, mode="bilinear")`.
    """

    def __init__(self, out: Grid | Domain) -> None:
        super().__init__()
        self.out = Domain.of(out)
        # Fine points 2j + 1 and 2j + 2 lie between coarse points j and j + 1.
        rows, columns = (
            tuple(((first - 1) // 2, last // 2 + 1) for first, last in pairwise(cuts))
            for cuts in (self.out.row_cuts, self.out.column_cuts)
        )
        self.window = Window(self.out.coarsen(), rows, columns)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, ceil(H/2), ceil(W/2)) to (B, C, H, W)."""
        rows, columns = self.out.tile
        x = _quarters(self.window(x), rows)
        return _quarters(x.transpose(-1, -2), columns).transpose(-1, -2)


def _quarters(x: Tensor, part: slice) -> Tensor:
    """Put two rows between neighbouring rows, a quarter of the way from either; return those of `part`."""
    north, south = x[..., :-1, :], x[..., 1:, :]
    pairs = torch.stack([torch.lerp(north, south, 0.25), torch.lerp(north, south, 0.75)], dim=-2).flatten(-3, -2)
    skip = (part.start + 1) % 2
    return pairs[..., skip : skip + part.stop - part.start, :]


class ENS10UNet(nn.Module):
    """The U-Net of the benchmark: three resolutions, mean and spread of every input, no static fields.

    The shapes of all parameters are the published ones: 633,698 numbers for the 7 inputs of Z500 and T850, 636,002
    for the 11 of T2m. What cannot live on every grid, or is a defect, differs:

    - The globe goes round and on across the poles; the original sees zeros there and at the date line.
    - Rows and columns that are odd in number are pooled with what follows them on the globe. The original leaves out
      the last row, and then lays all it has decoded one row further south than what the skips bring.
    - Inputs are departures from the cell's mean in units of the variable, and the logarithm of the spread. The
      original divides by a standard deviation plus 0.1 in physical units, which wipes out humidity.
    - The last layer starts at zero, the raw ensemble, as in all networks here. Biases before a normalisation do not
      learn, see `Layer`.
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
        self.head = GaussianHead(task)
        a, b, c = WIDTHS
        parity = [sign for own in task.parity for sign in (own, 1)]  # mean and log spread in turn
        self.encoder = nn.ModuleList(
            nn.Sequential(Layer(g, inputs, width, signs), Layer(g, width, width))
            for g, inputs, width, signs in zip(grids, (len(parity), a, b), WIDTHS, (parity, (), ()), strict=True)
        )
        self.decoder = nn.ModuleList(
            nn.Sequential(Layer(g, inputs, inner), Layer(g, inner, outputs))
            for g, inputs, inner, outputs in ((coarse, c, c, b), (middle, 2 * b, b, a), (fine, 2 * a, a, a))
        )
        self.down = nn.ModuleList([MaxPool2d(fine), MaxPool2d(middle)])
        self.up = nn.ModuleList([Bilinear(middle), Bilinear(fine)])
        self.last = Conv2d(fine, a, self.head.count)
        for parameter in self.last.parameters():
            nn.init.zeros_(parameter)

    def forward(self, sample: Sample) -> Normal:
        """Return the corrected distribution of a batch."""
        first, second, third = self.encoder
        x = first(_moments(sample))
        y = second(self.down[0](x))
        z = third(self.down[1](y))
        last, middle, finest = self.decoder
        y = middle(torch.cat([y, self.up[0](last(z))], dim=1))
        x = finest(torch.cat([x, self.up[1](y)], dim=1))
        return self.head(self.last(x), sample)


def _moments(sample: Sample) -> Tensor:
    """Return mean and log spread of each input in turn, (B, 2C, H, W)."""
    log_spread = visible(spread(sample.ensemble)).masked_fill(~sample.mask, 0)
    return torch.stack([sample.ensemble.mean(1), log_spread], dim=2).flatten(1, 2)
