"""U-Net on the sphere (Ronneberger et al. 2015, arXiv:1505.04597): context at every scale, detail through the skips."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from data_pipeline.checks import between, whole
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.distribution import Normal
from models.features import Features
from models.head import GaussianHead, silent
from models.spatial.convolution import Conv2d
from models.spatial.domain import Domain
from models.spatial.dropout import Dropout
from models.spatial.normalization import ChannelNorm
from models.spatial.resolution import Downsample, Upsample


class Block(nn.Module):
    """Two convolutions with normalisation and GELU; a residual connection carries the input past them."""

    def __init__(self, grid: Grid | Domain, inputs: int, outputs: int, dropout: float) -> None:
        super().__init__()
        self.skip = nn.Conv2d(inputs, outputs, 1)
        self.path = nn.Sequential(
            Conv2d(grid, inputs, outputs), ChannelNorm(outputs), nn.GELU(), Dropout(grid, dropout, channels=True),
            Conv2d(grid, outputs, outputs), ChannelNorm(outputs), nn.GELU(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, H, W) to (B, outputs, H, W)."""
        return self.skip(x) + self.path(x)


class UNet(nn.Module):
    """`depth` halvings of the resolution, `width` channels at the finest, twice as many at each coarser level."""

    moments_only = True

    def __init__(self, task: Task, grid: Grid | Domain, width: int = 16, depth: int = 2, dropout: float = 0.1) -> None:
        super().__init__()
        whole("model.width", width, 1)
        whole("model.depth", depth, 0)
        between("model.dropout", dropout, 0, 1)
        self.features, self.head = Features(task, grid), GaussianHead(task)
        grids = [Domain.of(grid)]
        for _ in range(depth):
            grids.append(grids[-1].coarsen())
        widths = [width * 2**level for level in range(depth + 1)]
        self.down = nn.ModuleList(Downsample(fine) for fine in grids[:-1])
        self.up = nn.ModuleList(Upsample(fine) for fine in grids[:-1])
        self.encoder = nn.ModuleList(
            Block(g, inputs, w, dropout if level else 0)
            for level, (g, inputs, w) in enumerate(zip(grids, [self.features.count, *widths], widths, strict=False))
        )
        self.decoder = nn.ModuleList(
            Block(g, fine + coarse, fine, dropout) for g, fine, coarse in zip(grids, widths, widths[1:], strict=False)
        )
        self.last = silent(width, self.head.count)

    def fit(self, batches: Iterable[Sample]) -> None:
        """Learn where the ensemble used to err; all else is learnt by gradient descent."""
        self.features.errors.fit(batches)

    def forward(self, sample: Sample) -> Normal:
        """Return the corrected distribution of a batch."""
        x = self.encoder[0](self.features(sample))
        levels = [x]
        for down, block in zip(self.down, self.encoder[1:], strict=True):
            levels.append(x := block(down(x)))
        for level in reversed(range(len(self.decoder))):
            x = self.decoder[level](torch.cat([levels[level], self.up[level](x)], dim=1))
        return self.head(self.last(x), sample)
