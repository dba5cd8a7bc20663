"""Predictive distributions that score themselves.

Every kind is a small frozen class over tensors of one shape. `crps` holds the formula once, for training, for
evaluation and for tests alike; the raw ensemble is a distribution like any other.
"""

from __future__ import annotations

from models.distribution.base import Distribution, Patched
from models.distribution.bernstein import Bernstein
from models.distribution.censored import Censored, CensoredLogistic, CensoredNormal, threshold_weighted_crps
from models.distribution.ensemble import Ensemble, energy_score
from models.distribution.gamma import CensoredShiftedGamma
from models.distribution.location_scale import Bounded, LocationScale, Logistic, Normal
from models.distribution.truncated import TruncatedNormal

__all__ = [
    "FAMILIES",
    "Bernstein",
    "Bounded",
    "Censored",
    "CensoredLogistic",
    "CensoredNormal",
    "CensoredShiftedGamma",
    "Distribution",
    "Ensemble",
    "LocationScale",
    "Logistic",
    "Normal",
    "Patched",
    "TruncatedNormal",
    "energy_score",
    "threshold_weighted_crps",
]

FAMILIES: dict[str, type[LocationScale]] = {
    "normal": Normal,
    "logistic": Logistic,
    "censored_normal": CensoredNormal,
    "censored_logistic": CensoredLogistic,
    "truncated_normal": TruncatedNormal,
}
"""Parametric families by the name that configurations use; a bounded one takes `lower` as third argument."""
