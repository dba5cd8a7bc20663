"""U-Net on the sphere (Ronneberger et al. 2015, arXiv:1505.04597): context at every scale, detail through the skips."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from data_pipeline.grid import Grid
from data_pipeline.task import Task
from models.networks.head import silent
from models.networks.network import Network
from models.networks.trunk import Place, Trunk
from models.parallel.domain import Domain


class UNet(Network):
    """`depth` halvings of the resolution, `width` channels at the finest, twice as many at each coarser level.

    `cell_embedding` learnt numbers of every cell correct the last maps (`Place`), 0 for none. With `mixture`, the
    options of `Mixing`, the convolutions at the finest resolution are mixtures of experts.
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
        baseline: dict[str, Any] | None = None,
        mixture: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(task, grid, head, baseline)
        self.trunk = Trunk(grid, self.features.count, width, depth, dropout, mixture, parity=self.features.parity)
        self.place = Place(grid, width, cell_embedding) if cell_embedding else nn.Identity()
        self.last = silent(width, self.head.count)

    def maps(self, features: Tensor) -> Tensor:
        """(B, F, H, W) to what the head takes."""
        return self.last(self.place(self.trunk(features)))
