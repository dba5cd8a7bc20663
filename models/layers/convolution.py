"""Convolutions on the sphere, with the names and weights of `torch.nn`, for kernels of any size."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional

from data_pipeline.grid import Grid
from models.layers.overlap import convolve, overlapping_work, overlaps
from models.layers.padding import HaloPad
from models.parallel.domain import Cuts, Domain
from models.parallel.halo import Intervals


class Conv2d(nn.Conv2d):
    """Convolution whose output lies on the grid of its input, or, with `stride` 2, on every second row and column.

    Beyond the edges of the grid the sphere is continued, or, with `beyond_zero`, cells are zero; a periodic grid has no
    edge in longitude. `parity` of the input channels is explained in `HaloPad`; the first convolution of a network
    needs it, because its inputs may be winds.

    >>> import torch
    >>> layer = Conv2d(Grid.regular(5, 8), inputs=2, outputs=3)
    >>> layer(torch.zeros(1, 2, 5, 8)).shape
    torch.Size([1, 3, 5, 8])
    """

    def __init__(
        self,
        grid: Grid | Domain,
        inputs: int,
        outputs: int,
        kernel: int = 3,
        stride: int = 1,
        groups: int = 1,
        beyond_zero: bool = False,
        parity: Sequence[int] = (),
    ) -> None:
        super().__init__(inputs, outputs, kernel, stride, groups=groups)
        if parity and len(parity) != inputs:
            raise ValueError(f"parity has {len(parity)} entries for {inputs} input channels")
        domain = Domain.of(grid)
        self.out = domain.coarsen() if stride == 2 else domain
        self.window = HaloPad(
            domain,
            input_intervals(self.out.row_cuts, kernel, stride),
            input_intervals(self.out.column_cuts, kernel, stride),
            beyond_zero,
            parity,
        )
        # A tile at a pole changes signs after its halo has arrived, so it cannot overlap; its neighbours can.
        exchange = None if any(self.window.changed) else self.window.exchange
        self._work = overlapping_work(exchange, self.weight, stride)

    @property
    def input_window(self) -> HaloPad:
        """The window of the inputs whose sign may change across a pole."""
        return self.window

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, C, H, W) to (B, outputs, H, W); with stride 2 to (B, outputs, ceil(H/2), ceil(W/2))."""
        return self.convolve_with(x, self.weight, self.bias)

    def convolve_with(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Map (B, C, H, W) with another weight and bias, which may be parts of this layer's."""
        work = self._work * weight.numel() // self.weight.numel() * x.shape[0]
        if self.window.exchange and overlaps(work, x.device):
            return convolve(x, weight, bias, self.window.exchange, self.stride[0], self.groups)
        return self._conv_forward(self.window(x), weight, bias)


def input_intervals(cuts: Cuts, kernel: int, stride: int) -> Intervals:
    """Return the input intervals of output tiles: point j depends on `kernel` points around `stride` j."""
    before = (kernel - 1) // 2
    return tuple((stride * first - before, stride * (last - 1) - before + kernel) for first, last in pairwise(cuts))


class ConvTranspose2d(nn.ConvTranspose2d):
    """Transposed convolution of stride 2 from a coarse grid to `out`, the fine grid it was coarsened from.

    Coarse point j contributes to those `kernel` fine points that a convolution of stride 2 reads for it.
    """

    def __init__(self, out: Grid | Domain, inputs: int, outputs: int, kernel: int = 2) -> None:
        super().__init__(inputs, outputs, kernel, stride=2)
        self.out = Domain.of(out)
        rows, columns = (_spread(cuts, kernel) for cuts in (self.out.row_cuts, self.out.column_cuts))
        self.window = HaloPad(self.out.coarsen(), rows, columns)
        tile, mine = self.out.tile, divmod(self.out.rank, self.out.tiles[1])
        before = (kernel - 1) // 2
        # The result starts at the first fine point to which the first coarse point of the window contributes.
        self._skip = tuple(
            part.start - (2 * intervals[k][0] - before)
            for part, intervals, k in zip(tile, (rows, columns), mine, strict=True)
        )

    def forward(self, x: Tensor, output_size: list[int] | None = None) -> Tensor:
        """Map (B, C, ceil(H/2), ceil(W/2)) to (B, outputs, H, W)."""
        x = functional.conv_transpose2d(self.window(x), self.weight, self.bias, self.stride)
        (top, left), (h, w) = self._skip, self.out.own_shape
        return x[..., top : top + h, left : left + w]


def _spread(cuts: Cuts, kernel: int) -> Intervals:
    """Return the coarse intervals of fine tiles: all coarse points that contribute to their fine points."""
    before = (kernel - 1) // 2
    return tuple(((first + before - kernel + 2) // 2, (last - 1 + before) // 2 + 1) for first, last in pairwise(cuts))
