"""Scoreboard: the sums of all models over one split, from which every score is finished."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from evaluation.scores import default_diagrams, default_scores
from evaluation.scores.score import Diagram, Score, Settings
from evaluation.scoring.aggregation import Tally

DISTRIBUTION, MEMBERS = "distribution", "members"
"""Forms of a model: its distribution, and the members that `correct` writes."""
ORACLE = "oracle"
REFERENCES = ("raw", "emos", "climatology")
MAIN_SCORES = ("crps", "crps_fair", "rmse", "bias", "spread", "spread_skill")
"""Scores that every evaluation computes, first in every list."""


def judging_score(valid: Iterable[bool]) -> str:
    """Return the score that decides between models: the fair CRPS if it is `valid` for each of them, else the CRPS."""
    return "crps_fair" if all(valid) else "crps"


def headline_keys(model: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the keys in scores.json of the skill against raw, the captured share, and the skill against EMOS.

    They are by the score that judges the model.
    """
    ending = judging_score([model["crps_fair_valid"]]).removeprefix("crps")
    return f"skill_vs_raw{ending}", f"captured{ending}", f"skill_vs_emos{ending}"


@dataclass(frozen=True)
class Scoreboard:
    """Tallies over the same forecasts.

    `init_times` (seconds since 1970) and `lead_times` (hours) identify the forecasts along the forecast axis of the
    tallies. `tallies` holds `raw`, `climatology` if it could be fitted, and the correctors in the order of the report;
    the `oracle` may lack some forecasts. `by_member_count` maps each number of members, increasing, to the tallies of
    all models on that many first members. `written` holds the tallies of the members that `correct` makes with
    `method`, `written_by_count` those of each number of members, `further` those of other methods that make members.
    `lost` maps optional models that were left out because their forecasts are not finite to the number of such points.
    The fair CRPS of members is valid only for the `independent` models, whose members do not depend on each other.
    """

    task: Task
    grid: Grid
    regions: Mapping[str, np.ndarray]
    init_times: np.ndarray
    lead_times: np.ndarray
    tallies: Mapping[str, Tally]
    oracle: Tally | None = None
    seed: int = 0
    by_member_count: Mapping[int, Mapping[str, Tally]] = field(default_factory=dict)
    written: Mapping[str, Tally] = field(default_factory=dict)
    written_by_count: Mapping[int, Mapping[str, Tally]] = field(default_factory=dict)
    method: str = "ecc-q"
    further: Mapping[str, Mapping[str, Tally]] = field(default_factory=dict)
    lost: Mapping[str, int] = field(default_factory=dict)
    independent: Collection[str] = ("raw",)
    wanted: Collection[Score] = field(default_factory=default_scores)
    diagrams: Collection[Diagram] = field(default_factory=default_diagrams)

    def check_targets(self) -> None:
        """Raise `InputError` if a target has no scored cell at the longest lead time, which maps and cases show."""
        lead = int(self.lead_times.max())
        weights = self.tallies["raw"].per_cell["crps"].weight[self.task.lead_times.index(lead)]
        for target, weight in zip(self.task.targets, weights, strict=True):
            if not weight.any():
                raise InputError(
                    f"{target} has no truth at {lead} h on the scored dates where no member is missing; give its "
                    "analyses, choose other dates, or correctors of other targets"
                )

    @property
    def settings(self) -> Settings:
        """The settings of all tallies."""
        return self.tallies["raw"].settings

    @property
    def valid_times(self) -> np.ndarray:
        """The times for which the forecasts are valid."""
        return (self.init_times + 3600 * self.lead_times).astype("datetime64[s]")

    @property
    def computed(self) -> list[Score]:
        """The scores that the settings allow."""
        return [score for score in self.wanted if not score.missing(self.settings)]

    @property
    def drawn(self) -> list[Diagram]:
        """The diagrams that the settings allow."""
        return [diagram for diagram in self.diagrams if not diagram.missing(self.settings)]

    def tally(self, name: str) -> Tally:
        """Return the tally of a model, or of the oracle."""
        return self.oracle if name == ORACLE and self.oracle is not None else self.tallies[name]

    def forms(self) -> Iterator[tuple[str, str, Tally]]:
        """Yield name, form and tally of every model, then of its members, whose form is `members` or another method."""
        yield from ((name, DISTRIBUTION, tally) for name, tally in self.tallies.items())
        for form, tallies in {MEMBERS: self.written, **self.further}.items():
            yield from ((name, form, tally) for name, tally in tallies.items() if name in self.tallies)

    def fair_is_valid(self, name: str, tally: Tally | None = None) -> bool:
        """Return whether the fair CRPS of a model is valid: it has a closed form, or independent members.

        Members that depend on each other can have a lower fair CRPS than any distribution. `tally` is that of the
        members as written, which may be quantiles.
        """
        return not (tally or self.tally(name)).members or name in (*self.independent, ORACLE)

    def judging_score(self, *names: str) -> str:
        """Return the score that decides between these models."""
        return judging_score(map(self.fair_is_valid, names))

    def judged(self, *names: str) -> list[Tally]:
        """Return the tallies by whose `judging_score` these models are compared.

        The fair CRPS is that of the models' own forecasts. The plain CRPS depends on the number of members, so it is
        that of the members that `correct` writes, for every model that has them.
        """
        if self.judging_score(*names) == "crps_fair":
            return [self.tally(name) for name in names]
        return [self.written.get(name, self.tally(name)) for name in names]
