"""Ensemble size: whether a model's scores stay what they are when members are added, and whether it claims so.

The gate asks two things of the first n members of the same forecasts, for all n that were scored. The fair CRPS, what
infinitely many members of that kind would score, must not get worse with more of them: for no pair of sizes may the
95 % interval of the paired difference lie above zero. And spread / error must stay within 5 % of its value at the size
in training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from data_pipeline.common.errors import InputError
from evaluation.tables import percent
from models.corrector import Corrector
from models.protocol import claims

TOLERANCE = 0.05


@dataclass(frozen=True)
class MemberCountClaim:
    """With how many members a model is to be compared, and whether it claims to pass the gate."""

    base: int
    made: bool


def check_member_counts(option: object) -> tuple[int, ...]:
    """Return the option `sizes` in increasing order; null is none.

    One member has no spread, and one size nothing to be compared with.
    """
    if option is None:
        return ()
    given = option if isinstance(option, list) else []
    sizes = sorted({size for size in given if type(size) is int and size >= 2})
    if len(sizes) < max(2, len(given)):
        raise InputError(
            "member_counts must be two or more different numbers of members, each at least 2, such as [5,10,20], or "
            f"null to score only all of them; got {option!r}"
        )
    return tuple(sizes)


def member_count_claims(
    correctors: Mapping[str, Corrector], trained: Mapping[str, int], sizes: Sequence[int]
) -> dict[str, MemberCountClaim]:
    """Return what each of the `correctors` claims, some of which were `trained` with a known number of members.

    The references, which were trained with none, are held to the smallest of these numbers.
    """
    if not sizes:
        return {}
    common = min(trained.values(), default=min(sizes))
    return {
        name: MemberCountClaim(trained.get(name, common), claims(corrector.model).any_size)
        for name, corrector in correctors.items()
    }


def member_count_gate(by_member_count: Mapping[str, Any], claim: MemberCountClaim) -> dict[str, Any]:
    """Return how a model with the scores `by_member_count` does at the gate.

    `faults` says in words what keeps it from passing, the worst of each kind. `holds` is None where there is no fault,
    but a score or an interval is missing.
    """
    base = by_member_count[str(claim.base)]["spread_skill"]
    ratios = {size: entry["spread_skill"] for size, entry in by_member_count.items()}
    pairs = [(size, fewer, pair) for size, entry in by_member_count.items() for fewer, pair in entry["fewer"].items()]
    known = base and None not in ratios.values() and all(pair["ci95"] for _, _, pair in pairs)
    faults = []
    if worse := [found for found in pairs if found[2]["ci95"] and found[2]["ci95"][0] > 0]:
        size, fewer, _ = max(worse, key=lambda found: found[2]["crps_fair_minus"])
        faults.append(f"fair CRPS is worse with {size} members than with {fewer}")
    drift = {size: value / base - 1 for size, value in ratios.items() if base and value is not None}
    size, most = max(drift.items(), key=lambda found: abs(found[1]), default=("", 0.0))
    if abs(most) > TOLERANCE:
        faults.append(f"spread / error {percent(most, sign=True)} with {size} members")
    holds = False if faults else True if known else None
    return {"claimed": claim.made, "base": claim.base, "holds": holds, "faults": faults}


def with_gates(scores: dict[str, Any], claims: Mapping[str, MemberCountClaim]) -> dict[str, Any]:
    """Return the scores with every model's member_count_gate, and a warning for every claim that does not hold."""
    models, warnings = dict(scores["models"]), list(scores["warnings"])
    for name, claim in claims.items():
        models[name] = models[name] | {"gate": (found := member_count_gate(models[name]["by"]["members"], claim))}
        if claim.made and found["faults"]:
            faults = " and ".join(found["faults"])
            warnings.append(f"{name} claims that its scores do not depend on the number of members, but {faults}")
    return scores | {"models": models, "warnings": warnings}
