"""CorrectionOptions: options of `correct` that change the corrected fields."""

from __future__ import annotations

from dataclasses import dataclass

from data_pipeline.common.checks import check_choice, check_integer

PLOTTING_POSITIONS = ("hazen", "weibull")
"""Names of `models.coupling.QUANTILE_LEVELS`."""


@dataclass(frozen=True)
class CorrectionOptions:
    """How corrected members are made; raises `InputError` for an invalid value."""

    quantile_levels: str = "hazen"
    seed: int = 0
    """Of the random numbers that order equal raw members."""

    def __post_init__(self) -> None:
        check_choice("quantile_levels", self.quantile_levels, PLOTTING_POSITIONS)
        check_integer("seed", self.seed, 0, 2**63 - 1)
