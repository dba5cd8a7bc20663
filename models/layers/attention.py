"""Attention within windows of the globe (Liu et al. 2021, arXiv:2103.14030), whole or in tiles."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from data_pipeline.common.checks import check_integer
from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from models.layers.window import Intervals
from models.parallel.domain import Cuts, Domain
from models.parallel.exchange import Exchange


class WindowAttention(nn.Module):
    """Self-attention among the cells of each window of `size` x `size`; with `shift`, windows lie half a window off.

    Where columns go round and divide into windows, so do the windows; else those at the edges are smaller. A rank
    works on the windows whose first row and column it is nearest to, and hands back what belongs to others.
    """

    def __init__(self, grid: Grid | Domain, channels: int, heads: int, size: int, shift: bool = False) -> None:
        super().__init__()
        check_integer("model.size", size, 1)
        if channels % heads:
            raise InputError(f"model.heads must divide the {channels} channels, got {heads}")
        self.out = domain = Domain.of(grid)
        self.heads, self.size = heads, size
        self.mix, self.last = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
        offset = size // 2 if shift else 0
        around = domain.grid.periodic and domain.shape[1] % size == 0
        rows = _edges(domain.row_cuts, size, offset, around=False)
        columns = _edges(domain.column_cuts, size, offset, around)
        self._there = Exchange(domain, (_intervals(rows), _intervals(columns)), beyond_zero=True)
        # The result in tiles that end where windows do; columns are counted from the first window if these go round.
        start = columns[0] if around else 0
        H, W = domain.shape
        moved = replace(
            domain,
            row_cuts=tuple(min(max(edge, 0), H) for edge in rows),
            column_cuts=tuple(edge - start if around else min(max(edge, 0), W) for edge in columns),
        )
        self._back = Exchange(
            moved, (_intervals(domain.row_cuts), tuple((a - start, b - start) for a, b in pairwise(domain.column_cuts)))
        )
        i, j = divmod(domain.rank, domain.tiles[1])
        # The part of the own windows that lies on the grid.
        self._rows = _inside(rows[i], rows[i + 1], 0, H)
        self._columns = _inside(columns[j], columns[j + 1], *((start, start + W) if around else (0, W)))

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to the same shape."""
        x = self._there(x)
        inside = x.new_zeros(1, 1, *x.shape[-2:], dtype=torch.bool)
        inside[..., self._rows, self._columns] = True
        seen = self._cells(inside)[..., 0].repeat(x.shape[0], 1)
        q, k, v = self.mix(self._cells(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=seen[:, None, None, :])
        y = self._field(self.last(y.transpose(1, 2).flatten(2)), x.shape)
        return self._back(y[..., self._rows, self._columns].contiguous())

    def _cells(self, x: Tensor) -> Tensor:
        """(B, C, n size, m size) to (B n m, size size, C)."""
        x = x.unflatten(-1, (-1, self.size)).unflatten(-3, (-1, self.size))
        return x.permute(0, 2, 4, 3, 5, 1).flatten(0, 2).flatten(1, 2)

    def _field(self, windows: Tensor, shape: torch.Size) -> Tensor:
        """Undo `_cells`."""
        B, C, h, w = shape
        x = windows.unflatten(1, (self.size, self.size)).unflatten(0, (B, h // self.size, w // self.size))
        return x.permute(0, 5, 1, 3, 2, 4).reshape(B, C, h, w)


def _inside(first: int, last: int, low: int, high: int) -> slice:
    """Return which points from `first` up to `last`, counted from `first`, lie between `low` and `high`."""
    return slice(max(low - first, 0), min(high, last) - first)


def _edges(cuts: Cuts, size: int, offset: int, around: bool) -> tuple[int, ...]:
    """Return for each cut the nearest edge of a window; windows start at `offset` and cover the axis."""
    first = offset if around or not offset else offset - size
    last = first + cuts[-1] if around else first - (first - cuts[-1]) // size * size
    inner = (first + round((cut - first) / size) * size for cut in cuts[1:-1])
    edges = (first, *inner, last)
    if any(low >= high for low, high in pairwise(edges)):
        raise InputError(
            f"{len(cuts) - 1} ranks cannot share the windows of {size} cells on {cuts[-1]}; take fewer ranks"
        )
    return edges


def _intervals(edges: tuple[int, ...]) -> Intervals:
    return tuple(pairwise(edges))
