"""ENS-10's U-Net written with `torch.nn` alone: the same shapes and parameters as `ENS10UNet`, without tiles.

Padding is as in `PlainUNet`: circular and replicated, or zeros.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.mesh.plain_unet import Padding, PlainConvolution
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.distribution import Normal
from models.networks.head import LocationScaleHead
from models.published.ens10 import WIDTHS, moments_in_turn


def plain_block(inputs: int, outputs: int, kind: Padding) -> nn.Sequential:
    """Return convolution, batch normalisation and ReLU."""
    return nn.Sequential(PlainConvolution(inputs, outputs, kind), nn.BatchNorm2d(outputs), nn.ReLU())


class PlainENS10UNet(nn.Module):
    """Pools and interpolates with PyTorch's own layers; inputs and head are shared with `ENS10UNet`."""

    def __init__(self, task: Task, kind: Padding) -> None:
        super().__init__()
        a, b, c = WIDTHS
        self.head = LocationScaleHead(task, [Normal] * len(task.targets))
        self.encoder = nn.ModuleList(
            nn.Sequential(plain_block(inputs, width, kind), plain_block(width, width, kind))
            for inputs, width in ((2 * len(task.parity), a), (a, b), (b, c))
        )
        self.decoder = nn.ModuleList(
            nn.Sequential(plain_block(inputs, inner, kind), plain_block(inner, outputs, kind))
            for inputs, inner, outputs in ((c, c, b), (2 * b, b, a), (2 * a, a, a))
        )
        self.down = nn.MaxPool2d(2, ceil_mode=True)
        self.up = nn.Upsample(scale_factor=2, mode="bilinear")
        self.last = PlainConvolution(a, self.head.count, kind)

    def forward(self, sample: Sample) -> Normal:
        """Return the corrected distribution of a batch."""
        first, second, third = self.encoder
        last, middle, finest = self.decoder
        x = first(moments_in_turn(sample))
        y = second(self.down(x))
        y = middle(torch.cat([y, self._twice(last(third(self.down(y))), y)], dim=1))
        return self.head(self.last(finest(torch.cat([x, self._twice(y, x)], dim=1))), sample)

    def _twice(self, x: Tensor, like: Tensor) -> Tensor:
        H, W = like.shape[-2:]
        return self.up(x)[..., :H, :W]
