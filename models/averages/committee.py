"""Committee: the average of several correctors, for example of one network trained with several seeds."""

from __future__ import annotations

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
from models.statistical.cases import lead_index

LeadWeights = list[list[list[float]]]
"""For each corrector a list for each lead time, with its weight for each target."""


def _claim_of_all(name: str) -> property:
    """Return the property of a committee that says whether all its correctors make the claim `name`."""
    return property(lambda self: all(getattr(claims(corrector.model), name) for corrector in self.correctors))


class Committee(nn.Module):
    """Forecasts the `average` of the forecasts of several correctors of one task.

    Networks fit different parts of the noise of their training years, so their average is better than each of them
    (Lakshminarayanan et al. 2017, arXiv:1612.01474). `specs` describe their models; each corrector keeps its own
    parameters and normalisation. `weights` are `LeadWeights`; None: all are equal. `deepweather combine` makes a
    committee of trained correctors.
    """

    physical = True
    weights: Tensor | None

    def __init__(
        self, task: Task, grid: Grid | Domain, specs: list[dict[str, Any]], weights: LeadWeights | None = None
    ) -> None:
        super().__init__()
        self._task = task
        self.register_buffer("weights", None, persistent=False)  # the spec holds them, not the state
        blank = torch.zeros(len(task.static_names), *grid.shape)  # until the state is loaded
        self.correctors = nn.ModuleList(Corrector(task, grid, spec, blank) for spec in specs)
        if weights is not None:
            self.set_weights(weights)

    def set_weights(self, weights: LeadWeights) -> None:
        """Set the weights of each corrector at each lead time for each target."""
        check_weights(weights, len(self.correctors), len(self._task.lead_times), len(self._task.targets))
        self.weights = torch.tensor(weights)

    any_size, tiles, cellwise = map(_claim_of_all, ("any_size", "tiles", "cellwise"))

    def forward(self, sample: Sample) -> Distribution:
        """Return the average in physical units."""
        weights = None if self.weights is None else weights_at(self.weights, sample, self._task)
        return average([corrector(sample) for corrector in self.correctors], weights)


def weights_at(weights: Tensor, sample: Sample, task: Task) -> Tensor:
    """Return the weights (K, B, T, 1, 1) at the lead times of a batch, from weights (K, L, T)."""
    return weights.index_select(1, lead_index(sample.lead_time, task))[..., None, None]


def check_weights(weights: Any, correctors: int, leads: int, targets: int) -> None:
    """Raise `InputError` unless `weights` are from 0 to 1, with the sum 1 for each lead time and target."""
    rows = weights if isinstance(weights, list) else []
    found = [values for row in rows if isinstance(row, list) for values in row if isinstance(values, list)]
    if not (
        len(rows) == correctors
        and all(isinstance(row, list) and len(row) == leads for row in rows)
        and len(found) == correctors * leads
        and all(len(values) == targets for values in found)
        and all(type(value) in (int, float) and 0 <= value <= 1 for values in found for value in values)
        and torch.allclose(torch.tensor(weights).sum(0), torch.ones(leads, targets), rtol=0, atol=1e-5)
    ):
        raise InputError(
            f"weights of a committee must be a list for each of its {correctors} correctors, with a list for each of "
            f"{leads} lead times of a number from 0 to 1 for each of {targets} targets, and have the sum 1; combine "
            "the correctors again"
        )
