"""Members from a distribution, in the raw ensemble's rank order: space, time and other variables stay together."""

from __future__ import annotations

import torch
from torch import Tensor

from models.distribution import Distribution, Ensemble


def ensemble_copula_coupling(distribution: Distribution, raw: Tensor) -> Tensor:
    """Return M corrected members (M, *S) for M raw ones: the member that was k-th of M at a point is so again.

    ECC-Q (Schefzik, Thorarinsdottir & Gneiting 2013, doi:10.1214/13-STS443): the k-th value is the quantile at
    k/(M + 1). Raw members that are equal keep the order of their numbers. An ensemble of M members brings its own
    values.
    """
    M = len(raw)
    if isinstance(distribution, Ensemble) and len(distribution.members) == M:
        values = distribution.members.sort(0).values
    else:
        values = distribution.quantile(torch.arange(1, M + 1, dtype=torch.float64, device=raw.device) / (M + 1))
    rank = raw.argsort(dim=0, stable=True).argsort(dim=0)
    return values.gather(0, rank)
