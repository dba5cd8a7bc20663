"""What a corrector states about the groups of members in its training: their shares of the ensemble."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from data_pipeline.common.errors import InputError
from data_pipeline.task import Task

if TYPE_CHECKING:
    from data_pipeline.dataset import ForecastDataset

LARGEST_CHANGE = 0.25
"""Largest change of a group's share of the members. The mean of all members, which models correct, then has nearly the
weights of the training: 10 or 100 perturbed members beside a control forecast, but not 10 or 100 of another system."""


def stated_groups(data: ForecastDataset) -> dict[str, Any]:
    """Return the entry of the provenance about the groups of members; empty without groups."""
    shares = data.task.group_shares(data.numbers)
    return {"groups": shares} if shares else {}


def check_groups(provenance: Mapping[str, Any], task: Task, numbers: Sequence[int]) -> None:
    """Raise `InputError` if a group has another share of the members `numbers` than in the training.

    Without any member of some groups, models do not read the mean of all members, and shares do not matter.
    """
    if task.absent(numbers):
        return
    shares, stated = task.group_shares(numbers), provenance.get("groups")
    trained = stated if isinstance(stated, list) else [stated]  # a list of the correctors of a committee
    for group, before in (item for one in trained if one for item in one.items()):
        if abs((share := shares[group]) - before) > LARGEST_CHANGE:
            raise InputError(
                f"the group of {group} has {share:.0%} of the {len(numbers)} members, in training it had {before:.0%}, "
                "so that the ensemble mean has other weights; give members of all groups in about the same proportion, "
                "or train with these numbers"
            )


def expected_share(provenance: Mapping[str, Any], task: Task, absent: Collection[str]) -> float:
    """Return the share of the members of the training that a forecast without the groups `absent` has."""
    without = {str(one) for one in task.formulas for name in absent if one.members == task.members_of(name)}
    return 1 - sum(share for group, share in provenance.get("groups", {}).items() if group in without)


def without_group_sentence(name: str, system: str, count: int, total: int) -> str:
    """Return a sentence about the forecasts that lack a group of members."""
    who = f"{name}: " if name else ""
    return f"{who}{count} of {total} forecasts have no member of {system}, and were corrected from the other groups"
