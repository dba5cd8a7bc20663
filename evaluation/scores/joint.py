"""The energy score of all targets together, which also depends on the correlation between targets."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from evaluation.scores.case import Case
from evaluation.scores.extremes import no_climatology
from evaluation.scores.score import CellStatistic, Score, Settings
from models.distribution import energy_score


def _energy(case: Case) -> Tensor:
    members = case.forecast.as_members
    if members is None or case.climate is None:
        return torch.full_like(case.truth, torch.nan)
    scale = case.climate.std
    # The joint score counts only in cells where all targets have a truth.
    return energy_score(members / scale, case.truth / scale, dim=1).nan_to_num(0)[:, None].expand_as(case.truth)


def _all_known(case: Case) -> Tensor:
    complete = case.valid.all(1, keepdim=True).expand_as(case.truth).to(case.truth)
    return complete if case.forecast.as_members is not None else torch.full_like(complete, torch.nan)


def _not_joint(settings: Settings) -> str:
    if len(settings.task.targets) < 2:
        return f"the task {settings.task.name} has a single target; the energy score of one target is the CRPS"
    return no_climatology(settings)


ENERGY_SCORE = Score(
    name="energy_score",
    title="energy score",
    text="1/M Σ|xᵢ − y| − 1/(2M²) ΣΣ|xᵢ − xⱼ| with Euclidean distances between vectors of all targets in a cell, each "
    "divided by the standard deviation of its climatology. Null for distributions: only members have a joint "
    "distribution, such as those that correct writes.",
    reference="Gneiting & Raftery 2007, doi:10.1198/016214506000001437",
    statistics={"energy": CellStatistic(_energy), "joint_cases": CellStatistic(_all_known)},
    value=lambda energy, joint_cases: energy / np.where(joint_cases == 0, np.nan, joint_cases),
    best="low",
    units="",
    missing=_not_joint,
)
SCORES = (ENERGY_SCORE,)
