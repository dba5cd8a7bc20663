"""Numbers of members: whether a model's scores depend on the number of members, and whether it claims that they do not.

The gate has two conditions on the scores of the first n members of the same forecasts, for all n that were scored. The
fair CRPS, which estimates the score of infinitely many members, must not increase with more members: for no pair of
numbers may the paired difference be above zero with a p-value, adjusted for all pairs (Holm), below 5 %. And spread /
error must stay within 5 % of its value at the number of members in training.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from data_pipeline.common.errors import InputError
from evaluation.report.tables import format_percent
from evaluation.significance.model_comparison import LEVEL, holm
from models.corrector import Corrector
from models.protocol import claims

SPREAD_TOLERANCE = 0.05


@dataclass(frozen=True)
class MemberCountClaim:
    """The number of members to compare with (`base`), and whether the model claims to pass the gate (`made`)."""

    base: int
    made: bool


def check_member_counts(option: object) -> tuple[int, ...]:
    """Return the option `member_counts` in increasing order, () for null.

    Each number must be at least 2, since one member has no spread, and there must be two numbers to compare.

    >>> check_member_counts([10, 5])
    (5, 10)
    """
    if option is None:
        return ()
    given = option if isinstance(option, list) else []
    counts = sorted({count for count in given if type(count) is int and count >= 2})
    if len(counts) < max(2, len(given)):
        raise InputError(
            "member_counts must be two or more different numbers of members, each at least 2, such as [5,10,20], or "
            f"null to score only all of them; got {option!r}"
        )
    return tuple(counts)


def member_count_claims(
    correctors: Mapping[str, Corrector], trained: Mapping[str, int], counts: Sequence[int], others: Collection[str] = ()
) -> dict[str, MemberCountClaim]:
    """Return the claim of each corrector; `trained` holds the number of members that each trained one was trained with.

    A corrector without training is compared with the smallest of these numbers. The `others` read no members.
    """
    if not counts:
        return {}
    common = min(trained.values(), default=min(counts))
    return {
        name: MemberCountClaim(trained.get(name, common), claims(corrector.model).any_size)
        for name, corrector in correctors.items()
    } | {name: MemberCountClaim(common, True) for name in others if name not in correctors}


def member_count_gate(by_member_count: Mapping[str, Any], claim: MemberCountClaim) -> dict[str, Any]:
    """Return the result of the gate for a model with the scores `by_member_count`.

    `faults` lists the failed conditions in words, with the worst case of each. `holds` is None if there is no fault,
    but a score or an interval is missing.
    """
    base = by_member_count[str(claim.base)]["spread_skill"]
    ratios = {size: entry["spread_skill"] for size, entry in by_member_count.items()}
    pairs = [(size, fewer, pair) for size, entry in by_member_count.items() for fewer, pair in entry["fewer"].items()]
    tested = [found for found in pairs if found[2]["p"] is not None]
    known = base and None not in ratios.values() and len(tested) == len(pairs)
    adjusted = zip(tested, holm([pair["p"] for _, _, pair in tested]), strict=True)
    faults = []
    if worse := [found for found, p in adjusted if p < LEVEL and found[2]["crps_fair_minus"] > 0]:
        size, fewer, _ = max(worse, key=lambda found: found[2]["crps_fair_minus"])
        faults.append(f"fair CRPS is worse with {size} members than with {fewer}")
    drift = {size: value / base - 1 for size, value in ratios.items() if base and value is not None}
    size, most = max(drift.items(), key=lambda found: abs(found[1]), default=("", 0.0))
    if abs(most) > SPREAD_TOLERANCE:
        faults.append(f"spread / error {format_percent(most, sign=True)} with {size} members")
    holds = False if faults else True if known else None
    return {"claimed": claim.made, "base": claim.base, "holds": holds, "faults": faults}


def with_gates(scores: dict[str, Any], claims: Mapping[str, MemberCountClaim]) -> dict[str, Any]:
    """Return the scores with the result of the gate for every model, and a warning for every false claim."""
    models, warnings = dict(scores["models"]), list(scores["warnings"])
    for name, claim in claims.items():
        models[name] = models[name] | {"gate": (found := member_count_gate(models[name]["by"]["members"], claim))}
        if claim.made and found["faults"]:
            faults = " and ".join(found["faults"])
            warnings.append(f"{name} claims that its scores do not depend on the number of members, but {faults}")
    return scores | {"models": models, "warnings": warnings}
