"""Attention among the members of a forecast in each cell."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.layers.cell_attention import attend


class MemberAttention(nn.Module):
    """Residual self-attention (Vaswani et al. 2017, arXiv:1706.03762) among the members in each cell.

    x + O softmax(Q Kᵀ / √d) V, with Q, K and V linear in the normalised x; O starts at zero. There is no positional
    encoding, so members in another order give the same results in that order.
    """

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.mix = nn.LayerNorm(channels), nn.Linear(channels, 3 * channels)
        self.last = nn.Linear(channels, channels)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)

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
