"""Padding, convolution and change of resolution on a latitude-longitude grid.

Each layer is told its grid; `.out` is the grid of its result. A coarse grid is every second row and column of the
fine one, both ends included where the count is odd (361 rows: 181, 91, 46), so the poles stay poles and nothing
is ever cropped.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from data_pipeline.grid import Grid


def pad(x: Tensor, grid: Grid, width: int) -> Tensor:
    """Return `x` (..., H, W) with `width` more rows and columns on every side, continued as the sphere is.

    Rows beyond a pole are the rows before it half a turn further (for an odd number of columns, the nearest
    column to that); at the edge of a limited area the last row or column is repeated.
    """
    if width == 0:
        return x
    x = torch.cat([_rows_beyond(x, grid, 0, width), x, _rows_beyond(x, grid, -1, width)], dim=-2)
    if grid.periodic:
        return torch.cat([x[..., -width:], x, x[..., :width]], dim=-1)
    west, east = x[..., :1], x[..., -1:]
    repeat = [-1] * (x.ndim - 1) + [width]
    return torch.cat([west.expand(repeat), x, east.expand(repeat)], dim=-1)


def _rows_beyond(x: Tensor, grid: Grid, end: int, width: int) -> Tensor:
    mirror = grid.across_pole(end)
    edge = x[..., :1, :] if end == 0 else x[..., -1:, :]
    if mirror is None:
        return edge.expand(*[-1] * (x.ndim - 2), width, -1)
    rows = (
        x[..., mirror : mirror + width, :]
        if end == 0
        else x[..., x.shape[-2] - mirror - width : x.shape[-2] - mirror, :]
    )
    return rows.flip(-2).roll(x.shape[-1] // 2, -1)


class Conv2d(nn.Conv2d):
    """Convolution with an odd kernel whose output has the grid of its input."""

    def __init__(self, grid: Grid, inputs: int, outputs: int, kernel: int = 3) -> None:
        super().__init__(inputs, outputs, kernel)
        self.out = self.grid = grid

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to (B, outputs, H, W)."""
        return super().forward(pad(x, self.grid, self.kernel_size[0] // 2))


class Downsample(nn.Module):
    """Every second row and column of a [1 2 1]/4 smoothing in both directions: no aliasing, no parameters."""

    def __init__(self, grid: Grid) -> None:
        super().__init__()
        self.grid, self.out = grid, grid.coarsen()

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to (B, C, ceil(H/2), ceil(W/2))."""
        x = pad(x, self.grid, 1)
        x = (x[..., :-2:2, :] + 2 * x[..., 1:-1:2, :] + x[..., 2::2, :]) / 4
        return (x[..., :-2:2] + 2 * x[..., 1:-1:2] + x[..., 2::2]) / 4


class Upsample(nn.Module):
    """Linear interpolation from the coarse grid back to `out`, the fine grid that it came from."""

    def __init__(self, out: Grid) -> None:
        super().__init__()
        self.grid, self.out = out.coarsen(), out

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, ceil(H/2), ceil(W/2)) to (B, C, H, W)."""
        H, W = self.out.shape
        # One row and column more: the neighbour of the last coarse point if the fine grid goes on beyond it.
        x = pad(x, self.grid, 1)[..., 1:, 1:]
        x = _between(x.transpose(-1, -2), W).transpose(-1, -2)
        return _between(x, H)


def _between(x: Tensor, size: int) -> Tensor:
    """Put the mean of two neighbouring rows between them: n + 1 rows to `size` rows, `size` being 2n or 2n - 1."""
    pairs = torch.stack([x[..., :-1, :], (x[..., :-1, :] + x[..., 1:, :]) / 2], dim=-2)
    return pairs.flatten(-3, -2)[..., :size, :]


class ChannelNorm(nn.Module):
    """Layer normalisation over the channels of each cell: no cell asks another, whatever the grid."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to the same shape."""
        return functional.layer_norm(x.movedim(1, -1), self.weight.shape, self.weight, self.bias).movedim(-1, 1)
