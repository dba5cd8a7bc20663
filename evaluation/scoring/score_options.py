"""The options that say which scores are computed: `scores`, `thresholds`, `efi_climate` and `efi_form`."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from data_pipeline.common.checks import check_choice
from data_pipeline.common.errors import InputError
from data_pipeline.dates import Dates
from data_pipeline.statistics.efi import Form
from data_pipeline.statistics.statistic_file import provenance_of
from data_pipeline.task import Task
from data_pipeline.variables.thresholds import Threshold, parse_thresholds, without_climatology
from evaluation.scores import all_diagrams, all_scores
from evaluation.scores.binned_probability import no_thresholds
from evaluation.scores.joint import DIVIDED
from evaluation.scores.score import Diagram, Score, Settings
from evaluation.scoring.efi_climate import ModelClimate, load_model_climate
from evaluation.scoring.scoreboard import MAIN_SCORES
from models.members.methods import MEMBER_METHODS
from models.parallel.domain import Domain

DEFAULT_THRESHOLDS = ("< 10 %", "> 90 %")
"""Thresholds of a task that has none: events that are rare in every cell and season."""


@dataclass(frozen=True)
class ScoreChoice:
    """Scores, diagrams and thresholds of an evaluation, and the file of the climate of the ensemble.

    `named` are the scores that the user asked for by name, which must be computable.
    """

    scores: tuple[Score, ...]
    diagrams: tuple[Diagram, ...]
    thresholds: tuple[tuple[Threshold, ...], ...]
    named: tuple[str, ...] = ()
    efi_climate: str | None = None
    efi_form: str = "exact"

    @classmethod
    def parse(cls, options: Mapping[str, Any], task: Task) -> ScoreChoice:
        """Return the choice of the options; refuse a misspelt name, and a threshold that does not fit the task."""
        scores, diagrams = choose_scores(options["scores"], several_methods=len(check_methods(options["members"])) > 1)
        given = options["thresholds"]
        thresholds = (
            parse_thresholds(task.thresholds or DEFAULT_THRESHOLDS, task, fitting=True)
            if given is None
            else parse_thresholds(given, task)
        )
        check_choice("efi_form", options["efi_form"], get_args(Form))
        named = tuple(options["scores"]) if isinstance(options["scores"], list) else ()
        return cls(scores, diagrams, thresholds, named, options["efi_climate"], options["efi_form"])

    @property
    def inputs(self) -> dict[str, str]:
        """The identity of the climate file in the fingerprint of an evaluation."""
        return {} if self.efi_climate is None else {"efi_climate": provenance_of(self.efi_climate)}

    def open_climate(
        self, domain: Domain, task: Task, training: Dates, scored: Dates, fingerprint: Callable[[Dates], str]
    ) -> ModelClimate | None:
        """Return the climate of the ensemble, None without the option; see `load_model_climate` for its checks."""
        if self.efi_climate is None:
            return None
        return load_model_climate(
            self.efi_climate, self.efi_form, domain, task, training, scored, fingerprint(training)
        )

    def check(self, task: Task, domain: Domain, members: int, climatology: bool) -> list[str]:
        """Refuse a named score that cannot be computed; return the warning about thresholds that are left out."""
        kept = self.thresholds if climatology else without_climatology(self.thresholds)
        settings = Settings(
            task, members + 1, kept, climatology, self.efi_climate is not None, domain.grid, domain.cuts
        )  # fmt: skip
        wanted: tuple[Score | Diagram, ...] = (*self.scores, *self.diagrams)
        for one in wanted:
            # Finished scores are used again on other meshes, so none may be left out because of the mesh.
            if (why := one.missing(settings)) and (one.name in self.named or why == DIVIDED):
                raise InputError(f"scores: {one.name} cannot be computed: {why}")
        lost = dict.fromkeys(one.label for of_target in self.thresholds for one in of_target if one.climatological)
        used = any(one.missing is no_thresholds for one in wanted)
        if climatology or not lost or not used:
            return []
        return [f"thresholds: {', '.join(lost)} are left out: percentiles of climatology need it among the references"]


def check_methods(option: object) -> tuple[str, ...]:
    """Return the methods of the option `members`: a name or a list of names."""
    methods = option if isinstance(option, list) else [option]
    for method in methods:
        check_choice("members", method, MEMBER_METHODS)
    if not methods or len(set(methods)) < len(methods):
        raise InputError(f"members must be a method or a list of different methods, got {option!r}")
    return tuple(methods)


def choose_scores(option: object, several_methods: bool = False) -> tuple[tuple[Score, ...], tuple[Diagram, ...]]:
    """Return the scores and diagrams of the option `scores`: null for the cheap ones, `all`, or a list of names.

    The scores that have a key of their own in `scores.json`, and the rank histogram, are always computed. The cheap
    ones of several methods that make members include the scores of their dependence.
    """
    scores, diagrams = all_scores(), all_diagrams()
    known = list(dict.fromkeys([*scores, *diagrams]))
    if option == "all":
        return tuple(scores.values()), tuple(diagrams.values())
    if option is not None and not isinstance(option, list):
        raise InputError(f"scores must be null, all or a list of names, got {option!r}; there is: {', '.join(known)}")
    for name in option or []:
        if name not in known:
            guess = difflib.get_close_matches(str(name), known, n=1)
            hint = f"did you mean {guess[0]}? " if guess else ""
            raise InputError(f"scores: there is no score {name!r}; {hint}there is: {', '.join(known)}")
    cheap = [name for of in (scores, diagrams) for name, one in of.items() if one.default]
    cheap += [name for name, one in scores.items() if one.joint and several_methods]
    wanted = {*(cheap if option is None else option), *MAIN_SCORES, "rank_histogram"}
    return (
        tuple(score for name, score in scores.items() if name in wanted),
        tuple(diagram for name, diagram in diagrams.items() if name in wanted),
    )
