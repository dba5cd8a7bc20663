"""Convolution of members' maps beside maps that all members of a forecast share."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from data_pipeline.grid import Grid
from models.layers.convolution import Conv2d, input_intervals
from models.layers.padding import HaloPad
from models.parallel.domain import Domain


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
