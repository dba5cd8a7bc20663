"""LeNet-style network: a few large convolutions at full resolution, then a small network in every cell."""

from __future__ import annotations

from torch import Tensor, nn

from data_pipeline.common.checks import check_between, check_integer
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from models.layers.convolution import Conv2d
from models.layers.dropout import Dropout
from models.networks.baseline import BaselineOption
from models.networks.head import HeadOption, zero_convolution
from models.networks.network import Network
from models.parallel.domain import Domain


class LeNet(Network):
    """LeNet (LeCun et al. 1998, doi:10.1109/5.726791) on the globe, with a receptive field of 9 x 9 cells.

    Two convolutions 5 x 5 of `width` and twice as many maps, then a layer of `hidden` units in each cell in place of
    the fully connected layers. There is no pooling, because every cell gets its own output. ENS-10 (Ashkboos et al.
    2022, arXiv:2206.14786) reports such a network but not its sizes: these are ours.
    """

    def __init__(
        self,
        task: Task,
        grid: Grid | Domain,
        width: int = 16,
        hidden: int = 64,
        dropout: float = 0.0,
        head: HeadOption = "normal",
        baseline: BaselineOption = None,
    ) -> None:
        super().__init__(task, grid, head, baseline)
        check_integer("model.width", width, 1)
        check_integer("model.hidden", hidden, 1)
        check_between("model.dropout", dropout, 0, 1)
        self.network = nn.Sequential(
            Conv2d(grid, self.features.count, width, 5, parity=self.features.parity), nn.GELU(),
            Conv2d(grid, width, 2 * width, 5), nn.GELU(),
            nn.Conv2d(2 * width, hidden, 1), nn.GELU(), Dropout(grid, dropout),
            zero_convolution(hidden, self.head.count),
        )  # fmt: skip

    def maps(self, features: Tensor) -> Tensor:
        """Map (B, F, H, W) to the head's input (B, N, H, W)."""
        return self.network(features)
