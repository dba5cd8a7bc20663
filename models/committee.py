"""Committee: the average of several correctors, for example of one network trained with several seeds."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.corrector import Corrector
from models.distribution import Distribution, average
from models.parallel.domain import Domain
from models.protocol import claims


class Committee(nn.Module):
    """Forecasts the `average` of the forecasts of several correctors of one task.

    Networks fit different parts of the noise of their training years, so their average is better than each of them
    (Lakshminarayanan et al. 2017, arXiv:1612.01474). `specs` describe their models; each corrector keeps its own
    parameters and normalisation. `weights` has a list for each corrector, with its weight for each target; None: all
    are equal. `deepweather combine` makes a committee of trained correctors.
    """

    physical = True
    weights: Tensor | None

    def __init__(
        self,
        task: Task,
        grid: Grid | Domain,
        specs: list[dict[str, Any]],
        weights: list[list[float]] | None = None,
    ) -> None:
        super().__init__()
        self.register_buffer("weights", None, persistent=False)  # the spec holds them, not the state
        blank = torch.zeros(len(task.static_names), *grid.shape)  # until the state is loaded
        self.correctors = nn.ModuleList(Corrector(task, grid, spec, blank) for spec in specs)
        if weights is not None:
            self.set_weights(weights, len(task.targets))

    def set_weights(self, weights: list[list[float]], targets: int) -> None:
        """Set the weights of each corrector for each of `targets` targets."""
        check_weights(weights, len(self.correctors), targets)
        self.weights = torch.tensor(weights)[..., None, None]

    @property
    def any_size(self) -> bool:
        """Whether all correctors claim `any_size`."""
        return all(claims(corrector.model).any_size for corrector in self.correctors)

    @property
    def tiles(self) -> bool:
        """Whether all correctors claim `tiles`."""
        return all(claims(corrector.model).tiles for corrector in self.correctors)

    @property
    def cellwise(self) -> bool:
        """Whether all correctors claim `cellwise`."""
        return all(claims(corrector.model).cellwise for corrector in self.correctors)

    def forward(self, sample: Sample) -> Distribution:
        """Return the average in physical units."""
        return average([corrector(sample) for corrector in self.correctors], self.weights)


def check_weights(weights: Any, correctors: int, targets: int) -> None:
    """Raise `InputError` unless `weights` are from 0 to 1, with the sum 1 for each target."""
    if not (
        isinstance(weights, list)
        and len(weights) == correctors
        and all(isinstance(row, list) and len(row) == targets for row in weights)
        and all(type(value) in (int, float) and 0 <= value <= 1 for row in weights for value in row)
        and all(math.isclose(sum(column), 1, abs_tol=1e-6) for column in zip(*weights, strict=True))
    ):
        raise InputError(
            f"weights of a committee must be a list for each of its {correctors} correctors, with a number from 0 to 1 "
            f"for each of {targets} targets, and have the sum 1 for each target; combine the correctors again"
        )
