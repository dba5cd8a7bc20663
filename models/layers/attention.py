"""Attention layers: among the members of a forecast in each cell, and among the cells of windows."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from data_pipeline.common.checks import check_integer
from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from models.layers.cell_attention import attend
from models.layers.norms import ChannelNorm
from models.parallel.domain import Cuts, Domain
from models.parallel.exchange import Exchange
from models.parallel.halo import Intervals


class MemberAttention(nn.Module):
    """Residual self-attention (Vaswani et al. 2017, arXiv:1706.03762) among the members in each cell.

    x + O softmax(Q Kᵀ / √d) V, with Q, K and V linear in the normalised x; O starts at zero. There is no positional
    encoding, so members in another order give the same results in that order.
    """

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.mix = nn.LayerNorm(channels), nn.Linear(channels, 3 * channels)
        self.last = _zeroed(nn.Linear(channels, channels))

    def forward(self, x: Tensor, M: int) -> Tensor:
        """Map (B M, C, H, W) to the same shape."""
        if torch.compiler.is_exporting():
            return self.in_standard_operators(x, M)
        C = x.shape[1]
        queries = self.mix.weight.new_full((C, 1), (C // self.heads) ** -0.5)
        scale = torch.cat([queries, torch.ones_like(queries), torch.ones_like(queries)])
        # The matrix includes the factors and offsets of the normalisation. The sum is not a matrix product, because
        # autocast leaves sums in single precision.
        offset = self.mix.bias + (self.mix.weight * self.norm.bias).sum(1)
        mix = self.mix.weight * self.norm.weight * scale
        return attend(x, M, self.heads, mix, offset * scale[:, 0], self.last.weight, self.last.bias, self.norm.eps)

    def in_standard_operators(self, x: Tensor, M: int) -> Tensor:
        """Return the result of `forward`, with operators that an exported file may contain."""
        cells = x.unflatten(0, (-1, M)).permute(0, 3, 4, 1, 2)
        mixed = self.mix(self.norm(cells)).unflatten(-1, (3, self.heads, -1))
        mixed_values = functional.scaled_dot_product_attention(*mixed.permute(4, 0, 1, 2, 5, 3, 6).flatten(1, 3))
        mixed_values = self.last(mixed_values.transpose(1, 2).flatten(2)).view(cells.shape)
        return x + mixed_values.permute(0, 3, 4, 1, 2).flatten(0, 1)


class WindowAttention(nn.Module):
    """Self-attention among the cells of each window of `size` x `size` cells (Swin, Liu et al. 2021, arXiv:2103.14030).

    With `shift`, windows are shifted by half a window. On a periodic grid whose columns divide into windows, windows
    wrap around; elsewhere the windows at the edges are smaller. Tile edges are rounded to the nearest edges of windows:
    each rank gets the cells its windows need, and returns the results of cells that belong to other ranks.
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
        self._forth = Exchange(domain, (_intervals(rows), _intervals(columns)), beyond_zero=True)
        # Results lie in tiles that end where windows do. If windows wrap around, columns count from the first window.
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
        # The part of this rank's windows inside the grid.
        self._rows = _inside(rows[i], rows[i + 1], 0, H)
        self._columns = _inside(columns[j], columns[j + 1], *((start, start + W) if around else (0, W)))

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, C, H, W) to the same shape."""
        x = self._forth(x)
        inside = x.new_zeros(1, 1, *x.shape[-2:], dtype=torch.bool)
        inside[..., self._rows, self._columns].fill_(True)  # an assigned number would be copied to a GPU
        seen = self._cells(inside)[..., 0].repeat(x.shape[0], 1)
        q, k, v = self.mix(self._cells(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=seen[:, None, None, :])
        y = self._field(self.last(y.transpose(1, 2).flatten(2)), x.shape)
        return self._back(y[..., self._rows, self._columns].contiguous())

    def _cells(self, x: Tensor) -> Tensor:
        """Map (B, C, n size, m size) to (B n m, size size, C)."""
        x = x.unflatten(-1, (-1, self.size)).unflatten(-3, (-1, self.size))
        return x.permute(0, 2, 4, 3, 5, 1).flatten(0, 2).flatten(1, 2)

    def _field(self, windows: Tensor, shape: torch.Size) -> Tensor:
        """Map (B n m, size size, C) to (B, C, n size, m size), the inverse of `_cells`."""
        B, C, h, w = shape
        x = windows.unflatten(1, (self.size, self.size)).unflatten(0, (B, h // self.size, w // self.size))
        return x.permute(0, 5, 1, 3, 2, 4).reshape(B, C, h, w)


class ResidualWindowAttention(nn.Module):
    """x + `WindowAttention` of the normalised x, whose last layer starts at zero."""

    def __init__(self, grid: Grid | Domain, channels: int, heads: int, size: int, shift: bool) -> None:
        super().__init__()
        self.norm, self.attention = ChannelNorm(channels), WindowAttention(grid, channels, heads, size, shift)
        _zeroed(self.attention.last)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, C, H, W) to the same shape."""
        return x + self.attention(self.norm(x))


def _zeroed(layer: nn.Linear) -> nn.Linear:
    """Return the layer with weights and biases of zero."""
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def _inside(first: int, last: int, low: int, high: int) -> slice:
    """Return which of the points `first` to `last`, counted from `first`, lie between `low` and `high`."""
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
