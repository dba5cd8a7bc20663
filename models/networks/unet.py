"""U-Net on the sphere: convolutions at several resolutions, joined by skip connections.

Ronneberger et al. 2015, arXiv:1505.04597.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from data_pipeline.common.checks import check_integer
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from models.layers.locally_connected import CellEmbedding
from models.networks.baseline import BaselineOption
from models.networks.head import HeadOption, zero_convolution
from models.networks.mlp import hidden_layers, make_stem
from models.networks.network import Network
from models.networks.trunk import Trunk
from models.parallel.domain import Domain


class UNet(Network):
    """`depth` halvings of the resolution, `width` channels at the finest level, twice as many at each coarser one.

    With many features, most weights would belong to the first convolution. With `stem_width`, this convolution reads so
    many linear combinations of the features instead, after a GELU.

    `cell_width` > 0 adds a second path to the last layer: two hidden layers of so many units that see each cell by
    itself, as in the MLP. Formulas of neighbouring cells are features already, so this path needs few forecasts to
    learn, and the convolutions add what it cannot see (Cheng et al. 2016, arXiv:1606.07792, combine a wide and a deep
    network like this).

    `cell_embedding` is the number of learnt numbers of every cell, 0 for none. The path of single cells reads them;
    without this path, they correct the last maps (`CellEmbedding`). With `mixture`, the options of `Mixing`, the
    convolutions at the finest resolution are mixtures of experts.
    """

    def __init__(
        self,
        task: Task,
        grid: Grid | Domain,
        width: int = 16,
        depth: int = 2,
        dropout: float = 0.1,
        cell_embedding: int = 0,
        head: HeadOption = "normal",
        baseline: BaselineOption = None,
        mixture: dict[str, Any] | None = None,
        stem_width: int = 0,
        cell_width: int = 0,
    ) -> None:
        super().__init__(task, grid, head, baseline, cell_embedding if cell_width else 0)
        check_integer("model.cell_width", cell_width, 0)
        # The convolutions do not read the cell embedding.
        self._seen = self.features.count - (cell_embedding if cell_width else 0)
        parity = self.features.parity[: self._seen]
        self.stem = make_stem(self._seen, stem_width)
        self.trunk = Trunk(
            grid, stem_width or self._seen, width, depth, dropout, mixture, parity=() if stem_width else parity
        )
        self.cell = nn.Sequential(*hidden_layers(grid, self.features.count, cell_width, 2)) if cell_width else None
        place = cell_embedding and not cell_width
        self.place = CellEmbedding(grid, width, cell_embedding) if place else nn.Identity()
        self.last = zero_convolution(width + cell_width, self.head.count)

    def maps(self, features: Tensor) -> Tensor:
        """Map (B, F, H, W) to the head's input (B, N, H, W)."""
        maps = self.place(self.trunk(self.stem(features[:, : self._seen])))
        return self.last(maps if self.cell is None else torch.cat([maps, self.cell(features)], dim=1))
