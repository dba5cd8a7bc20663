"""CorrectionOptions: options of `correct` that change the corrected fields and their headers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from data_pipeline.common.checks import check_boolean, check_choice, check_integer
from data_pipeline.common.errors import InputError
from data_pipeline.common.plotting_positions import POSITIONS
from data_pipeline.writing.marks import TEMPLATES
from models.members.conformal import ConformalLayer

QUANTILE_LEVELS = POSITIONS
"""Plotting positions of corrected members.

`hazen` gives the centres of M equally probable intervals, whose quantiles have the smallest expected CRPS of any M
values (Bröcker 2012, doi:10.1002/qj.1891). `weibull` gives the mean levels of the order statistics of M draws; the
spread of these members is too small: 0.83 of the distribution's spread for 10 members. IMPROVER uses `weibull`.
"""

MEMBER_METHODS = ("ecc-q", "ecc-r", "ecc-t", "schaake", "member-by-member", "quantiles")
"""Ways to make members of a distribution; see `models.members.members`."""


@dataclass(frozen=True)
class CorrectionOptions:
    """How corrected members are made; raises `InputError` for an invalid value."""

    quantile_levels: str = "hazen"
    seed: int = 0
    """Seed of the random numbers that order equal raw members, and of the levels of `ecc-r`."""
    members: str = "ecc-q"
    """One of `MEMBER_METHODS`."""
    member_count: int | None = None
    """Number of corrected members; None for as many as the forecast has."""
    history: tuple[str, ...] = ()
    """Files of past analyses, for `schaake`."""
    conformal: Mapping[str, ConformalLayer] = field(default_factory=dict)
    """The conformal layer of each corrector that has one, by the SHA-256 of the corrector's file."""

    template: str = "same"
    """Template of GRIB messages, one of `TEMPLATES`."""
    mark: bool = True
    """Whether headers say that messages are corrected."""
    products: tuple[str, ...] = ()
    """Fields that summarise the distribution; see `models.members.products`."""

    def __post_init__(self) -> None:
        check_choice("quantile_levels", self.quantile_levels, QUANTILE_LEVELS)
        check_choice("template", self.template, TEMPLATES)
        check_boolean("mark", self.mark)
        check_integer("seed", self.seed, 0, 2**63 - 1)
        check_choice("members", self.members, MEMBER_METHODS)
        if self.member_count is not None:
            check_integer("member_count", self.member_count, 1, 10_000)
        if self.quantile_levels != "hazen" and self.members in ("ecc-r", "ecc-t", "member-by-member"):
            raise InputError(
                f"quantile_levels={self.quantile_levels} has no effect with members={self.members}; remove it, or "
                "choose members=ecc-q or quantiles"
            )
        if self.members == "schaake" and not self.history:
            raise InputError("members=schaake orders members as past analyses; give their files with history=FILES")
        if self.history and self.members != "schaake":
            raise InputError(f"members={self.members} reads no past analyses; remove history, or set members=schaake")
