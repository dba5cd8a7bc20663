"""Predictive distributions with moments, quantiles and scores.

Each is a small frozen class over tensors of one shape. Training, evaluation and tests use the same `crps`. The raw
ensemble is a distribution like any other. Imports only errors from the project; all packages may import it.
"""

from __future__ import annotations

from models.distribution.base import ByTarget, Distribution, Patched, average, by_target, in_double, map_fields
from models.distribution.bernstein import Bernstein
from models.distribution.empirical import Empirical, empirical_quantiles
from models.distribution.ensemble import Ensemble, energy_score, variogram_score
from models.distribution.gamma import CensoredShiftedGamma
from models.distribution.location_scale import (
    Bounded,
    Censored,
    CensoredLogistic,
    CensoredNormal,
    LocationScale,
    Logistic,
    Normal,
)
from models.distribution.power import (
    PowerTransformed,
    from_power,
    level_nodes,
    power_transformed,
    threshold_weighted_crps,
    to_power,
)
from models.distribution.quantiles import Quantiles
from models.distribution.truncated import TruncatedNormal

__all__ = [
    "FAMILIES",
    "GAMMA",
    "Bernstein",
    "Bounded",
    "ByTarget",
    "Censored",
    "CensoredLogistic",
    "CensoredNormal",
    "CensoredShiftedGamma",
    "Distribution",
    "Empirical",
    "Ensemble",
    "LocationScale",
    "Logistic",
    "Normal",
    "Patched",
    "PowerTransformed",
    "Quantiles",
    "TruncatedNormal",
    "average",
    "by_target",
    "empirical_quantiles",
    "energy_score",
    "from_power",
    "in_double",
    "level_nodes",
    "map_fields",
    "power_transformed",
    "threshold_weighted_crps",
    "to_power",
    "variogram_score",
]

GAMMA = "censored_shifted_gamma"
"""Name of `CensoredShiftedGamma` in options."""
FAMILIES: dict[str, type[LocationScale]] = {
    "normal": Normal,
    "logistic": Logistic,
    "censored_normal": CensoredNormal,
    "censored_logistic": CensoredLogistic,
    "truncated_normal": TruncatedNormal,
}
"""Parametric families by their names in options; a bounded family has `lower` as its third argument."""
