"""Backbone: any image network, named in the options, between the features of a sample and a head."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from models.construct import build_part
from models.networks.baseline import BaselineOption
from models.networks.head import HeadOption, zero_convolution
from models.networks.network import Network
from models.parallel.domain import Domain


class Backbone(Network):
    """A module from (B, F, H, W) to (B, F', H, W), described by the option `backbone`, then a linear layer.

    With `backbone: null` the model is a linear regression on the features. The number of features F depends on the
    task: the backbone's argument `inputs_argument` gets it.
    """

    any_grid = False  # the backbone may need even numbers of rows and columns
    tiles = False  # layers without a grid treat the edge of a tile as the edge of the globe

    def __init__(
        self,
        task: Task,
        grid: Grid | Domain,
        backbone: Mapping[str, Any] | None = None,
        inputs_argument: str = "in_channels",
        head: HeadOption = "normal",
        baseline: BaselineOption = None,
    ) -> None:
        super().__init__(task, grid, head, baseline)
        if not isinstance(inputs_argument, str):
            raise InputError(
                f"model.inputs_argument must be the name of an argument of the backbone, got {inputs_argument!r}"
            )
        count = self.features.count

        def build() -> nn.Module:
            if backbone is None:
                return nn.Identity()
            return build_part("model.backbone", backbone, **{inputs_argument: count})

        self.backbone = build()
        self.last = zero_convolution(_outputs(build, count, Domain.of(grid).grid), self.head.count)

    @property
    def cellwise(self) -> bool:
        """Whether there is no backbone: a regression on the features of a cell looks at no other cell."""
        return isinstance(self.backbone, nn.Identity)

    def maps(self, features: Tensor) -> Tensor:
        """Map (B, F, H, W) to the head's input (B, N, H, W)."""
        return self.last(self.backbone(features))


@torch.no_grad()
def _outputs(build: Callable[[], nn.Module], inputs: int, grid: Grid) -> int:
    """Return the number of output channels F' of a backbone, if possible on the device `meta`, without computing."""
    try:
        with torch.device("meta"):
            found = build().eval()(torch.zeros(1, inputs, *grid.shape))
    except InputError:
        raise
    except Exception:  # it reads values, which `meta` does not have, or it does not suit the grid
        with torch.device("cpu"):
            module = build().eval()
            try:
                found = module(torch.zeros(1, inputs, *grid.shape))
            except Exception as error:
                raise InputError(f"model.backbone cannot take {inputs} features on {grid}: {error}") from error
    if not isinstance(found, Tensor) or found.ndim != 4 or found.shape[2:] != grid.shape:
        given = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise InputError(
            f"model.backbone must return a tensor (batch, channels, {grid.shape[0]}, {grid.shape[1]}) on {grid}, but "
            f"returned {given}; choose a network that keeps the number of rows and columns"
        )
    return found.shape[1]
