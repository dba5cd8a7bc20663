"""Backbone: any network for images, named in the options, between the features of a sample and a head."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from data_pipeline.common.checks import check_boolean
from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from models.construct import build_part
from models.networks.head import silent
from models.networks.network import Network
from models.parallel.domain import Domain


class Backbone(Network):
    """`backbone` names a module (B, F, H, W) -> (B, F', H, W) by `_target_` and arguments; a linear layer follows.

    Without one, the model is a linear regression on the features. How many features F there are depends on the task:
    `inputs_argument` is the argument of the backbone that takes the number. A backbone of layers from `models.layers`
    takes the grid as the argument `grid_argument`; with `tiles` the model then claims that it works on tiles. A layer
    that knows no grid, such as `torch.nn.Conv2d` with a kernel larger than 1 x 1, would take the edge of a tile for the
    edge of the globe.
    """

    any_grid = False  # the backbone may need a number of rows and columns that can be halved

    def __init__(
        self,
        task: Task,
        grid: Grid | Domain,
        backbone: Mapping[str, Any] | None = None,
        inputs_argument: str = "in_channels",
        grid_argument: str | None = None,
        tiles: bool = False,
        head: str = "normal",
        baseline: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(task, grid, head, baseline)
        check_boolean("model.tiles", tiles)
        for option, name in (("inputs_argument", inputs_argument), ("grid_argument", grid_argument)):
            if not isinstance(name, str) and (name is not None or option == "inputs_argument"):
                raise InputError(f"model.{option} must be the name of an argument of the backbone, got {name!r}")
        self._tiles, whole, count = tiles, Domain.of(grid).grid, self.features.count

        def built(on_grid: Grid | Domain) -> nn.Module:
            if backbone is None:
                return nn.Identity()
            more = {inputs_argument: count} | ({grid_argument: on_grid} if grid_argument else {})
            return build_part("model.backbone", backbone, **more)

        self.backbone = built(grid)
        self.last = silent(_outputs(lambda: built(whole), count, whole), self.head.count)

    @property
    def tiles(self) -> bool:  # type: ignore[override]
        """Whether the options say that the backbone works on a tile of the globe."""
        return self._tiles

    def maps(self, features: Tensor) -> Tensor:
        """(B, F, H, W) to what the head takes."""
        return self.last(self.backbone(features))


@torch.no_grad()
def _outputs(build: Callable[[], nn.Module], inputs: int, grid: Grid) -> int:
    """Return F' of the backbone that `build` makes, if it can without computing anything: on the device `meta`."""
    try:
        with torch.device("meta"):
            found = build().eval()(torch.zeros(1, inputs, *grid.shape))
    except InputError:
        raise
    except Exception:  # it reads values, or it does not suit the grid: the second attempt tells
        with torch.device("cpu"):
            asked = build().eval()
            try:
                found = asked(torch.zeros(1, inputs, *grid.shape))
            except Exception as error:
                raise InputError(f"model.backbone cannot take {inputs} features on {grid}: {error}") from error
    if not isinstance(found, Tensor) or found.ndim != 4 or found.shape[2:] != grid.shape:
        given = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise InputError(
            f"model.backbone must return a tensor (batch, channels, {grid.shape[0]}, {grid.shape[1]}) on {grid}, and "
            f"returned {given}; choose a network that keeps the number of rows and columns"
        )
    return found.shape[1]
