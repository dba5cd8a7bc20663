"""MLP: every cell by itself, the same small network everywhere (Rasp & Lerch 2018, doi:10.1175/MWR-D-18-0187.1)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from data_pipeline.common.checks import check_between, check_integer
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from models.layers.dropout import Dropout
from models.networks.head import silent
from models.networks.network import Network
from models.parallel.domain import Domain


class MLP(Network):
    """`depth` hidden layers of `width` units, which see the static fields and `cell_embedding` learnt numbers.

    With these it is the distributional regression network of Rasp & Lerch, and with the `head` bernstein the Bernstein
    quantile network of Bremnes 2020 (doi:10.1175/MWR-D-19-0227.1).
    """

    def __init__(
        self,
        task: Task,
        grid: Grid | Domain,
        width: int = 128,
        depth: int = 1,
        dropout: float = 0.0,
        cell_embedding: int = 0,
        head: str = "normal",
        baseline: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(task, grid, head, baseline, cell_embedding)
        check_integer("model.width", width, 1)
        check_integer("model.depth", depth, 1)
        check_between("model.dropout", dropout, 0, 1)
        layers: list[nn.Module] = []
        count = self.features.count
        for _ in range(depth):
            layers += [nn.Conv2d(count, width, 1), nn.GELU(), Dropout(grid, dropout)]
            count = width
        self.network = nn.Sequential(*layers, silent(count, self.head.count))

    def maps(self, features: Tensor) -> Tensor:
        """(B, F, H, W) to what the head takes."""
        return self.network(features)
