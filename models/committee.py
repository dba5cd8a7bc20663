"""Committee: several correctors that forecast together, such as those of the same options and other seeds."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.corrector import Corrector
from models.distribution import Distribution, Patched
from models.parallel.domain import Domain
from models.protocol import claims


class Committee(nn.Module):
    """The `average` of what correctors of one task say, each with weights and units of its own.

    What one network learnt of the noise of its training years, another did not, so their average is better than they
    are (Lakshminarayanan et al. 2017, arXiv:1612.01474). `specs` describe their models. It is made of trained
    correctors by `deepweather combine`.
    """

    physical = True

    def __init__(self, task: Task, grid: Grid | Domain, specs: list[dict[str, Any]]) -> None:
        super().__init__()
        blank = torch.zeros(len(task.static_names), *grid.shape)  # until the state is loaded
        self.correctors = nn.ModuleList(Corrector(task, grid, spec, blank) for spec in specs)

    @property
    def any_size(self) -> bool:
        """Whether all of them claim that their scores do not depend on the number of members."""
        return all(claims(corrector.model).any_size for corrector in self.correctors)

    @property
    def tiles(self) -> bool:
        """Whether all of them work on a tile of the globe."""
        return all(claims(corrector.model).tiles for corrector in self.correctors)

    def forward(self, sample: Sample) -> Distribution:
        """Return the average in physical units."""
        return average([corrector(sample) for corrector in self.correctors])


def average(distributions: list[Distribution]) -> Distribution:
    """Return the distribution of one kind whose parameters are the means of theirs.

    Of normal and logistic ones, of Bernstein polynomials, and of ensembles of sorted members that is the mean of the
    quantile functions, which unlike the mixture is as sharp as they are (Schulz & Lerch 2022, arXiv:2204.02291). It
    says nothing of members' order: those of ensembles are averaged number by number, as they came.
    """
    first, *others = distributions
    if alien := next((other for other in others if type(other) is not type(first)), None):
        raise InputError(
            f"a {type(first).__name__} and a {type(alien).__name__} have no average; combine correctors with heads of "
            "one kind"
        )
    if not others:
        return first
    if isinstance(first, Patched):
        pairs = [vars(each) for each in distributions]
        inner, outer = (average([pair[name] for pair in pairs]) for name in ("inner", "outer"))
        return Patched(first.where, inner, outer)
    found = {}
    for name, one in vars(first).items():
        # From the first, so that what all agree on stays as it is to the last digit.
        found[name] = one + sum((_difference(vars(o)[name], one) for o in others), 0) / len(distributions)
    return type(first)(**found)


def _difference(value: Tensor, one: Tensor) -> Tensor:
    """Return value - one, 0 where both are the same infinity."""
    return torch.where(value == one, 0, value - one)
