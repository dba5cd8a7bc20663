"""Rows of scores: every score of an evaluation with its interval, finished once from the sums of a scoreboard.

scores.json, scores.csv, the report and the data set of `score` are written from these rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from evaluation.scores.rank_histogram import deviation_of_pairs, start_numbers
from evaluation.scores.ratios import captured, skill
from evaluation.scores.score import Score
from evaluation.scoring.aggregation import Tally, WeightedMean
from evaluation.scoring.scoreboard import DISTRIBUTION, MEMBERS, ORACLE, REFERENCES, Scoreboard
from evaluation.significance.intervals import Estimate, estimates
from evaluation.significance.run_means import RunMean

OVERALL = "all"
"""Lead time, season, hour or number of members of a row over all of them."""
GLOBAL = "global"
LATITUDES = ("north", "tropics", "south")
"""Regions that divide the globe."""
SEASONS = ("DJF", "MAM", "JJA", "SON")
UNKNOWN = Estimate(np.nan)

Function = Callable[..., np.ndarray]


class ScoreRow(NamedTuple):
    """One number of a model in a part of the forecasts; numbers that are undefined are NaN.

    `form` is `distribution`, `members` for the members that `correct` writes, or another method that makes members.
    `score` is the name of a score or of a comparison. `label` names one of several numbers of a score, such as a
    threshold. `members` is the number of first members that are scored. `low` and `high` are the ends of the 95 %
    interval. `skill` is 1 - value / value of the raw ensemble for scores that are 0 at best, with its own, paired,
    interval. `n_forecasts` and `n_dates` count the forecasts and starts with a scored cell.
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
    hour: str
    members: str
    value: float
    low: float
    high: float
    skill: float
    skill_low: float
    skill_high: float
    n_forecasts: int
    n_dates: int

    @property
    def slice(self) -> tuple[str, str] | None:
        """Kind and label of the part; None for a part by several kinds, such as a season of a lead time."""
        own = {"lead": self.lead_time, "season": self.season, "hour": self.hour, "members": self.members}
        named = [(kind, label) for kind, label in own.items() if label != OVERALL]
        if self.region != GLOBAL or not named:
            named.append(("region", self.region))
        return named[0] if len(named) == 1 else None


@dataclass(frozen=True)
class ScoreRows:
    """All rows of one target, and its `comparisons` of models by the CRPS, which are rows too."""

    rows: Sequence[ScoreRow]
    comparisons: Sequence[ScoreRow]

    @classmethod
    def of(
        cls, board: Scoreboard, target: int, units: str = "", parts: Sequence[ScoredPart] | None = None
    ) -> ScoreRows:
        """Finish the scores of all `parts`, or of every part; `units` are used if the target does not tell its own."""
        rows: list[ScoreRow] = []
        comparisons: list[ScoreRow] = []
        for part in list_parts(board) if parts is None else parts:
            finisher = Finisher(board, target, part, units)
            rows += finisher.rows()
            comparisons += finisher.comparisons()
        for size, tallies in board.by_member_count.items():
            some = replace(board, tallies=tallies, written=board.written_by_count.get(size, {}), further={})
            finisher = Finisher(some, target, whole(board), units, str(size))
            rows += finisher.rows()
            comparisons += finisher.comparisons()
        return cls(rows, comparisons)


@dataclass(frozen=True, eq=False)
class ScoredPart:
    """Forecasts and the region that scores are averaged over; `chosen` is true for these forecasts."""

    chosen: np.ndarray
    lead_time: str = OVERALL
    region: str = GLOBAL
    season: str = OVERALL
    hour: str = OVERALL


def whole(board: Scoreboard) -> ScoredPart:
    """Return the part of all forecasts and cells."""
    return ScoredPart(np.ones(len(board.init_times), bool))


def list_parts(board: Scoreboard) -> list[ScoredPart]:
    """Return every lead time in every season in every region, with all of them together, and every hour."""
    season, hour = season_of(board), board.valid_times.astype("datetime64[h]").astype(int) % 24
    every = {OVERALL: whole(board).chosen}
    leads = every | {str(lead): board.lead_times == lead for lead in board.task.lead_times}
    seasons = every | {name: season == number for number, name in enumerate(SEASONS)}
    parts = [
        ScoredPart(of_lead & of_season, lead, region, season)
        for lead, of_lead in leads.items()
        for season, of_season in seasons.items()
        for region in board.regions
    ]
    parts += [ScoredPart(hour == one, hour=f"{one:02d}") for one in np.unique(hour).tolist()]
    return [part for part in parts if part.chosen.any()]


def season_of(board: Scoreboard) -> np.ndarray:
    """Return the index of the season of each forecast in `SEASONS`, by the month for which it is valid."""
    month: np.ndarray = board.valid_times.astype("datetime64[M]").astype(int) % 12 + 1
    return month % 12 // 3


@dataclass(frozen=True, eq=False)
class Finisher:
    """Finishes the sums of one part: the only way from sums to scores with intervals."""

    board: Scoreboard
    target: int
    part: ScoredPart
    units: str = ""
    members: str = OVERALL

    def rows(self) -> Iterator[ScoreRow]:
        """Yield the scores of all models and of their members as written."""
        board = self.board
        variable = board.task.targets[self.target]
        for score in self._finished:
            labels = score.labels_of(board.settings, self.target) if score.labels else ("",)
            units = (variable.units or self.units) if score.units == "target" else score.units
            forms = [
                (name, form, tally, valid)
                for name, form, tally in board.forms()
                # Quantiles have no fair score. Methods are compared over larger parts than a season of a region.
                if ((valid := not score.is_fair or board.fair_is_valid(name, tally)) or form == DISTRIBUTION)
                and not (form in board.further and self._by_several_kinds)
            ]
            own, raw = (
                [self._averages(tally, score) for _, _, tally, _ in forms],
                self._averages(board.tallies["raw"], score),
            )
            if score.in_strata:
                values = [[self._within_strata(tally, *score.statistics)] for _, _, tally, _ in forms]
            else:
                function = _value(score)
                values = self.estimates([(function, means) for means in own], len(labels))
            function, gained = _skill(score), [score.has_skill and valid for *_, valid in forms]
            gains = self.estimates(
                [(function, [*means, *raw] if yes else []) for means, yes in zip(own, gained, strict=True)], len(labels)
            )
            for (name, form, _, _), *numbers in zip(forms, values, gains, strict=True):
                for label, value, gain in zip(labels, *numbers, strict=True):
                    yield self._row(name, form, score.name, label, units, value, gain)

    def comparisons(self) -> Iterator[ScoreRow]:
        """Yield the comparisons of all models; nothing for a part by several kinds."""
        if self._by_several_kinds:
            return
        found: list[tuple[str, str, str, Function, list[WeightedMean]]] = []
        for name, form, tally in self.board.forms():
            if form != DISTRIBUTION:
                others, against = (
                    (self.board.tallies, DISTRIBUTION) if form == MEMBERS else (self.board.written, MEMBERS)
                )
                for score in self._finished:
                    if score.name == "crps" or (form != MEMBERS and score.joint and not score.is_fair):
                        means = [*self._averages(tally, score), *self._averages(others[name], score)]
                        found.append((name, form, f"{score.name}_minus_{against}", _less(score), means))
                continue
            for ending, fair in (("", False), ("_fair", True)):
                for reference in REFERENCES:
                    if reference != "raw":  # the skill against raw is that of the CRPS
                        means = self._compared((name, reference), fair)
                        found.append((name, form, f"skill_vs_{reference}{ending}", skill, means))
                means = self._compared((name, "raw", ORACLE), fair)
                found.append((name, form, f"captured{ending}", captured, means))
            for reference in REFERENCES:
                means = self._compared((name, reference))
                found.append((name, form, f"crps_minus_{reference}", np.subtract, means))
        for (name, form, key, *_), (one,) in zip(found, self.estimates([each[3:] for each in found]), strict=True):
            yield self._row(name, form, key, "", "", one)

    def _compared(self, models: Sequence[str], fair: bool = False) -> list[WeightedMean]:
        """Return the CRPS of `models`; nothing if one is missing or, for the fair CRPS, not valid."""
        board = self.board
        known = {*board.tallies, *([ORACLE] if board.oracle else [])}
        usable = known.issuperset(models) and (not fair or all(map(board.fair_is_valid, models)))
        return [self.crps(model, "crps_fair" if fair else "crps") for model in models] if usable else []

    def compare(self, function: Function, *models: str) -> Estimate:
        """Return a function of the scores by which these models are compared."""
        kind, tallies = self.board.judging_score(*models), self.board.judged(*models)
        return self.estimate(function, [self.mean(tally, kind) for tally in tallies])

    def crps(self, name: str, kind: str = "crps") -> WeightedMean:
        """Return the CRPS of a model; of the oracle always the fair one: its members are drawn like the truth."""
        return self.mean(self.board.tally(name), "crps_fair" if name == ORACLE else kind)

    def mean(self, tally: Tally, statistic: str) -> WeightedMean:
        """Return the averages of a statistic over each forecast of the part."""
        return tally.forecast_mean(statistic)[self._place]

    def estimate(self, function: Function, means: Sequence[WeightedMean]) -> Estimate:
        """Return the single number of `estimates`."""
        return self.estimates([(function, means)])[0][0]

    def estimates(
        self, wanted: Sequence[tuple[Function, Sequence[WeightedMean]]], count: int = 1
    ) -> list[list[Estimate]]:
        """Return the first `count` numbers of each function of averages over the forecasts that all its means have.

        All lead times of a start are one case. Another target of the task may have more numbers. Functions that are
        equal and whose means have equal weights are computed together. The number is unknown without means.
        """
        groups: dict[Any, list[int]] = {}
        for number, (function, means) in enumerate(wanted):
            alone = number if any(isinstance(mean, RunMean) for mean in means) else -1
            key = (function, alone, *((mean.total.shape, mean.weight.tobytes()) for mean in means))
            groups.setdefault(key, []).append(number)
        found = [[UNKNOWN] * count for _ in wanted]
        starts, position = self._starts
        for (function, *_), numbers in groups.items():
            means = [_together(same) for same in zip(*(wanted[number][1] for number in numbers), strict=True)]
            if not means:
                continue
            counted = np.all([mean.weight.reshape(len(mean.weight)) > 0 for mean in means], axis=0)
            if counted.any():
                every = estimates(function, [merge(mean, position, len(starts), counted) for mean in means], starts)
                size = len(every) // len(numbers)
                for k, number in enumerate(numbers):
                    found[number] = every[k * size : k * size + count]
        return found

    def _within_strata(self, tally: Tally, statistic: str) -> Estimate:
        """Return the deviation from a flat histogram within seasons and, for the globe, within latitudes."""
        chosen, target, region = self._place
        regions, (starts, position) = list(self.board.regions), self._starts
        bands = [regions.index(band) for band in LATITUDES if band in regions] if self.part.region == GLOBAL else []
        seasons, season = np.unique(season_of(self.board)[chosen], return_inverse=True)
        place = len(seasons) * position + season
        mean = tally.forecast_mean(statistic)[chosen, target][:, bands or [region]]
        merged = merge(mean, place, len(seasons) * len(starts), np.ones(len(place), bool))

        def of_starts(mean: WeightedMean) -> WeightedMean:
            histograms = mean.total.reshape(len(starts), -1, mean.total.shape[-1])
            return WeightedMean(start_numbers(histograms), histograms.sum((1, 2), keepdims=True))

        numbers = merged.each(of_starts) if isinstance(merged, RunMean) else of_starts(merged)
        if not (whole := float(numbers.weight.sum())):
            return UNKNOWN
        (found,) = estimates(lambda averages: deviation_of_pairs(averages, whole), [numbers], starts)
        return found

    def contributions(self, tally: Tally, statistic: str) -> np.ndarray:
        """Return the contribution of each start to the average of all, (starts, ...)."""
        starts, position = self._starts
        merged = merge(self.mean(tally, statistic), position, len(starts), np.ones(len(position), bool))
        return WeightedMean(merged.total, merged.weight.sum(0)).value

    @cached_property
    def _by_several_kinds(self) -> bool:
        """Whether the part is such as a season of a lead time."""
        return self._row("", "", "", "", "", UNKNOWN).slice is None

    @property
    def _finished(self) -> list[Score]:
        """The scores of the part; those over lead times are of all lead times of a start."""
        whole = (self.part.lead_time, self.part.hour) == (OVERALL, OVERALL)
        return [score for score in self.board.computed if whole or score.joint != "lead_times"]

    @cached_property
    def _place(self) -> tuple[np.ndarray, int, int]:
        return self.part.chosen, self.target, list(self.board.regions).index(self.part.region)

    @cached_property
    def _starts(self) -> tuple[np.ndarray, np.ndarray]:
        """The starts of the part, and the index of the start of each forecast."""
        starts, position = np.unique(self.board.init_times[self.part.chosen], return_inverse=True)
        return starts, position

    @cached_property
    def _sizes(self) -> tuple[int, int]:
        """Numbers of forecasts and of starts with a scored cell."""
        scored = self.mean(self.board.tallies["raw"], "crps").weight > 0
        return int(scored.sum()), len(np.unique(self._starts[1][scored]))

    def _averages(self, tally: Tally, score: Score) -> list[WeightedMean]:
        return [self.mean(tally, statistic) for statistic in score.statistics]

    def _row(
        self, model: str, form: str, score: str, label: str, units: str, value: Estimate, gain: Estimate = UNKNOWN
    ) -> ScoreRow:
        part = self.part
        return ScoreRow(
            model, form, score, label, str(self.board.task.targets[self.target]), units,
            part.lead_time, part.region, part.season, part.hour, self.members,
            *_numbers(value), *_numbers(gain), *self._sizes,
        )  # fmt: skip


def merge(mean: WeightedMean, position: np.ndarray, starts: int, counted: np.ndarray) -> WeightedMean:
    """Return the sums of each start over the forecasts that are `counted`."""
    if isinstance(mean, RunMean):
        return mean.each(lambda run: merge(run, position, starts, counted))
    merged = WeightedMean(np.zeros((starts, *mean.total.shape[1:])), np.zeros((starts, *mean.weight.shape[1:])))
    np.add.at(merged.total, position[counted], mean.total[counted])
    np.add.at(merged.weight, position[counted], mean.weight[counted])
    return merged


def _together(means: Sequence[WeightedMean]) -> WeightedMean:
    """Return averages with the same weights as one, with an axis for them after the first."""
    if len(means) == 1:
        return means[0]
    return WeightedMean(np.stack([mean.total for mean in means], 1), means[0].weight[:, None])


def _numbers(estimate: Estimate) -> tuple[float, float, float]:
    return estimate.value, *(estimate.interval or (np.nan, np.nan))


def _value(score: Score) -> Function:
    """Return the score as a function of the averages of its statistics, in their order."""
    return lambda *averages: score.value(**dict(zip(score.statistics, averages, strict=True)))


def _skill(score: Score) -> Function:
    """Return the skill as a function of the averages of a model followed by those of the reference."""
    value, count = _value(score), len(score.statistics)
    return lambda *averages: skill(value(*averages[:count]), value(*averages[count:]))


def _less(score: Score) -> Function:
    """Return how much less a score is by the averages of one tally than by those of another one, which follow."""
    value, count = _value(score), len(score.statistics)
    return lambda *averages: value(*averages[:count]) - value(*averages[count:])
