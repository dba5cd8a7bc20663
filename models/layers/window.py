"""Window: what a layer sees of its input, the own tile and as much beyond it as the layer reaches.

Longitude goes round and rows go on across the poles; nothing is ever cropped.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from data_pipeline.grid import Grid
from models.parallel.domain import Domain
from models.parallel.exchange import Exchange
from models.parallel.plan import Interval, row_sources

Intervals = tuple[Interval, ...]
"""One for each tile along an axis."""


class Window(nn.Module):
    """What a layer must see of its input, on every side as far as `rows` and `columns` say for each tile.

    With `beyond_zero` there is nothing beyond the edges: a limited area in a world of zeros.

    `parity` has 1 for each input channel that keeps its sign across a pole and -1 for each that changes it, such as the
    eastward wind. The rows beyond a pole are multiplied by it. Without `parity` all channels keep their sign. Only
    physical fields have a parity; channels of a hidden layer mix them, so they have none.
    """

    parity: Tensor | None

    def __init__(
        self,
        grid: Grid | Domain,
        rows: Intervals,
        columns: Intervals,
        beyond_zero: bool = False,
        parity: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self.domain = Domain.of(grid)
        self.exchange = Exchange(self.domain, (rows, columns), beyond_zero) if self.domain.ranks > 1 else None
        row_sources(self.domain.grid, np.array([rows[0][0], rows[-1][1] - 1]))  # refuses to reach beyond the other pole
        H, W = self.domain.shape
        self.sides = -rows[0][0], rows[-1][1] - H, -columns[0][0], columns[-1][1] - W
        self.beyond_zero = beyond_zero
        # The same on all ranks, and no part of the saved state.
        changes = -1 in parity and not beyond_zero
        self.register_buffer("parity", torch.tensor(parity).float() if changes else None, persistent=False)
        top, bottom = rows[self.domain.rank // self.domain.tiles[1]]
        reach = {0: max(-top, 0), -1: max(bottom - H, 0)}
        self.changed = tuple(
            width if changes and self.domain.grid.across_pole(end) is not None else 0 for end, width in reach.items()
        )
        """How many rows of the own window lie beyond the north pole and beyond the south pole and change sign."""

    def forward(self, x: Tensor) -> Tensor:
        """Tile (..., H, W) to window; with `parity`, (..., C, H, W)."""
        window = self._seen(x)
        if self.parity is None or not any(self.changed):
            return window
        sign, (north, south) = self.parity.to(window)[:, None, None], self.changed
        last = window.shape[-2] - south
        parts = window[..., :north, :] * sign, window[..., north:last, :], window[..., last:, :] * sign
        return torch.cat(parts, dim=-2)

    def _seen(self, x: Tensor) -> Tensor:
        """Return the window of fields that keep their sign across a pole."""
        if self.exchange:
            return self.exchange(x)
        north, south, west, east = self.sides
        if self.beyond_zero:
            return functional.pad(x, (west, east, north, south))
        return pad(x, self.domain.grid, north, south, west, east)


def pad(x: Tensor, grid: Grid, north: int, south: int, west: int, east: int) -> Tensor:
    """Return the whole globe `x` (..., H, W) with more rows and columns, continued as the sphere is.

    Rows beyond a pole are the rows before it half a turn further (for an odd number of columns, the nearest
    column to that); at the edge of a limited area the last row or column is repeated. A negative number cuts off.
    """
    if not any((north, south, west, east)):
        return x
    H, W = grid.shape
    x = torch.cat(
        [
            _rows_beyond(x, grid, 0, north),
            x[..., max(-north, 0) : H + min(south, 0), :],
            _rows_beyond(x, grid, -1, south),
        ],
        dim=-2,
    )
    inner = x[..., max(-west, 0) : W + min(east, 0)]
    west, east = max(west, 0), max(east, 0)
    if grid.periodic:
        return torch.cat([x[..., W - west :], inner, x[..., :east]], dim=-1)
    first, last, shape = x[..., :1], x[..., -1:], [-1] * (x.ndim - 1)
    return torch.cat([first.expand(*shape, west), inner, last.expand(*shape, east)], dim=-1)


def _rows_beyond(x: Tensor, grid: Grid, end: int, width: int) -> Tensor:
    if width <= 0:
        return x[..., :0, :]
    mirror = grid.across_pole(end)
    edge = x[..., :1, :] if end == 0 else x[..., -1:, :]
    if mirror is None:
        return edge.expand(*[-1] * (x.ndim - 2), width, -1)
    rows = (
        x[..., mirror : mirror + width, :]
        if end == 0
        else x[..., x.shape[-2] - mirror - width : x.shape[-2] - mirror, :]
    )
    # Not `roll`: in compiled code PyTorch 2.13 expects another layout of its result than the kernel gives.
    turn, rows = x.shape[-1] // 2, rows.flip(-2)
    return torch.cat([rows[..., x.shape[-1] - turn :], rows[..., : x.shape[-1] - turn]], dim=-1)
