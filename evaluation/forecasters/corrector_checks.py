"""Checks that a corrector may be scored on a split.

A score on dates that the corrector was trained on, or against another quantity, would look good and mean nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path

from torch import Tensor

from data_pipeline.common.errors import InputError
from data_pipeline.common.messages import joined
from data_pipeline.dates import Dates
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from data_pipeline.variables.meaning import Meaning, differences
from evaluation.forecasters.fold_correctors import FoldCorrectors
from evaluation.forecasters.leak_audit import check_leaks
from evaluation.scoring.scoreboard import ORACLE
from models.corrector import Corrector
from models.provenance.envelope import Problem, untrained_sentence
from models.statistical.emos import EMOS

EMOS_NAME = "emos"
RESERVED = ("raw", "climatology", "persistence", "lapse_rate", ORACLE)


def check_name(name: str, option: str = "correctors") -> None:
    """Refuse names in an option that are reserved, or that the report cannot show."""
    if name in RESERVED:
        raise InputError(f"{option}.{name}: the name {name} is reserved; choose another name")
    if not re.fullmatch(r"[\w.+-]+", name):
        raise InputError(f"{option}: {name!r} is not a valid name; use letters, digits and . + - _")


def check_emos(name: str, corrector: Corrector, path: Path) -> None:
    """Refuse a corrector with the name `emos` that is not a fitted EMOS, because others are compared with `emos`."""
    if name != EMOS_NAME:
        return
    if not isinstance(corrector.model, EMOS):
        raise InputError(
            f"correctors.emos: {path} holds the model {type(corrector.model).__name__}; the name emos is reserved "
            "for the reference EMOS; give this corrector another name"
        )
    unfitted = corrector.provenance.get("unfitted")
    if unfitted and unfitted["cells"] >= unfitted["of"]:
        raise InputError(
            f"correctors.emos: {path} was fitted in no cell (0 of {unfitted['of']} regressions), so it equals the raw "
            "ensemble; train it on more years or with model.seasonal=false, or leave it out"
        )


def check_corrector(corrector: Corrector, path: Path, task: Task, grid: Grid, scored: Dates | None) -> None:
    """Refuse a corrector of another task or grid, or one with a part that was fitted on `scored` dates.

    Without `scored`, only the statements about dates are checked: `FoldCorrectors.check` compares the dates of all
    folds.
    """
    check_leaks(corrector, path, scored)
    theirs = corrector.task
    if theirs.targets != task.targets:
        raise InputError(
            f"{path} predicts {joined(theirs.targets)}, the task {task.name} wants {joined(task.targets)}; "
            "choose the task that it was trained for"
        )
    if not set(task.lead_times) <= set(theirs.lead_times):
        raise InputError(
            f"{path} is for lead times {joined(theirs.lead_times)} h, the task {task.name} has "
            f"{joined(task.lead_times)} h; choose the task that it was trained for"
        )
    there = {*task.channels, *task.static_names}
    if missing := [read for read in (*theirs.channels, *theirs.static_names) if read not in there]:
        raise InputError(
            f"{path} reads {joined(missing)}, which the task {task.name} lacks; choose the task that it was trained for"
        )
    if not corrector.grid.matches(grid):
        raise InputError(
            f"{path} was made for {corrector.grid}, the data have {grid}; score it on data of its own grid"
        )


def check_meanings(corrector: Corrector, path: Path, task: Task, meanings: Sequence[Meaning]) -> None:
    """Refuse a corrector whose training data had other units, levels or intervals than the data, which have `meanings`.

    A corrector without meanings is not checked.
    """
    theirs = corrector.task
    if not corrector.meanings:
        return
    here = [meanings[task.channels.index(channel)] for channel in theirs.channels]
    if found := differences(corrector.meanings, theirs.lead_times, here, task.lead_times):
        raise InputError(f"{path} was trained on {'; '.join(found)}; score it on data of the same meaning")


def check_comparison(names: Collection[str], notes: Sequence[str]) -> None:
    """Refuse to score the raw ensemble alone; `notes` say why there is nothing else."""
    if set(names) == {"raw"}:
        why = "".join(f" ({note})" for note in notes)
        raise InputError(
            f"there is nothing to compare the raw ensemble with{why}; give correctors, or climatology among references "
            "and a data.split.train that it can be fitted on"
        )


def check_enough_members(member_counts: Collection[int], members: int) -> None:
    """Refuse member counts above the number of members."""
    if member_counts and max(member_counts) > members:
        raise InputError(
            f"member_counts has {max(member_counts)}, the forecasts have {members} members; leave out larger numbers, "
            "or use an archive with more members"
        )


def training_members(corrector: Corrector, path: Path, member_counts: Collection[int]) -> int:
    """Return the number of members that a corrector was trained with; refuse a number that `member_counts` lacks."""
    members: int | None = corrector.provenance.get("members")
    if members is None:
        raise InputError(
            f"{path} does not say with how many members it was trained, which member_counts needs; "
            "train it again, or leave out member_counts"
        )
    if members not in member_counts:
        raise InputError(
            f"{path} was trained with {members} members, which is not among member_counts {joined(member_counts)}; "
            f"add {members} to member_counts, or leave out member_counts"
        )
    return members


def notes_on_times(name: str, folds: FoldCorrectors, starts: Tensor, leads: Tensor) -> list[str]:
    """Return a sentence about the scored forecasts at times without training, which `correct` refuses by default.

    `starts` (N,) are seconds since 1970, `leads` (N,) hours. A corrector without envelope states no times.
    """
    valid = (starts + 3600 * leads).numpy().astype("datetime64[s]")
    found: list[Problem] = []
    for number, start, lead in zip(folds.choose(valid), starts.numpy().astype("datetime64[s]"), leads, strict=True):
        envelope = folds.correctors[number].envelope
        found += envelope.time_problems(start, int(lead))[:1] if envelope else []
    if not found:
        return []
    sentence = untrained_sentence(name, len(found), len(valid), found[0].sentence)
    return [f"{sentence}; correct refuses them unless untrained_times=correct"]
