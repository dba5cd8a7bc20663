"""U-Net on the sphere: convolutions at several resolutions, joined by skip connections.

Ronneberger et al. 2015, arXiv:1505.04597.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from data_pipeline.grid import Grid
from data_pipeline.task import Task
from models.layers.locally_connected import CellEmbedding
from models.networks.baseline import BaselineOption
from models.networks.head import zero_convolution
from models.networks.network import Network
from models.networks.trunk import Trunk
from models.parallel.domain import Domain


class UNet(Network):
    """`depth` halvings of the resolution, `width` channels at the finest level, twice as many at each coarser one.

    `cell_embedding` learnt numbers of every cell correct the last maps (`CellEmbedding`); 0 for none. With `mixture`,
    the options of `Mixing`, the convolutions at the finest resolution are mixtures of experts.
    """

    def __init__(
        self,
        task: Task,
        grid: Grid | Domain,
        width: int = 16,
        depth: int = 2,
        dropout: float = 0.1,
        cell_embedding: int = 0,
        head: str = "normal",
        baseline: BaselineOption = None,
        mixture: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(task, grid, head, baseline)
        self.trunk = Trunk(grid, self.features.count, width, depth, dropout, mixture, parity=self.features.parity)
        self.place = CellEmbedding(grid, width, cell_embedding) if cell_embedding else nn.Identity()
        self.last = zero_convolution(width, self.head.count)

    def maps(self, features: Tensor) -> Tensor:
        """Map (B, F, H, W) to the head's input (B, N, H, W)."""
        return self.last(self.place(self.trunk(features)))
