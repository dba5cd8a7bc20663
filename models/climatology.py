"""Climatology: the forecast of those who know only the date."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from data_pipeline.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.cases import gather, lead_index
from models.distribution import LocationScale
from models.regression import Regression, cell_blocks
from models.season import season
from models.spatial.domain import Domain
from models.spatial.exchange import assemble


class Climatology(nn.Module):
    """Gaussian whose mean and log standard deviation follow `harmonics` of the year, cell by cell.

    Two harmonics resolve about what a window of 45 days does, with fewer numbers to learn. The coefficients
    are those of the smallest CRPS; they and the forecast are NaN before a fit, and at cells without truth.
    No member is ever looked at: `any_size`.
    """

    targets_only = moments_only = any_size = any_grid = tiles = True
    coefficients: Tensor

    def __init__(self, task: Task, grid: Grid | Domain, harmonics: int = 2) -> None:
        super().__init__()
        if type(harmonics) is not int or not 0 <= harmonics <= 6:
            raise InputError(f"climatology: harmonics must be a whole number from 0 to 6, got {harmonics}")
        self.harmonics, self._task, self._domain = harmonics, task, Domain.of(grid)
        self._targets = list(task.target_channels)
        self._regression = Regression(scale="log")
        shape = len(task.lead_times), 2 * (1 + 2 * harmonics), len(task.targets), *grid.shape
        self.register_buffer("coefficients", torch.full(shape, torch.nan))

    def forward(self, sample: Sample) -> LocationScale:
        """Return the distribution of the day on which each forecast is valid, (B, T, H, W)."""
        coefficients = self._domain.cut(self.coefficients)[lead_index(sample.lead_time, self._task)].movedim(1, 0)
        terms = [term[:, None, None, None] for term in self._terms(sample).to(coefficients).T]
        return self._regression.predict(coefficients, terms, terms)

    @torch.no_grad()
    def fit(self, batches: Iterable[Sample]) -> None:
        """Fit all cells to the truth of the training samples, which are read once and stay in memory."""
        for lead, (terms, truth) in enumerate(gather(batches, self._task, self._case)):
            predictors, fields = [term[None] for term in terms.T], truth.flatten(1)
            found = []
            for cells in cell_blocks(fields.shape[1], len(fields)):
                y = fields[:, cells].T
                valid = y.isfinite()
                y = torch.where(valid, y, 0)
                found.append(self._regression.fit(predictors, predictors, y, valid.to(y)))
            coefficients = torch.cat(found, dim=1).unflatten(1, truth.shape[1:]).to(self.coefficients)
            self.coefficients[lead].copy_(assemble(coefficients, self._domain))

    def _case(self, sample: Sample) -> tuple[Tensor, Tensor]:
        return self._terms(sample), sample.target

    def _terms(self, sample: Sample) -> Tensor:
        """Return the constant and the harmonics, (B, 1 + 2·harmonics)."""
        terms = season(sample.init_time, sample.lead_time, self.harmonics)
        return torch.cat([terms.new_ones(len(terms), 1), terms], dim=1)
