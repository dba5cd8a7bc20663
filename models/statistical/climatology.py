"""Climatology: a forecast that depends on the day of the year only."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.distribution import LocationScale
from models.parallel.domain import Domain
from models.parallel.exchange import assemble
from models.statistical.cases import Passes, covers_year, gather, lead_index
from models.statistical.cell_model import CellModel
from models.statistical.predictors import annual_harmonics
from models.statistical.regression import Regression, cell_blocks


class Climatology(CellModel):
    """Normal distribution whose mean and log standard deviation follow `harmonics` of the year, cell by cell.

    Two harmonics resolve about as much as a window of 45 days, with fewer coefficients. The coefficients have the
    smallest CRPS of the training cases. They and the forecast are NaN before a fit, and at cells without truth.
    """

    targets_only = moments_only = any_size = any_grid = tiles = True

    def __init__(self, task: Task, grid: Grid | Domain, harmonics: int = 2) -> None:
        if type(harmonics) is not int or not 0 <= harmonics <= 6:
            raise InputError(f"climatology: harmonics must be a whole number from 0 to 6, got {harmonics}")
        shape = len(task.lead_times), 2 * (1 + 2 * harmonics), len(task.targets), *grid.shape
        super().__init__(task, grid, torch.full(shape, torch.nan))
        self.harmonics, self._regression = harmonics, Regression(scale="log")

    def forward(self, sample: Sample) -> LocationScale:
        """Return the distribution for the valid day of each forecast, (B, T, H, W)."""
        coefficients = self._domain.cut(self.coefficients)[lead_index(sample.lead_time, self._task)].movedim(1, 0)
        terms = [term[:, None, None, None] for term in self._terms(sample).to(coefficients).T]
        return self._regression.predict(coefficients, terms, terms)

    @torch.no_grad()
    def fit(self, batches: Iterable[Sample]) -> None:
        """Fit all cells to the truth of the training samples, in blocks of rows whose cases fit into memory.

        Where the cases of a lead time do not cover the year, there is no annual cycle. `report` holds a note about
        this, and the number of regressions without a fit. Raises `TooFewCasesError` if no cell can be fitted.
        """
        passes, leads = Passes.of(batches), self._task.lead_times
        passes.check_lead_times(self._task)
        covered = [self.harmonics == 0 or covers_year(passes.days(lead), self.harmonics) for lead in leads]
        (h, w), P, T = self._domain.own_shape, self.coefficients.shape[1], len(self._targets)
        table = self.coefficients.new_zeros(len(leads), P, T, h, w)
        known = torch.zeros(len(leads), T, h, w)
        for rows in passes.blocks(len(passes.init_time) * w * T * 4):
            for lead, (terms, truth) in enumerate(gather(passes, self._task, self._pick, rows)):
                count = P // 2 if covered[lead] else 1
                predictors, fields = [term[None] for term in terms.T[:count]], truth.flatten(1)
                found = []
                for cells in cell_blocks(fields.shape[1], len(fields)):
                    y = fields[:, cells].T
                    valid = y.isfinite()
                    y = torch.where(valid, y, 0)
                    found.append(self._regression.fit(predictors, predictors, y, valid.to(y)))
                coefficients = torch.cat(found, dim=1).unflatten(1, truth.shape[1:]).to(table)
                table[lead, :count, :, rows], table[lead, P // 2 : P // 2 + count, :, rows] = coefficients.chunk(2)
                known[lead, :, rows] = truth.isfinite().any(0).float()
        self.coefficients.copy_(assemble(table, self._domain))
        known = assemble(known, self._domain)
        needed = [4 * (1 + 2 * self.harmonics * seasonal) for seasonal in covered]
        self.set_report(~self.coefficients[:, 0].isnan(), known > 0, "climatology", needed, covered)

    def _pick(self, sample: Sample) -> tuple[Tensor, Tensor]:
        return self._terms(sample), sample.target

    def _terms(self, sample: Sample) -> Tensor:
        """Return the constant and the harmonics, (B, 1 + 2·harmonics)."""
        terms = annual_harmonics(sample.init_time, sample.lead_time, self.harmonics)
        return torch.cat([terms.new_ones(len(terms), 1), terms], dim=1)
