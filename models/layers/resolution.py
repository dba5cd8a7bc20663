"""Layers that halve or double the resolution: a coarse grid is every second row and column of the fine one.

For an odd number of rows both ends are kept (361 rows: 181, 91, 46), so that poles stay poles.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from data_pipeline.grid import Grid
from models.layers.convolution import input_intervals
from models.layers.padding import HaloPad
from models.parallel.domain import Cuts, Domain
from models.parallel.halo import Intervals


class Downsample(nn.Module):
    """Smooth by [1 2 1]/4 in both directions, which avoids aliasing, and take every second row and column."""

    def __init__(self, grid: Grid | Domain) -> None:
        super().__init__()
        domain = Domain.of(grid)
        self.out = domain.coarsen()
        self.window = HaloPad(domain, _twice(self.out.row_cuts), _twice(self.out.column_cuts))

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, C, H, W) to (B, C, ceil(H/2), ceil(W/2))."""
        x = self.window(x)
        x = (x[..., :-2:2, :] + 2 * x[..., 1:-1:2, :] + x[..., 2::2, :]) / 4
        return (x[..., :-2:2] + 2 * x[..., 1:-1:2] + x[..., 2::2]) / 4


def _twice(cuts: Cuts) -> Intervals:
    """Return the fine intervals of coarse tiles: their points and both neighbours of each."""
    return tuple((2 * first - 1, 2 * last) for first, last in pairwise(cuts))


class Upsample(nn.Module):
    """Linear interpolation from a coarse grid to `out`, the fine grid it was coarsened from."""

    def __init__(self, out: Grid | Domain) -> None:
        super().__init__()
        self.out = Domain.of(out)
        self.grid = self.out.coarsen()
        self.window = HaloPad(self.grid, _half(self.out.row_cuts), _half(self.out.column_cuts))
        rows, columns = self.out.tile
        self.first, self.size = (rows.start % 2, columns.start % 2), self.out.own_shape

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, C, ceil(H/2), ceil(W/2)) to (B, C, H, W)."""
        x = self.window(x)
        x = _between(x.transpose(-1, -2), self.first[1], self.size[1]).transpose(-1, -2)
        return _between(x, self.first[0], self.size[0])


def _half(cuts: Cuts) -> Intervals:
    """Return the coarse intervals of fine tiles: each point itself, or both its neighbours."""
    return tuple((first // 2, last // 2 + 1) for first, last in pairwise(cuts))


def _between(x: Tensor, first: int, size: int) -> Tensor:
    """Insert the mean of neighbouring rows between them; return `size` rows from `first` on."""
    pairs = torch.stack([x[..., :-1, :], (x[..., :-1, :] + x[..., 1:, :]) / 2], dim=-2)
    return torch.cat([pairs.flatten(-3, -2), x[..., -1:, :]], dim=-2)[..., first : first + size, :]


class BilinearUpsample(nn.Module):
    """Linear interpolation to `out`, the fine grid, from coarse cells at the centre of the 2 x 2 cells they pool.

    `Upsample` instead keeps coarse cells on every second fine one. Away from the edges of the grid this layer is
    PyTorch's `Upsample(scale_factor=2, mode="bilinear")`.
    """

    def __init__(self, out: Grid | Domain) -> None:
        super().__init__()
        self.out = Domain.of(out)
        # Fine points 2j + 1 and 2j + 2 lie between coarse points j and j + 1.
        rows, columns = (
            tuple(((first - 1) // 2, last // 2 + 1) for first, last in pairwise(cuts))
            for cuts in (self.out.row_cuts, self.out.column_cuts)
        )
        self.window = HaloPad(self.out.coarsen(), rows, columns)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, C, ceil(H/2), ceil(W/2)) to (B, C, H, W)."""
        rows, columns = self.out.tile
        x = _quarters(self.window(x), rows)
        return _quarters(x.transpose(-1, -2), columns).transpose(-1, -2)


def _quarters(x: Tensor, part: slice) -> Tensor:
    """Insert two rows between neighbouring rows, a quarter of the way from either; return rows `part`."""
    north, south = x[..., :-1, :], x[..., 1:, :]
    pairs = torch.stack([torch.lerp(north, south, 0.25), torch.lerp(north, south, 0.75)], dim=-2).flatten(-3, -2)
    skip = (part.start + 1) % 2
    return pairs[..., skip : skip + part.stop - part.start, :]


class _Pool(nn.Module):
    """Base class: reads `kernel` x `kernel` fine cells around each coarse one, for an even kernel one more after it."""

    def __init__(self, grid: Grid | Domain, kernel: int = 2) -> None:
        super().__init__()
        domain, self.kernel = Domain.of(grid), kernel
        self.out = domain.coarsen()
        self.window = HaloPad(
            domain, input_intervals(self.out.row_cuts, kernel, 2), input_intervals(self.out.column_cuts, kernel, 2)
        )


class MaxPool2d(_Pool):
    """The largest of the fine cells around each coarse one."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, C, H, W) to (B, C, ceil(H/2), ceil(W/2))."""
        return functional.max_pool2d(self.window(x), self.kernel, 2)


class AvgPool2d(_Pool):
    """The mean of the fine cells around each coarse one."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, C, H, W) to (B, C, ceil(H/2), ceil(W/2))."""
        return functional.avg_pool2d(self.window(x), self.kernel, 2)
