"""Scores that look at what happens above a threshold, such as heavy rain."""

from __future__ import annotations

import torch
from torch import Tensor

from models.distribution.censored import Censored, CensoredLogistic, CensoredNormal
from models.distribution.ensemble import Ensemble
from models.distribution.location_scale import LocationScale, Logistic, Normal

CENSORED: dict[type[LocationScale], type[Censored]] = {Normal: CensoredNormal, Logistic: CensoredLogistic}


def threshold_weighted_crps(
    distribution: LocationScale | Ensemble, truth: Tensor, threshold: Tensor, fair: float = False
) -> Tensor:
    """∫ (F(x) - 1{y <= x})² dx over x >= `threshold` only, (*S) (Gneiting & Ranjan 2011, doi:10.1198/jbes.2010.08110).

    It is the CRPS of max(X, threshold) against max(y, threshold) (Allen et al. 2023, doi:10.1137/22M1532184): that of
    the members, each raised to the threshold, or of the censored distribution. `fair` as for any CRPS.
    """
    truth = torch.maximum(truth, threshold)
    if isinstance(distribution, Ensemble):
        return Ensemble(torch.maximum(distribution.members, threshold)).crps(truth, fair)
    if isinstance(distribution, Censored):
        kind, threshold = type(distribution), torch.maximum(distribution.lower, threshold)
        return kind(distribution.mu, distribution.sigma, threshold).crps(truth)
    if type(distribution) not in CENSORED:
        raise TypeError(f"no closed form of the threshold-weighted CRPS of a {type(distribution).__name__}")
    return CENSORED[type(distribution)](distribution.mu, distribution.sigma, threshold).crps(truth)
