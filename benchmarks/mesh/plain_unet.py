"""The U-Net written with `torch.nn` alone: the same shapes and parameters, without tiles.

Longitude is padded by `F.pad(mode="circular")`. Beyond the poles the last row is repeated: wrong on the sphere, but the
nearest that `F.pad` has. With `padding="zeros"` the convolutions pad themselves, which is cheapest and wrong at the
poles and at the date line.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.distribution import Normal
from models.networks.features import Features
from models.networks.head import make_head

Padding = Literal["sphere", "zeros"]


class PlainConvolution(nn.Conv2d):
    """A 3 x 3 convolution on the globe."""

    def __init__(self, inputs: int, outputs: int, kind: Padding) -> None:
        super().__init__(inputs, outputs, 3, padding=0 if kind == "sphere" else 1)
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to (B, outputs, H, W)."""
        return super().forward(pad_sphere(x) if self.kind == "sphere" else x)


def pad_sphere(x: Tensor) -> Tensor:
    """Return `x` with one more row and column on every side."""
    return functional.pad(functional.pad(x, (1, 1, 0, 0), mode="circular"), (0, 0, 1, 1), mode="replicate")


class PlainNorm(nn.LayerNorm):
    """Layer normalisation over the channels of each cell."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to the same shape."""
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


class PlainBlock(nn.Module):
    """Two convolutions with a residual connection."""

    def __init__(self, inputs: int, outputs: int, dropout: float, kind: Padding) -> None:
        super().__init__()
        self.skip = nn.Conv2d(inputs, outputs, 1)
        self.path = nn.Sequential(
            PlainConvolution(inputs, outputs, kind), PlainNorm(outputs), nn.GELU(), nn.Dropout2d(dropout),
            PlainConvolution(outputs, outputs, kind), PlainNorm(outputs), nn.GELU(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, H, W) to (B, outputs, H, W)."""
        return self.skip(x) + self.path(x)


class PlainUNet(nn.Module):
    """Halves the resolution twice by mean pooling and interpolates back; features and head are shared with `UNet`."""

    def __init__(self, task: Task, grid: Grid, kind: Padding = "sphere", width: int = 16, dropout: float = 0.1) -> None:
        super().__init__()
        self.features, self.head = Features(task, grid), make_head("normal", task, grid)
        one, two, four = width, 2 * width, 4 * width
        self.encoder = nn.ModuleList(
            [
                PlainBlock(self.features.count, one, 0, kind),
                PlainBlock(one, two, dropout, kind),
                PlainBlock(two, four, dropout, kind),
            ]
        )
        self.decoder = nn.ModuleList(
            [PlainBlock(one + two, one, dropout, kind), PlainBlock(two + four, two, dropout, kind)]
        )
        self.last = nn.Conv2d(width, self.head.count, 1)

    def forward(self, sample: Sample) -> Normal:
        """Return the corrected distribution of a batch."""
        fine = self.encoder[0](self.features(sample))
        middle = self.encoder[1](self._down(fine))
        coarse = self.encoder[2](self._down(middle))
        middle = self.decoder[1](torch.cat([middle, self._up(coarse, middle)], dim=1))
        fine = self.decoder[0](torch.cat([fine, self._up(middle, fine)], dim=1))
        return self.head(self.last(fine), sample)

    def _down(self, x: Tensor) -> Tensor:
        return functional.avg_pool2d(pad_sphere(x), 3, 2)

    def _up(self, x: Tensor, like: Tensor) -> Tensor:
        H, W = like.shape[-2:]
        x = functional.pad(x, (0, 1, 0, 0), mode="circular")
        return functional.interpolate(x, size=(H, W + 1), mode="bilinear", align_corners=True)[..., :W]
