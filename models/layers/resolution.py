"""Layers that halve or double the resolution: a coarse grid is every second row and column of the fine one.

For an odd number of rows both ends are kept (361 rows: 181, 91, 46), so that poles stay poles.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from data_pipeline.grid import Grid
from models.layers.kernels.choice import usable
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
        return _halve(self.window(x), SMOOTHING_SHARES, (0, 0))


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
        return _interpolate(self.window(x), LINEAR_SHARES, self.first, self.size)


def _half(cuts: Cuts) -> Intervals:
    """Return for each fine tile the interval of coarse points from which its points are interpolated."""
    return tuple((first // 2, last // 2 + 1) for first, last in pairwise(cuts))


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
        self.first = self.out.tile[0].start % 2, self.out.tile[1].start % 2

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, C, ceil(H/2), ceil(W/2)) to (B, C, H, W)."""
        return _interpolate(self.window(x), QUARTER_SHARES, self.first, self.out.own_shape)


SMOOTHING_SHARES = (0.25, 0.5, 0.25)
LINEAR_SHARES = (0.5, 1.0, 0.5)
QUARTER_SHARES = (0.25, 0.75, 0.75, 0.25)
"""Share of a coarse point in the fine points around it, along an axis."""


def _interpolate(x: Tensor, shares: tuple[float, ...], first: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """Return the fine points of a coarse window, `size` rows and columns from `first` on."""
    if torch.compiler.is_compiling():
        return _fine_points(x, shares, first, size)
    if usable(x):
        # Number of fine points to add before the first one, where the first coarse point has shares, too.
        before = tuple(part + 1 if shares == LINEAR_SHARES else 3 - part for part in first)
        return _Resampled.apply(x, True, shares, before, size)
    return _Interpolated.apply(x, shares, first, size)


def _fine_points(x: Tensor, shares: tuple[float, ...], first: tuple[int, int], size: tuple[int, int]) -> Tensor:
    if shares == LINEAR_SHARES:
        h, w = (2 * length - 1 for length in x.shape[-2:])
        fine, skip = functional.interpolate(x, size=(h, w), mode="bilinear", align_corners=True), first
    else:
        # The first point of PyTorch lies before the first coarse point.
        fine = functional.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False)
        skip = 2 - first[0], 2 - first[1]
    return fine[..., skip[0] : skip[0] + size[0], skip[1] : skip[1] + size[1]]


class _Interpolated(torch.autograd.Function):
    """Interpolation whose gradient is a convolution of stride 2 of each channel.

    PyTorch's own gradient takes several times as long in the memory format `channels_last` (decision 014).
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, shares: tuple[float, ...], first: tuple[int, int], size: tuple[int, int]
    ) -> Tensor:
        ctx.options = shares, first, tuple(x.shape[-2:])
        return _fine_points(x, shares, first, size)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        shares, first, (h, w) = ctx.options
        # Number of fine points to add before the first one, where the first coarse point has shares, too.
        before = [part + 1 if shares == LINEAR_SHARES else 3 - part for part in first]
        # A convolution adds as many zeros after the field as before it. Where these are too few, two more are added.
        more = [
            (fine + 2 * zeros - len(shares)) // 2 + 1 < length
            for fine, zeros, length in zip(gradient.shape[-2:], before, (h, w), strict=True)
        ]
        padding = [zeros + 2 * extra for zeros, extra in zip(before, more, strict=True)]
        found = _every_second(gradient, shares, padding)
        return found[..., more[0] : more[0] + h, more[1] : more[1] + w], None, None, None


def _halve(x: Tensor, shares: tuple[float, ...], padding: Sequence[int]) -> Tensor:
    """Return `_every_second`, from one kernel on a GPU."""
    if not usable(x):
        return _every_second(x, shares, padding)
    before = padding[0], padding[1]
    h, w = ((length + 2 * zeros - len(shares)) // 2 + 1 for length, zeros in zip(x.shape[-2:], before, strict=True))
    return _Resampled.apply(x, False, shares, before, (h, w))


class _Resampled(torch.autograd.Function):
    """Means at every second point, or their adjoint: `kernels.resampling`; each is the gradient of the other."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, finer: bool, shares: tuple[float, ...], before: tuple[int, int], size: tuple[int, int]
    ) -> Tensor:
        from models.layers.kernels import resampling

        ctx.options = not finer, shares, before, (x.shape[-2], x.shape[-1])
        return (resampling.spread_to_two if finer else resampling.means_of_two)(x, shares, before, size)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return _Resampled.apply(gradient, *ctx.options), None, None, None, None


def _every_second(x: Tensor, shares: tuple[float, ...], padding: Sequence[int]) -> Tensor:
    """Return weighted means of neighbouring points of each channel, at every second row and column."""
    # Filled on the device; a copy from the host would make a GPU wait.
    along = torch.stack([x.new_full((), share) for share in shares])
    kernel = torch.outer(along, along).expand(x.shape[1], 1, -1, -1)
    return functional.conv2d(x, kernel, stride=2, padding=tuple(padding), groups=x.shape[1])


class MaxPool2d(nn.Module):
    """The largest of the 2 x 2 fine cells at and after each coarse one."""

    def __init__(self, grid: Grid | Domain) -> None:
        super().__init__()
        domain = Domain.of(grid)
        self.out = domain.coarsen()
        rows, columns = (
            tuple((2 * first, 2 * last) for first, last in pairwise(cuts))
            for cuts in (self.out.row_cuts, self.out.column_cuts)
        )
        self.window = HaloPad(domain, rows, columns)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, C, H, W) to (B, C, ceil(H/2), ceil(W/2))."""
        return functional.max_pool2d(self.window(x), 2)
