"""Padding on the sphere: the cells around a tile that a layer needs, from the globe or from other ranks.

Longitude is periodic and rows continue across the poles; nothing is cropped.
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
from models.parallel.halo import Intervals, row_sources


class HaloPad(nn.Module):
    """Pad the own tile (..., H, W) to the window (..., h, w) of a layer, with the halo from other ranks.

    `rows` and `columns` are the intervals of the globe that each tile row and tile column needs. With `beyond_zero`,
    cells beyond the edges of the globe or area are zero.

    `parity` has 1 for each input channel that keeps its sign across a pole and -1 for each that changes it, such as the
    eastward wind. Rows beyond a pole are multiplied by it. Without `parity`, all channels keep their sign. Only
    physical fields have a parity; channels of a hidden layer mix fields, so they have none.
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
        row_sources(
            self.domain.grid, np.array([rows[0][0], rows[-1][1] - 1])
        )  # raises if a row lies beyond the opposite pole
        H, W = self.domain.shape
        self.sides = -rows[0][0], rows[-1][1] - H, -columns[0][0], columns[-1][1] - W
        self.beyond_zero = beyond_zero
        # Equal on all ranks, so that models match; not saved.
        changes = -1 in parity and not beyond_zero
        self.register_buffer("parity", torch.tensor(parity).float() if changes else None, persistent=False)
        top, bottom = rows[self.domain.rank // self.domain.tiles[1]]
        reach = {0: max(-top, 0), -1: max(bottom - H, 0)}
        self.changed = tuple(
            width if changes and self.domain.grid.across_pole(end) is not None else 0 for end, width in reach.items()
        )
        """Numbers of rows of the own window beyond the north and beyond the south pole that change sign."""

    def forward(self, x: Tensor) -> Tensor:
        """Tile (..., H, W) to window (..., h, w); with `parity` the third axis from the end is the channel."""
        window = self._seen(x)
        if self.parity is None or not any(self.changed):
            return window
        sign, (north, south) = self.parity.to(window)[:, None, None], self.changed
        last = window.shape[-2] - south
        parts = window[..., :north, :] * sign, window[..., north:last, :], window[..., last:, :] * sign
        return torch.cat(parts, dim=-2)

    def _seen(self, x: Tensor) -> Tensor:
        """Return the window without changes of sign."""
        if self.exchange:
            return self.exchange(x)
        north, south, west, east = self.sides
        if self.beyond_zero:
            return functional.pad(x, (west, east, north, south))
        return pad(x, self.domain.grid, north, south, west, east)


def pad(x: Tensor, grid: Grid, north: int, south: int, west: int, east: int) -> Tensor:
    """Return the whole globe `x` (..., H, W) with more rows and columns, continued on the sphere.

    Rows beyond a pole are those before it, shifted by half a turn (for an odd number of columns, by the nearest column
    to that). At the edge of a limited area the last row or column is repeated. A negative number removes rows.
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
