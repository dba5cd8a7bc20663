"""The score of values that are forecast jointly."""

from __future__ import annotations

import torch
from torch import Tensor

from models.distribution.ensemble import pair_divisor


def energy_score(members: Tensor, truth: Tensor, dim: int, fair: float = False) -> Tensor:
    """Score of `members` (M, *S) whose values along the dimension `dim` of `truth` (*S) are forecast jointly.

    1/M Σ|x_i - y| - 1/(2M²) ΣΣ|x_i - x_j| with Euclidean lengths (Gneiting & Raftery 2007,
    doi:10.1198/016214506000001437); `fair` as for the CRPS of an ensemble, which this is for a single value.
    Gives (*S) without `dim`; NaN where any of the joint values is NaN. Values should be of like size.
    """
    M, dim = len(members), dim % truth.ndim + 1
    # One distance between members after the other: all pairs at once need M times the memory.
    total = torch.zeros_like(truth.select(dim - 1, 0))
    for step in range(1, M):
        total = total + torch.linalg.vector_norm(members[step:] - members[:-step], dim=dim).sum(0)
    return torch.linalg.vector_norm(members - truth, dim=dim).mean(0) - total / pair_divisor(M, fair)
