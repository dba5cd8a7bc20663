"""Attention beside the identity: among the members of a forecast in every cell, or among cells in windows."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from data_pipeline.grid import Grid
from models.layers.attention import WindowAttention
from models.layers.norms import ChannelNorm
from models.parallel.domain import Domain

CELLS = 2**15
"""How many cells attend at once: kernels on a GPU refuse 65,536 (github.com/pytorch/pytorch/issues/146704)."""


class MemberAttention(nn.Module):
    """Self-attention (Vaswani et al. 2017, arXiv:1706.03762) among the members in each cell, beside the identity.

    x + O softmax(Q Kᵀ / √d) V, with Q, K and V linear in the normalised x; O is zero until it is trained. Members
    have no numbers, so another order of theirs gives the same in that order.
    """

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.mix = nn.LayerNorm(channels), nn.Linear(channels, 3 * channels)
        self.last = _zero(nn.Linear(channels, channels))

    def forward(self, x: Tensor, M: int) -> Tensor:
        """(B M, C, H, W) to the same shape."""
        cells = x.unflatten(0, (-1, M)).permute(0, 3, 4, 1, 2)
        mixed = self.mix(self.norm(cells)).unflatten(-1, (3, self.heads, -1))
        parts = mixed.permute(4, 0, 1, 2, 5, 3, 6).flatten(1, 3).split(CELLS, 1)
        heard = torch.cat([functional.scaled_dot_product_attention(*part) for part in parts])
        heard = self.last(heard.transpose(1, 2).flatten(2)).view(cells.shape)
        return x + heard.permute(0, 3, 4, 1, 2).flatten(0, 1)


class Windows(nn.Module):
    """Attention of cells within windows, beside the identity; zero until it is trained."""

    def __init__(self, grid: Grid | Domain, channels: int, heads: int, size: int, shift: bool) -> None:
        super().__init__()
        self.norm, self.attention = ChannelNorm(channels), WindowAttention(grid, channels, heads, size, shift)
        _zero(self.attention.last)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to the same shape."""
        return x + self.attention(self.norm(x))


def _zero(layer: nn.Linear) -> nn.Linear:
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
