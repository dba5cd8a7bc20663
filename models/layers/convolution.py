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
    """Convolution whose output lies on the grid of its input.

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
        beyond_zero: bool = False,
        parity: Sequence[int] = (),
    ) -> None:
        super().__init__(inputs, outputs, kernel)
        if parity and len(parity) != inputs:
            raise ValueError(f"parity has {len(parity)} entries for {inputs} input channels")
        self.out = domain = Domain.of(grid)
        rows, columns = (input_intervals(cuts, kernel) for cuts in (domain.row_cuts, domain.column_cuts))
        self.window = HaloPad(domain, rows, columns, beyond_zero, parity)
        # A tile at a pole changes signs after its halo has arrived, so it cannot overlap; its neighbours can.
        exchange = None if any(self.window.changed) else self.window.exchange
        self._work = overlapping_work(exchange, self.weight)

    @property
    def input_window(self) -> HaloPad:
        """The window of the inputs whose sign may change across a pole."""
        return self.window

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, C, H, W) to (B, outputs, H, W)."""
        return self.convolve_with(x, self.weight, self.bias)

    def convolve_with(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Map (B, C, H, W) with another weight and bias, which may be parts of this layer's."""
        work = self._work * weight.numel() // self.weight.numel() * x.shape[0]
        if self.window.exchange and overlaps(work, x.device):
            return convolve(x, weight, bias, self.window.exchange)
        return self._conv_forward(self.window(x), weight, bias)


def input_intervals(cuts: Cuts, kernel: int) -> Intervals:
    """Return the input intervals of tiles: each point of the output depends on `kernel` points around it."""
    before = (kernel - 1) // 2
    return tuple((first - before, last - 1 - before + kernel) for first, last in pairwise(cuts))


class MemberConv2d(Conv2d):
    """`Conv2d` of the members' own maps, joined with the last `shared` inputs, which are equal for all members.

    A convolution of joined maps is the sum of the convolutions of its parts. So shared maps are convolved once for each
    forecast, and never repeated for each member. `parity` is the parity of the members' own maps.
    """

    def __init__(self, grid: Grid | Domain, inputs: int, outputs: int, shared: int, parity: Sequence[int] = ()) -> None:
        super().__init__(grid, inputs, outputs)
        self._parts, domain = (inputs - shared, shared), Domain.of(grid)
        rows, columns = (input_intervals(cuts, 3) for cuts in (domain.row_cuts, domain.column_cuts))
        self.own_window = HaloPad(domain, rows, columns, parity=parity) if -1 in parity else None

    @property
    def input_window(self) -> HaloPad:
        """The window of the members' own maps."""
        return self.own_window or self.window

    def forward(self, x: Tensor, shared: Tensor) -> Tensor:  # type: ignore[override]
        """Map (B M, C, H, W) and (B, shared, H, W) to (B M, outputs, H, W)."""
        own, rest = self.weight.split(self._parts, dim=1)
        if self.own_window is None:
            y = self.convolve_with(x, own, self.bias)
        else:
            y = self._conv_forward(self.own_window(x), own, self.bias)
        return add_to_members(y, self.convolve_with(shared, rest, None))


def add_to_members(x: Tensor, shared: Tensor) -> Tensor:
    """Return the sum of maps (B M, C, H, W) and the maps (B, C, H, W) of their forecasts."""
    return (x.unflatten(0, (len(shared), -1)) + shared[:, None]).flatten(0, 1)


class ConvTranspose2d(nn.ConvTranspose2d):
    """Transposed convolution 2 x 2 of stride 2 from a coarse grid to `out`, the fine grid it was coarsened from.

    Coarse point j contributes to the fine points 2j and 2j + 1.
    """

    def __init__(self, out: Grid | Domain, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, 2, stride=2)
        self.out = Domain.of(out)
        rows, columns = (
            tuple((first // 2, (last - 1) // 2 + 1) for first, last in pairwise(cuts))
            for cuts in (self.out.row_cuts, self.out.column_cuts)
        )
        self.window = HaloPad(self.out.coarsen(), rows, columns)
        # The result starts at the first fine point to which the first coarse point of the window contributes.
        self._skip = tuple(part.start % 2 for part in self.out.tile)

    def forward(self, x: Tensor, output_size: list[int] | None = None) -> Tensor:
        """Map (B, C, ceil(H/2), ceil(W/2)) to (B, outputs, H, W)."""
        x = functional.conv_transpose2d(self.window(x), self.weight, self.bias, self.stride)
        (top, left), (h, w) = self._skip, self.out.own_shape
        return x[..., top : top + h, left : left + w]
