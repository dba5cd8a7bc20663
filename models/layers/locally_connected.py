"""Layers with parameters of their own in every cell."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from data_pipeline.common.checks import check_integer
from data_pipeline.grid import Grid
from models.layers.loss_term import LossTermLayer
from models.parallel.domain import Domain


class LocallyConnected(LossTermLayer):
    """A linear map of the channels with weights of its own in each cell (Deep Weather, Grönquist et al. 2021).

    Every rank has the weights of the whole globe and uses those of its tile: a checkpoint does not depend on tiles. In
    training, `smoothness_penalty` times the mean difference of neighbouring weights is a term of the loss.
    """

    def __init__(self, grid: Grid | Domain, inputs: int, outputs: int, smoothness_penalty: float = 0.0) -> None:
        super().__init__()
        self.out, self.smoothness_penalty = Domain.of(grid), smoothness_penalty
        self.weight = nn.Parameter(torch.randn(outputs, inputs, *self.out.shape) / inputs**0.5)
        self.bias = nn.Parameter(torch.zeros(outputs, *self.out.shape))

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, inputs, H, W) to (B, outputs, H, W)."""
        if self.training and self.smoothness_penalty:
            periodic = self.out.grid.periodic
            rough = (roughness(self.weight, periodic) + roughness(self.bias, periodic)) / 2
            self.term = self.smoothness_penalty * rough * (len(x) / self.out.ranks)
        return torch.einsum("bihw,oihw->bohw", x, self.out.cut(self.weight)) + self.out.cut(self.bias)


class CellEmbedding(nn.Module):
    """Residual network of each cell on its maps and `cell_embedding` learnt numbers of the cell.

    It is the end of a network: errors that belong to a place, such as a valley or a coast, are errors of single cells,
    and the convolutions before it have seen the neighbours.
    """

    def __init__(self, grid: Grid | Domain, channels: int, cell_embedding: int) -> None:
        super().__init__()
        check_integer("model.cell_embedding", cell_embedding, 1)
        self._domain = Domain.of(grid)
        # The embedding starts at zero in all cells. The weights that read it are random, so that it has a gradient.
        self.embedding = nn.Parameter(torch.zeros(cell_embedding, *grid.shape))
        self.mix = nn.Sequential(
            nn.Conv2d(channels + cell_embedding, 2 * channels, 1), nn.GELU(), nn.Conv2d(2 * channels, channels, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return x (B, C, H, W) plus the mixture of x with the learnt numbers of each cell."""
        own = self._domain.cut(self.embedding).to(x).expand(len(x), -1, -1, -1)
        return x + self.mix(torch.cat([x, own], dim=1))


def roughness(field: Tensor, periodic: bool) -> Tensor:
    """Return the mean absolute difference between neighbours in a field (..., H, W), to the south and to the east.

    >>> float(roughness(torch.tensor([[0.0, 1.0], [2.0, 4.0]]), periodic=True))
    2.0
    """
    south = field.diff(dim=-2)
    east = field.diff(dim=-1, append=field[..., :1]) if periodic else field.diff(dim=-1)
    return (south.abs().mean() + east.abs().mean()) / 2
