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
from models.distribution import Distribution, Patched, PowerTransformed
from models.parallel.domain import Domain
from models.protocol import claims


class Committee(nn.Module):
    """Forecasts the `average` of the forecasts of several correctors of one task.

    Networks fit different parts of the noise of their training years, so their average is better than each of them
    (Lakshminarayanan et al. 2017, arXiv:1612.01474). `specs` describe their models; each corrector keeps its own
    weights and normalisation. `deepweather combine` makes a committee of trained correctors.
    """

    physical = True

    def __init__(self, task: Task, grid: Grid | Domain, specs: list[dict[str, Any]]) -> None:
        super().__init__()
        blank = torch.zeros(len(task.static_names), *grid.shape)  # until the state is loaded
        self.correctors = nn.ModuleList(Corrector(task, grid, spec, blank) for spec in specs)

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
        return average([corrector(sample) for corrector in self.correctors])


def average(distributions: list[Distribution]) -> Distribution:
    """Return the distribution whose parameters are the means of the parameters of distributions of one kind.

    For normal, logistic and Bernstein distributions, and for ensembles of sorted members, this is the mean of the
    quantile functions. Unlike a mixture, it is as sharp as its parts (Schulz & Lerch 2022, arXiv:2204.02291). Members
    of ensembles are not sorted: the k-th members are averaged.
    """
    first, *others = distributions
    if different := next((other for other in others if type(other) is not type(first)), None):
        raise InputError(
            f"a {type(first).__name__} and a {type(different).__name__} cannot be averaged; combine correctors with "
            "heads of one kind"
        )
    if not others:
        return first
    if isinstance(first, Patched):
        pairs = [vars(each) for each in distributions]
        inner, outer = (average([pair[name] for pair in pairs]) for name in ("inner", "outer"))
        return Patched(first.where, inner, outer)
    if isinstance(first, PowerTransformed):
        powers = sorted({each.power for each in distributions if isinstance(each, PowerTransformed)})
        if len(powers) > 1:
            given = " and ".join(f"{power:g}" for power in powers)
            raise InputError(f"forecasts with model.power {given} cannot be averaged; combine those of one power")
        inner = average([each.inner for each in distributions if isinstance(each, PowerTransformed)])
        return PowerTransformed(inner, first.power, first.lower)
    means = {}
    for name, one in vars(first).items():
        # Added to the first, so that equal parameters stay equal to the last digit.
        means[name] = one + sum((_difference(vars(o)[name], one) for o in others), 0) / len(distributions)
    return type(first)(**means)


def _difference(value: Tensor, one: Tensor) -> Tensor:
    """Return value - one, and 0 where both are the same infinity."""
    return torch.where(value == one, 0, value - one)
