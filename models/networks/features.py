"""Features: the inputs of a network, with mean and spread of the ensemble for any number of members."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from data_pipeline.common.checks import check_integer
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.networks.error_climate import ErrorClimate, log_of_spread
from models.parallel.domain import Domain
from models.statistical.predictors import annual_harmonics, spread


class Features(nn.Module):
    """Features (B, F, H, W) of a normalised sample, in this order:

    mean of each input but `Task.memberships`; log spread of each of them; static fields, which include the position;
    cosine and sine of the season; expected error and its size for each target (`ErrorClimate`); a mask for each input
    that exists at sea only; the lead time, if the task has several; and `cell_embedding` numbers of every cell, which
    are trained with the network (Rasp & Lerch 2018, doi:10.1175/MWR-D-18-0187.1).
    """

    def __init__(self, task: Task, grid: Grid | Domain, cell_embedding: int = 0) -> None:
        super().__init__()
        check_integer("model.cell_embedding", cell_embedding, 0)
        self.errors, self._domain, self._leads = ErrorClimate(task, grid), Domain.of(grid), task.lead_times
        # This follows from the variable's name, not from training data: shapes of a network depend on the task alone.
        self._at_sea = [k for k, channel in enumerate(task.channels) if channel.variable.sea_only]
        self.inputs = len(task.channels) - len(task.memberships)
        """Number of the first channels, whose mean and spread are features."""
        # The embedding starts at zero in all cells. The weights that read it are random, so it has a gradient as soon
        # as the last layer is not zero. A cell without truth keeps zero, close to the mean of all cells.
        self.embedding = nn.Parameter(torch.zeros(cell_embedding, *grid.shape)) if cell_embedding else None
        even = self.inputs + len(task.static_names) + 2
        errors = (*(target.parity for target in task.targets), *[1] * len(task.targets))
        rest = len(self._at_sea) + (len(task.lead_times) > 1) + cell_embedding
        self.parity = (*task.parity[: self.inputs], *[1] * even, *errors, *[1] * rest)
        """Parity of each map (`HaloPad`): mean and bias of a wind change sign across a pole, its spread does not."""
        self.count = len(self.parity)
        first = 2 * self.inputs + len(task.static_names) + 2
        self._of_errors = slice(first, first + len(errors))

    def forward(self, sample: Sample) -> Tensor:
        """Return all features of a batch."""
        B, _, _, H, W = sample.ensemble.shape
        ensemble, mask = sample.ensemble[:, :, : self.inputs], sample.mask[:, : self.inputs]
        log_spread = log_of_spread(spread(ensemble)).masked_fill(~mask, 0)
        when = annual_harmonics(sample.init_time, sample.lead_time).to(log_spread)[:, :, None, None].expand(B, -1, H, W)
        maps = [ensemble.mean(1), log_spread, sample.static, when, self.errors(sample)]
        if self._at_sea:
            # A list as an index would be copied to the device, and the host would wait for it.
            maps.append(torch.stack([sample.mask[:, k] for k in self._at_sea], 1).to(log_spread))
        if len(self._leads) > 1:
            maps.append(self._lead(sample).to(log_spread)[:, None, None, None].expand(B, 1, H, W))
        if self.embedding is not None:
            maps.append(self._domain.cut(self.embedding).to(log_spread).expand(B, -1, H, W))
        return torch.cat(maps, dim=1)

    def errors_among(self, features: Tensor) -> Tensor:
        """Return the maps (B, 2T, H, W) of the error climate among the features (B, F, H, W)."""
        return features[:, self._of_errors]

    def _lead(self, sample: Sample) -> Tensor:
        """Return the lead time (B,), scaled to -1 for the task's first and 1 for its last.

        One number is enough, because errors grow steadily with it; `ErrorClimate` has maps of its own per lead time.
        """
        first, last = self._leads[0], self._leads[-1]
        return (2 * sample.lead_time - first - last) / (last - first)
