"""MLP: one small network that corrects every cell from the features of that cell alone.

Rasp & Lerch 2018, doi:10.1175/MWR-D-18-0187.1.
"""

from __future__ import annotations

from torch import Tensor, nn

from data_pipeline.common.checks import check_between, check_integer
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from models.layers.dropout import Dropout
from models.networks.baseline import BaselineOption
from models.networks.head import HeadOption, zero_convolution
from models.networks.network import Network
from models.parallel.domain import Domain


class MLP(Network):
    """`depth` hidden layers of `width` units; `cell_embedding` is the number of learnt inputs of each cell.

    With static fields and an embedding it is the distributional regression network of Rasp & Lerch; with `head:
    bernstein` the Bernstein quantile network of Bremnes 2020 (doi:10.1175/MWR-D-19-0227.1).
    """

    cellwise = True

    def __init__(
        self,
        task: Task,
        grid: Grid | Domain,
        width: int = 128,
        depth: int = 1,
        dropout: float = 0.0,
        cell_embedding: int = 0,
        head: HeadOption = "normal",
        baseline: BaselineOption = None,
    ) -> None:
        super().__init__(task, grid, head, baseline, cell_embedding)
        check_integer("model.width", width, 1)
        check_integer("model.depth", depth, 1)
        check_between("model.dropout", dropout, 0, 1)
        hidden = hidden_layers(grid, self.features.count, width, depth, dropout)
        self.network = nn.Sequential(*hidden, zero_convolution(width, self.head.count))

    def maps(self, features: Tensor) -> Tensor:
        """Map (B, F, H, W) to the head's input (B, N, H, W)."""
        return self.network(features)


def hidden_layers(grid: Grid | Domain, inputs: int, width: int, depth: int, dropout: float = 0.0) -> list[nn.Module]:
    """Return `depth` hidden layers of `width` units that see each cell by itself: convolutions 1 x 1."""
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Conv2d(inputs, width, 1), nn.GELU(), Dropout(grid, dropout)]
        inputs = width
    return layers


def make_stem(inputs: int, stem_width: int) -> nn.Module:
    """Return a layer of `stem_width` linear combinations of the inputs, each after a GELU; for 0 the inputs as is."""
    check_integer("model.stem_width", stem_width, 0)
    return nn.Sequential(nn.Conv2d(inputs, stem_width, 1), nn.GELU()) if stem_width else nn.Identity()
