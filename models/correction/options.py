"""CorrectionOptions: options of `correct` that change the corrected fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from data_pipeline.common.checks import check_choice, check_integer
from models.correction.conformal import ConformalLayer

PLOTTING_POSITIONS = ("hazen", "weibull")
"""Names of `models.coupling.QUANTILE_LEVELS`."""


@dataclass(frozen=True)
class CorrectionOptions:
    """How corrected members are made; raises `InputError` for an invalid value."""

    quantile_levels: str = "hazen"
    seed: int = 0
    """Of the random numbers that order equal raw members."""
    conformal: Mapping[str, ConformalLayer] = field(default_factory=dict)
    """The conformal layer of each corrector that has one, by the SHA-256 of the corrector's file."""

    def __post_init__(self) -> None:
        check_choice("quantile_levels", self.quantile_levels, PLOTTING_POSITIONS)
        check_integer("seed", self.seed, 0, 2**63 - 1)
