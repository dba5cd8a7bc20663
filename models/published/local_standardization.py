"""Local area-wise standardisation: departures from the mean around each cell, in local standard deviations."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor, nn

from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.parallel.domain import Domain
from models.parallel.exchange import assemble
from models.published.local_maps import LocalMaps, PartialMoments
from models.statistical.cases import lead_index
from models.statistical.predictors import SMALLEST_SPREAD

WINDOW, SIGMA = 3.5, 5.0
"""In degrees: the 7 points and the 10 points of Grönquist et al. 2021 on their grid of 0.5 degrees."""


class LocalStandardization(nn.Module):
    """x' = (x - mean)/std of the first member, with maps of its mean and standard deviation by lead time and channel.

    The maps are computed over all training dates and the points of a window around each cell, and smoothed with a
    Gaussian (Grönquist et al. 2021, doi:10.1098/rsta.2020.0092). Before a fit, and where all values are missing, the
    mean is 0 and the standard deviation 1. The channels are the inputs and `Task.other_leads`, not the analysis.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, task: Task, grid: Grid | Domain) -> None:
        super().__init__()
        self._task, self._domain = task, Domain.of(grid)
        self._count = len(task.channels) - len(task.analysis)
        shape = len(task.lead_times), self._count, *grid.shape
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("std", torch.ones(shape))

    @torch.no_grad()
    def fit(self, batches: Iterable[Sample]) -> None:
        """Compute the maps from normalised samples in one pass; memory holds three fields per map."""
        domain, local = self._domain, window_and_smoothing(self._domain.grid)
        nothing = np.zeros((self.mean.shape[1], *domain.own_shape))
        found = [PartialMoments(nothing, nothing, nothing)] * len(self.mean)
        for batch in batches:
            fields, known = (part.cpu().numpy() for part in self._first(batch))
            leads = lead_index(batch.lead_time, self._task).cpu().numpy()
            for lead in np.unique(leads):
                of_lead = leads == lead
                found[lead] = PartialMoments.merge([found[lead], PartialMoments.of(fields[of_lead], known[of_lead])])
        for lead, spread in enumerate(found):
            # Windows extend beyond tiles, so every rank computes the maps of the whole globe, which is fast.
            parts = [assemble(torch.from_numpy(part), domain).numpy() for part in spread]
            for channel, field in enumerate(zip(*parts, strict=True)):
                mean, std = (
                    torch.from_numpy(each) for each in local.maps(PartialMoments(*field), domain.grid.periodic)
                )
                self.mean[lead, channel] = mean.nan_to_num(0)
                # The limit keeps a constant field from being scaled up.
                self.std[lead, channel] = std.nan_to_num(1).clamp(min=SMALLEST_SPREAD)

    def forward(self, sample: Sample) -> Tensor:
        """Return the standardised first member of a batch, (B, C, H, W); 0 where it is missing."""
        lead = lead_index(sample.lead_time, self._task)
        mean, std = (self._domain.cut(each)[lead] for each in (self.mean, self.std))
        fields, known = self._first(sample)
        return ((fields - mean) / std).masked_fill(~known, 0)

    def _first(self, sample: Sample) -> tuple[Tensor, Tensor]:
        """Return the first member, (B, C, H, W), and the mask of its values."""
        return sample.ensemble[:, 0, : self._count], sample.mask[:, : self._count]


def window_and_smoothing(grid: Grid) -> LocalMaps:
    """Return window and smoothing in points of a grid, whose rows and columns are assumed to be equally far apart.

    >>> window_and_smoothing(Grid.regular(361, 720))
    LocalMaps(window_cells=7, sigma_cells=10.0)
    """
    step = (grid.latitudes[0] - grid.latitudes[-1]) / (len(grid.latitudes) - 1)
    # The nearest odd number of points, limited by the grid.
    half = min(round((WINDOW / step - 1) / 2), (min(grid.shape) - 1) // 2)
    return LocalMaps(2 * max(half, 0) + 1, SIGMA / step)
