"""Locally connected: a layer with weights of its own in every cell."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from data_pipeline.grid import Grid
from models.layers.term import Termed
from models.parallel.domain import Domain


class LocallyConnected(Termed):
    """A linear map of the channels, another one in each cell of the globe (Deep Weather, Grönquist et al. 2021).

    The weights are those of the whole globe on every rank, read where the own tile lies: a checkpoint knows nothing
    of tiles. In training, `smoothness_penalty` times their `roughness` is a term of the loss.
    """

    def __init__(self, grid: Grid | Domain, inputs: int, outputs: int, smoothness_penalty: float = 0.0) -> None:
        super().__init__()
        self.out, self.smoothness_penalty = Domain.of(grid), smoothness_penalty
        self.weight = nn.Parameter(torch.randn(outputs, inputs, *self.out.shape) / inputs**0.5)
        self.bias = nn.Parameter(torch.zeros(outputs, *self.out.shape))

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, H, W) to (B, outputs, H, W)."""
        if self.training and self.smoothness_penalty:
            periodic = self.out.grid.periodic
            rough = (roughness(self.weight, periodic) + roughness(self.bias, periodic)) / 2
            self.term = self.smoothness_penalty * rough * (len(x) / self.out.ranks)
        return torch.einsum("bihw,oihw->bohw", x, self.out.cut(self.weight)) + self.out.cut(self.bias)


def roughness(field: Tensor, periodic: bool) -> Tensor:
    """Return by how much neighbours in a field (..., H, W) differ, to the south and to the east, on average.

    >>> float(roughness(torch.tensor([[0.0, 1.0], [2.0, 4.0]]), periodic=True))
    2.0
    """
    south = field.diff(dim=-2)
    east = field.diff(dim=-1, append=field[..., :1]) if periodic else field.diff(dim=-1)
    return (south.abs().mean() + east.abs().mean()) / 2
