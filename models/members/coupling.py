"""The members that `correct` writes, for the forecasts of an evaluation.

Both functions take distributions of PyTorch for a batch of forecasts; `models.members.members` makes the members.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from data_pipeline.common.checks import check_choice
from data_pipeline.grid import Grid
from data_pipeline.protocols import Fields
from data_pipeline.sample import Sample, select_channels
from data_pipeline.task import Task
from models.distribution import Distribution, Ensemble
from models.engines.forecast import RawForecast
from models.engines.torch_engine import TorchPrediction
from models.members.members import change_of_ecc_q, corrected_members
from models.members.methods import METHODS
from models.members.options import QUANTILE_LEVELS, CorrectionOptions
from models.members.past import Past
from models.parallel.domain import Domain
from models.provenance.noise import Noise


def written_members(
    distribution: Distribution,
    sample: Sample,
    task: Task,
    grid: Grid | Domain,
    options: CorrectionOptions | None = None,
    past: Past | None = None,
    current: Fields | None = None,
    noise: Noise | None = None,
) -> Ensemble:
    """Return the members that `correct` writes for a batch: (M, B, T, H, W) in physical units, with M as in
    `options` or `sample`.

    `distribution` is a model's forecast of the targets for `sample`, over (B, T, H, W); with a `Domain`, of this rank's
    tile. The members are those of `corrected_members`, so they are the same on any mesh and in any run; only the order
    of raw members that are equal in the single precision of samples may be another than in `correct`. Where a raw
    member of a target is missing, the raw members are returned. A start without all lead times in the batch gets the
    members of `ecc-q` from a method that correlates lead times.
    """
    options = options or CorrectionOptions()
    channels, domain = task.target_channels, Domain.of(grid)
    raw = select_channels(sample.ensemble, channels, 2)
    # Members are made on the CPU: the order of members is computed in NumPy, as in `correct`.
    mask, exact = select_channels(sample.mask, channels, 1).cpu().numpy(), raw.detach().cpu().double().numpy()
    nothing = np.empty((raw.shape[1], 0, *domain.own_shape), np.float32)
    keys = list(zip(sample.init_time.tolist(), sample.lead_time.tolist(), strict=True))
    predictions = TorchPrediction.of_batch(distribution)

    def forecast(b: int, init: int, lead: int) -> RawForecast:
        return RawForecast(nothing, mask[b], exact[b], np.datetime64(init, "s"), lead, tuple(range(raw.shape[1])))

    def change(init: int, lead: int) -> np.ndarray:
        b = keys.index((init, lead))
        return change_of_ecc_q(predictions[b], forecast(b, init, lead), task.targets, mask[b], domain, options)

    members = torch.empty(len(raw), options.member_count or raw.shape[1], *raw.shape[2:], dtype=raw.dtype)
    for b, (init, lead) in enumerate(keys):
        chosen = options
        if METHODS[options.members].correlates and not all((init, other) in keys for other in task.lead_times):
            chosen = replace(options, members="ecc-q")
        members[b] = torch.from_numpy(
            corrected_members(
                predictions[b], forecast(b, init, lead), task.targets, mask[b], domain, chosen, past, current,
                partial(change, init), noise,
            )
        )  # fmt: skip
    return Ensemble(members.movedim(1, 0).to(raw.device))


def member_values(distribution: Distribution, task: Task, M: int, quantile_levels: str = "hazen") -> Ensemble:
    """Return the members of `quantiles`, from the lowest to the highest, (M, B, T, H, W), on the device.

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
