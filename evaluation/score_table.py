"""The tidy table of all scores, `scores.csv`: a row for each model, score, target, lead time, region and season."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_pipeline.common.files import atomic_path
from evaluation.aggregation import Tally, WeightedMean
from evaluation.scoreboard import SEASONS, Scoreboard
from evaluation.scores.ratios import skill
from evaluation.scores.score import Score
from evaluation.significance.intervals import estimates
from evaluation.significance.run_means import RunMean

Numbers = tuple[float, float, float, float, float, float]
"""A score with the ends of its interval, and its skill with the ends of its interval."""
OVERALL = "all"
"""Lead time or season of a row over all of them."""


class ScoreRow(NamedTuple):
    """One row; numbers that are undefined are NaN and empty in the file.

    `form` is `distribution`, or `members` for the members that `correct` writes. `label` names one of several numbers
    of a score, such as a threshold. `low` and `high` are the ends of the 95 % interval. `skill` is
    1 - value / value of the raw ensemble for scores that are 0 at best, with its own, paired, interval.
    """

    model: str
    form: str
    score: str
    label: str
    target: str
    units: str
    lead_time: str
    region: str
    season: str
    value: float
    low: float
    high: float
    skill: float
    skill_low: float
    skill_high: float
    n_forecasts: int
    n_dates: int


def write_score_table(path: Path, board: Scoreboard, target: int, units: str = "") -> None:
    """Write the rows of one target to a CSV file; `units` are its units if its name does not tell them."""
    with atomic_path(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(ScoreRow._fields)
        table.writerows(map(_as_text, score_rows(board, target, units)))


def _as_text(row: ScoreRow) -> list[str]:
    return [f"{one:.9g}" * (one == one) if isinstance(one, float) else str(one) for one in row]


def score_rows(board: Scoreboard, target: int, units: str = "", seasons: bool = True) -> Iterator[ScoreRow]:
    """Yield the rows of one target, for all lead times, regions and seasons together and for each of them.

    Without `seasons`, only the rows of all of them together.
    """
    settings = board.tallies["raw"].settings
    scores = [score for score in board.wanted if not score.missing(settings)]
    models = [(name, "distribution", tally) for name, tally in board.tallies.items()]
    models += [(name, "members", tally) for name, tally in board.written.items() if name in board.tallies]
    month = _valid_months(board)
    for lead in (None, *board.task.lead_times):
        of_lead = np.ones(len(month), bool) if lead is None else board.lead_times == lead
        for season, months in {OVERALL: None, **(SEASONS if seasons else {})}.items():
            rows = of_lead if months is None else of_lead & np.isin(month, months)
            if not rows.any():
                continue
            for number, region in enumerate(board.regions):
                part = _Slice(board.init_times, np.flatnonzero(rows), target, number, [tally for *_, tally in models])
                if part.forecasts == 0:
                    continue
                for score in scores:
                    labels = score.labels(settings, target) if score.labels else ("",)
                    for (name, form, _), of_model in zip(models, part.numbers(score, len(labels)), strict=True):
                        fair = score.name.endswith("_fair")
                        if fair and form == "members":
                            continue  # quantiles have no fair score
                        for label, numbers in zip(labels, of_model, strict=True):
                            if fair and not board.fair_is_valid(name):
                                numbers = (*numbers[:3], np.nan, np.nan, np.nan)
                            yield ScoreRow(
                                name, form, score.name, label, str(board.task.targets[target]),
                                (board.task.targets[target].units or units) if score.units == "target" else score.units,
                                OVERALL if lead is None else str(lead), region, season,
                                *numbers, n_forecasts=part.forecasts, n_dates=part.starts,
                            )  # fmt: skip


def _valid_months(board: Scoreboard) -> np.ndarray:
    valid = (board.init_times + 3600 * board.lead_times).astype("datetime64[s]")
    months: np.ndarray = valid.astype("datetime64[M]").astype(int) % 12 + 1
    return months


@dataclass(frozen=True, eq=False)
class _Slice:
    """The averages of all models over some forecasts (`rows`) in one region, by start; the first model is raw."""

    init_times: np.ndarray
    rows: np.ndarray
    target: int
    region: int
    tallies: Sequence[Tally]

    @cached_property
    def _used(self) -> np.ndarray:
        """The forecasts that are scored in this region, in the order of their starts."""
        weight = self.tallies[0].per_forecast["crps"].weight[self.rows, self.target, self.region]
        used = self.rows[weight > 0]
        return used[np.argsort(self.init_times[used], kind="stable")]

    @cached_property
    def _first(self) -> np.ndarray:
        """The position in `_used` of the first forecast of each start."""
        times = self.init_times[self._used]
        return np.flatnonzero(np.diff(times, prepend=times[:1] - 1))

    @property
    def forecasts(self) -> int:
        """Number of forecasts."""
        return len(self._used)

    @property
    def starts(self) -> int:
        """Number of starts."""
        return len(self._first)

    @cached_property
    def _averages(self) -> dict[str, WeightedMean]:
        return {}

    def average(self, statistic: str) -> WeightedMean:
        """Return the averages (start, model) of a statistic, or (start, model, K); their weights are those of raw."""
        if statistic not in self._averages:
            place = (self._used, self.target, self.region)
            weight = self.tallies[0].per_forecast[statistic].weight[place]
            means = [tally.per_forecast[statistic] for tally in self.tallies]
            totals = [np.add.reduceat(mean.total[place], self._first, axis=0) for mean in means]
            weight = np.add.reduceat(weight.reshape(len(weight), *[1] * totals[0].ndim), self._first, axis=0)
            runs: dict[str, list[list[np.ndarray]]] = {}
            for k, mean in enumerate(means):
                for model, of_runs in mean.runs.items() if isinstance(mean, RunMean) else ():
                    # Distribution and members of a model are of the same run.
                    stacks = runs.setdefault(model, [totals.copy() for _ in of_runs])
                    for stack, run in zip(stacks, of_runs, strict=True):
                        stack[k] = np.add.reduceat(run.total[place], self._first, axis=0)
            joined = WeightedMean(np.stack(totals, axis=1), weight)
            self._averages[statistic] = joined if not runs else RunMean(
                joined.total, weight,
                {m: tuple(WeightedMean(np.stack(one, axis=1), weight) for one in stacks) for m, stacks in runs.items()},
            )  # fmt: skip
        return self._averages[statistic]

    def numbers(self, score: Score, labels: int) -> list[list[Numbers]]:
        """Return value, low, high and the same of the skill, for each model and label."""
        means = [self.average(one) for one in score.statistics]
        times = self.init_times[self._used][self._first]
        own = _estimates(_values(score, labels), means, times)
        ratio = score.best == "low" and score.zero
        gain = _estimates(_skills(score, labels), means, times) if ratio else np.full_like(own, np.nan)
        joined = np.concatenate([own, gain], axis=1).reshape(len(self.tallies), labels, 6)
        return [[(a, b, c, d, e, f) for a, b, c, d, e, f in model] for model in joined.tolist()]


def _estimates(function: Callable[..., np.ndarray], means: Sequence[WeightedMean], times: np.ndarray) -> np.ndarray:
    """Return value, low and high of each number of `function`, (n, 3)."""
    axes = means[0].total.ndim - 1

    def flat(*averages: np.ndarray) -> np.ndarray:
        found = np.asarray(function(*averages))
        return found.reshape(*found.shape[: averages[0].ndim - axes], -1)

    undefined = (np.nan, np.nan)
    return np.array([(one.value, *(one.interval or undefined)) for one in estimates(flat, means, times)])


def _values(score: Score, labels: int) -> Callable[..., np.ndarray]:
    """Return the score as a function of the averages of its statistics, in their order; its first numbers have labels.

    Another target of the task may have more.
    """

    def values(*averages: np.ndarray) -> np.ndarray:
        found = np.asarray(score.value(**dict(zip(score.statistics, averages, strict=True))))
        return found[..., :labels] if score.labels else found

    return values


def _skills(score: Score, labels: int) -> Callable[..., np.ndarray]:
    """Return the skill of each model against the first one, as a function of the same averages."""
    value, models = _values(score, labels), -2 if score.labels else -1

    def skills(*averages: np.ndarray) -> np.ndarray:
        found = np.asarray(value(*averages))
        return skill(found, np.take(found, [0], models))

    return skills
