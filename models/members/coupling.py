"""Members of a corrected forecast: quantiles of its distribution, in the rank order of the raw members.

The rank order keeps the raw members' dependence between places, times and variables (ensemble copula coupling, ECC-Q;
Schefzik, Thorarinsdottir & Gneiting 2013, doi:10.1214/13-STS443).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from data_pipeline.common.checks import check_choice, check_integer
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample, select_channels
from data_pipeline.task import Task
from models.distribution import Distribution, Ensemble
from models.members.coupled_members import CellNames, couple, template_order
from models.members.options import QUANTILE_LEVELS
from models.parallel.domain import Domain


def written_members(
    distribution: Distribution,
    sample: Sample,
    task: Task,
    grid: Grid | Domain,
    quantile_levels: str = "hazen",
    seed: int = 0,
) -> Ensemble:
    """Return the members that `correct` writes for a batch: (M, B, T, H, W) in physical units, with M as in `sample`.

    `distribution` is a model's forecast of the targets for `sample`, over (B, T, H, W); with a `Domain`, of this rank's
    tile. The members get its `member_values` in the rank order of the raw members. Equal raw members are ordered by
    random numbers that depend on `seed`, start, lead time, target and cell only, so they are the same on any mesh and
    in any run. Where a raw member of a target is missing, the raw members are returned.
    """
    check_member_options(quantile_levels, seed)
    channels = task.target_channels
    raw = select_channels(sample.ensemble, channels, 2).movedim(1, 0)
    values = member_values(distribution, task, len(raw), quantile_levels).members
    cells, times = Domain.of(grid), zip(sample.init_time.tolist(), sample.lead_time.tolist(), strict=True)
    # Values and order on the CPU: the order of members is computed in NumPy, as in `correct`.
    own, exact = values.detach().cpu().numpy(), raw.detach().cpu().double().numpy()
    forecasts = [
        couple(own[:, b], template_order(exact[:, b], CellNames(seed, init, lead, cells)))
        for b, (init, lead) in enumerate(times)
    ]
    members = torch.from_numpy(np.stack(forecasts, 1)).to(values.device)
    return Ensemble(torch.where(select_channels(sample.mask, channels, 1), members, raw))


def member_values(distribution: Distribution, task: Task, M: int, quantile_levels: str = "hazen") -> Ensemble:
    """Return the values of `written_members` from the lowest to the highest, (M, B, T, H, W).

    They are the quantiles at `QUANTILE_LEVELS`, within the targets' physical bounds. If the distribution is an ensemble
    of M members, they are its members. Scores of single cells need no more than these values, because such scores do
    not depend on which member has which value.
    """
    check_choice("quantile_levels", quantile_levels, QUANTILE_LEVELS)

    def ordered(part: Distribution) -> Tensor:
        members = part.as_members
        if members is not None and len(members) == M:
            return members.sort(0).values
        k = torch.arange(1, M + 1, dtype=torch.float64, device=part.mean.device)
        return part.quantile(QUANTILE_LEVELS[quantile_levels](k, M))

    values = distribution.scored(ordered)
    for index, target in enumerate(task.targets):
        if target.bounds != (None, None):
            values[:, :, index].clamp_(*target.bounds)
    return Ensemble(values)


def check_member_options(quantile_levels: str, seed: int) -> None:
    """Raise `InputError` for invalid options of `written_members`."""
    check_choice("quantile_levels", quantile_levels, QUANTILE_LEVELS)
    check_integer("seed", seed, 0, 2**63 - 1)
