"""Networks of the heat experiment: a mixture of experts and its rivals, which forecast one step.

The experiment of Dryden & Hoefler (2022, arXiv:2211.13491) tests which networks learn that regions conduct heat
differently. docs/heat.md compares the results.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from data_pipeline.common.checks import check_boolean, check_integer, construct
from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.distribution import Ensemble
from models.layers.convolution import Conv2d, input_intervals
from models.layers.mixture import Routing, SpatialMixture
from models.layers.norms import BatchNorm2d
from models.layers.padding import HaloPad
from models.parallel.domain import Domain


class OneStepModel(nn.Module):
    """A network that forecasts each member of a single field one step ahead, without adding uncertainty.

    Values are not normalised, because a step maps values, not departures from a mean. Cells beyond the edges are zero.
    """

    physical = any_grid = tiles = True

    def __init__(self, task: Task, network: nn.Module) -> None:
        super().__init__()
        if len(task.channels) > 1:
            raise InputError(
                f"task {task.name} has {len(task.channels)} inputs, but this model needs one; use task=heat"
            )
        self.network = network

    def forward(self, sample: Sample) -> Ensemble:
        """Return the members one step later, over (B, 1, H, W)."""
        B, M, *_ = sample.ensemble.shape
        return Ensemble(self.network(sample.ensemble.flatten(0, 1)).unflatten(0, (B, M)).movedim(1, 0))


class Mixture(OneStepModel):
    """A single spatial mixture of `experts`; `routing` holds the options of `Routing`, None for no routing."""

    def __init__(
        self,
        task: Task,
        grid: Grid | Domain,
        experts: int = 3,
        scale_by_gate: bool = False,
        routing: Mapping[str, Any] | None = None,
    ) -> None:
        check_boolean("model.scale_by_gate", scale_by_gate)
        rules = None if routing is None else construct("model.routing", Routing, routing)
        super().__init__(
            task, SpatialMixture(grid, 1, 1, experts, scale_by_gate=scale_by_gate, routing=rules, beyond_zero=True)
        )

    @property
    def chosen_expert(self) -> Tensor:
        """The expert that each cell uses, (H, W)."""
        return self.get_parameter("network.gate.weight").argmax(0)


class CNN(OneStepModel):
    """Convolution to `width` maps, batch normalisation, ReLU, convolution, with the same weights in all cells.

    With `coordinates`, row and column from -1 to 1 are further inputs (CoordConv, Liu et al. 2018, arXiv:1807.03247).
    """

    def __init__(self, task: Task, grid: Grid | Domain, width: int = 4, coordinates: bool = False) -> None:
        check_integer("model.width", width, 1)
        check_boolean("model.coordinates", coordinates)
        first = Conv2d(grid, 3 if coordinates else 1, width, beyond_zero=True)
        last = Conv2d(grid, width, 1, beyond_zero=True)
        for layer in (first, last):
            layer.register_parameter("bias", None)
        nn.init.kaiming_uniform_(first.weight, nonlinearity="relu")
        nn.init.kaiming_uniform_(last.weight, nonlinearity="linear")
        coordinate_layers = [Coordinates(grid)] if coordinates else []
        super().__init__(task, nn.Sequential(*coordinate_layers, first, BatchNorm2d(grid, width), nn.ReLU(), last))


class LocalKernels(OneStepModel):
    """A locally connected layer: each cell has its own 3 x 3 kernel."""

    def __init__(self, task: Task, grid: Grid | Domain) -> None:
        super().__init__(task, Kernels(grid))


class LocalBlend(OneStepModel):
    """Convolutions whose outputs are added with separate weights for each cell (a 1 x 1 locally connected layer)."""

    def __init__(self, task: Task, grid: Grid | Domain, experts: int = 3) -> None:
        check_integer("model.experts", experts, 1)
        super().__init__(task, Blend(grid, experts))


class KnownRegions(OneStepModel):
    """A convolution for each region: a mixture whose gate is the static field `region`."""

    def __init__(self, task: Task, grid: Grid | Domain, experts: int = 3) -> None:
        check_integer("model.experts", experts, 1)
        if "region" not in task.static:
            raise InputError("model heat/known_regions needs the static field region; add data.static=[region]")
        super().__init__(task, make_experts(grid, experts))
        self._region = task.static_names.index("region")

    def forward(self, sample: Sample) -> Ensemble:
        """Return the members one step later, over (B, 1, H, W)."""
        outputs = torch.stack([self.network(member) for member in sample.ensemble.unbind(1)])
        region = sample.static[:, self._region].long()[None, :, None]
        return Ensemble(outputs.gather(2, region.expand(len(outputs), -1, -1, -1, -1)))


class Coordinates(nn.Module):
    """Adds two channels: row and column, both from -1 to 1."""

    coordinates: Tensor

    def __init__(self, grid: Grid | Domain) -> None:
        super().__init__()
        self.out = Domain.of(grid)
        rows, columns = (torch.linspace(-1, 1, size) for size in self.out.shape)
        self.register_buffer("coordinates", torch.stack(torch.meshgrid(rows, columns, indexing="ij")), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return x (B, C, H, W) with the coordinates, (B, C + 2, H, W)."""
        return torch.cat([x, self.out.cut(self.coordinates).to(x).expand(len(x), -1, -1, -1)], dim=1)


class Kernels(nn.Module):
    """The weighted sum over 3 x 3 cells, with separate weights for each cell."""

    def __init__(self, grid: Grid | Domain) -> None:
        super().__init__()
        self.out = domain = Domain.of(grid)
        rows, columns = (input_intervals(cuts, 3) for cuts in (domain.row_cuts, domain.column_cuts))
        self.window = HaloPad(domain, rows, columns, beyond_zero=True)
        self.weight = nn.Parameter(torch.empty(3, 3, *domain.shape).uniform_(-1, 1) * (6 / 9) ** 0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output for x (B, 1, H, W), in the same shape."""
        padded, weight, (H, W) = self.window(x), self.out.cut(self.weight), self.out.own_shape
        return sum(weight[i, j] * padded[..., i : i + H, j : j + W] for i in range(3) for j in range(3))


class Blend(nn.Module):
    """The weighted sum of the outputs of experts, with separate weights for each cell."""

    def __init__(self, grid: Grid | Domain, experts: int) -> None:
        super().__init__()
        self.out = Domain.of(grid)
        self.experts = make_experts(grid, experts)
        self.weight = nn.Parameter(torch.empty(experts, *self.out.shape).uniform_(-1, 1) * (3 / experts) ** 0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output for x (B, 1, H, W), in the same shape."""
        return (self.experts(x) * self.out.cut(self.weight)).sum(1, keepdim=True)


def make_experts(grid: Grid | Domain, count: int) -> Conv2d:
    """Return `count` convolutions with one output each, initialised as in a mixture."""
    layer = Conv2d(grid, 1, count, beyond_zero=True)
    layer.register_parameter("bias", None)
    nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
    return layer
