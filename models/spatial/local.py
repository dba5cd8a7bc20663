"""Locally connected: a layer with weights of its own in every cell."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from data_pipeline.grid import Grid
from models.spatial.domain import Domain


class LocallyConnected(nn.Module):
    """A linear map of the channels, another one in each cell of the globe (Deep Weather, Grönquist et al. 2021).

    The weights are those of the whole globe on every rank, read where the own tile lies: a checkpoint knows nothing
    of tiles.
    """

    def __init__(self, grid: Grid | Domain, inputs: int, outputs: int) -> None:
        super().__init__()
        self.out = Domain.of(grid)
        self.weight = nn.Parameter(torch.randn(outputs, inputs, *self.out.shape) / inputs**0.5)
        self.bias = nn.Parameter(torch.zeros(outputs, *self.out.shape))

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, H, W) to (B, outputs, H, W)."""
        return torch.einsum("bihw,oihw->bohw", x, self.out.cut(self.weight)) + self.out.cut(self.bias)
