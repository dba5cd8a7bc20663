"""CorrectionOptions: options of `correct` that change the corrected fields and their headers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from data_pipeline.common.checks import check_boolean, check_choice, check_integer
from data_pipeline.common.errors import InputError
from data_pipeline.common.plotting_positions import POSITIONS
from data_pipeline.task import Task
from data_pipeline.writing.marks import TEMPLATES, KeyValue, check_keys
from models.engines.engine import CorrectorDescription
from models.members.conformal import ConformalLayer
from models.members.methods import MEMBER_METHODS, METHODS, PAST, READ_METHODS, MemberMethod
from models.members.products import compares
from models.provenance.noise import Noise

QUANTILE_LEVELS = POSITIONS
"""Plotting positions of corrected members.

`hazen` gives the centres of M equally probable intervals, whose quantiles have the smallest expected CRPS of any M
values (Bröcker 2012, doi:10.1002/qj.1891). `weibull` gives the mean levels of the order statistics of M draws; the
spread of these members is too small: 0.83 of the distribution's spread for 10 members. IMPROVER uses `weibull`.
"""
NO_MEMBERS = "none"
"""The value of the option `members` with which only products are made."""


@dataclass(frozen=True)
class CorrectionOptions:
    """How corrected members are made; raises `InputError` for an invalid value."""

    quantile_levels: str = "hazen"
    seed: int = 0
    """Seed of the random numbers that order equal raw members, of `ecc-r`, `gca` and `noise`."""
    members: str = "ecc-q"
    """One of `MEMBER_METHODS`, or `NO_MEMBERS`."""
    member_count: int | None = None
    """Number of corrected members; None for as many as the forecast has."""
    history: tuple[str, ...] = ()
    """Files of past analyses, for the methods and products that read them."""
    reforecasts: tuple[str, ...] = ()
    """Files of past forecasts of the same model, for the methods that read them."""
    conformal: Mapping[str, ConformalLayer] = field(default_factory=dict)
    """The conformal layer of each corrector that has one, by the SHA-256 of the corrector's file."""

    template: str = "same"
    """Template of GRIB messages, one of `TEMPLATES`."""
    mark: bool = True
    """Whether headers say that messages are corrected."""
    keys: Mapping[str, KeyValue] = field(default_factory=dict)
    """ecCodes keys of corrected GRIB messages, and their values."""
    products: tuple[str, ...] = ()
    """Fields that summarise the distribution; see `models.members.products`."""

    def __post_init__(self) -> None:
        check_choice("quantile_levels", self.quantile_levels, QUANTILE_LEVELS)
        check_choice("template", self.template, TEMPLATES)
        check_boolean("mark", self.mark)
        check_integer("seed", self.seed, 0, 2**63 - 1)
        check_choice("members", self.members, (*MEMBER_METHODS, NO_MEMBERS))
        check_keys(self.keys)
        if self.member_count is not None:
            check_integer("member_count", self.member_count, 1, 10_000)
        if self.only_products and not self.products:
            raise InputError(f"members={NO_MEMBERS} writes products alone, and there are none; name them, or members")
        if self.only_products and self.member_count is not None:
            raise InputError(f"member_count={self.member_count} has no effect with members={NO_MEMBERS}; remove it")
        if self.quantile_levels != "hazen" and (self.only_products or self.method.values != "levels"):
            raise InputError(
                f"quantile_levels={self.quantile_levels} has no effect with members={self.members}; remove it, or "
                "choose members=ecc-q or quantiles"
            )
        for option, readers in READ_METHODS.items():
            read = option == "history" and compares(self.products)
            if getattr(self, option) and self.members not in readers and not read:
                raise InputError(
                    f"members={self.members} reads no {PAST[option]}; remove {option}, or set members={readers[0]}"
                )

    @property
    def only_products(self) -> bool:
        """Whether no members are made."""
        return self.members == NO_MEMBERS

    @property
    def method(self) -> MemberMethod:
        """How members are made; without members, a method that reads nothing."""
        return MemberMethod() if self.only_products else METHODS[self.members]

    def check(self, corrector: CorrectorDescription) -> None:
        """Raise `InputError` if the method needs files that no option names, or what the corrector lacks."""
        if compares(self.products) and not self.history:
            raise InputError(
                "products: efi, sot and cpf compare with the climate of the truth; give past analyses of several years "
                "with history=FILES"
            )
        for option in self.method.reads:
            if not getattr(self, option):
                raise InputError(f"members={self.members} needs {PAST[option]}; give their files with {option}=FILES")
        if not self.only_products:
            check_correlates(self.members, corrector.task)
        noise_of(self, corrector)


def noise_of(options: CorrectionOptions, corrector: CorrectorDescription) -> Noise | None:
    """Return the noise of a corrector for a method that needs it. Raises `InputError` if it has none."""
    if not options.method.fitted:
        return None
    if corrector.noise is None:
        raise InputError(
            f"members={options.members}: {corrector.name or 'the corrector'} has no noise, as exported and combined "
            "correctors and those at new stations; run the command of its training again with noise=true, or choose "
            "members=ecc-q"
        )
    return corrector.noise


def check_correlates(method: str, task: Task) -> None:
    """Raise `InputError` for a method that correlates lead times if the task has a single one."""
    if METHODS[method].correlates and len(task.lead_times) == 1:
        raise InputError(f"members={method} correlates lead times, and {task.name} has a single one; set members=ecc-q")
