"""Scoreboard: the tallies of all models over one split, and their scores.

`Scoreboard.scores` is the content of `scores.json`; docs/scores.md defines every key.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from data_pipeline.grid import Grid
from data_pipeline.task import Task
from evaluation.aggregation import Tally, WeightedMean
from evaluation.scores import all_scores, default_diagrams, default_scores
from evaluation.scores.ratios import captured, skill
from evaluation.scores.score import Diagram, Score
from evaluation.significance.intervals import Estimate, estimates
from evaluation.significance.model_comparison import Pairs, best_set, describe_pairs, detectable_differences
from evaluation.significance.run_means import RunMean

SCORES_FORMAT = 4
"""Version of `scores.json`; results of another version are computed again."""
SEASONS = {"DJF": (12, 1, 2), "MAM": (3, 4, 5), "JJA": (6, 7, 8), "SON": (9, 10, 11)}
REFERENCES = ("raw", "emos", "climatology")
ORACLE = "oracle"
MAIN_SCORES = ("crps", "crps_fair", "rmse", "bias", "spread", "spread_skill")
"""Scores with a key of their own in every entry; all scores are under the key `scores`."""
IMPLAUSIBLE_CRPS, IMPLAUSIBLE_BIN, FEWEST_FORECASTS = 3.0, 0.95, 20
"""A CRPS of so many times that of climatology, and a share of the analyses in one bin of the rank histogram of a model
worse than climatology, that hint at other data than the metadata say; fewer forecasts may have either by chance."""


@dataclass(frozen=True)
class Comparison:
    """A score that compares `models`: a function of their mean CRPS, the fair one if `fair`."""

    score: Callable[..., np.ndarray]
    models: tuple[str, ...]
    fair: bool = False


@dataclass(frozen=True)
class ScoreGroup:
    """The forecasts and the region that a score is averaged over."""

    rows: np.ndarray
    region: int


@dataclass(frozen=True)
class Scoreboard:
    """Tallies over the same forecasts.

    `init_times` (seconds since 1970) and `lead_times` (hours) identify the forecasts along the forecast axis of the
    tallies. `tallies` holds `raw`, `climatology` if it could be fitted, and the correctors in the order of the report;
    the `oracle` may lack some forecasts. `by_member_count` maps each number of members, increasing, to the tallies of
    all models on that many first members. `written` holds the tallies of the members that `correct` writes,
    `written_by_count` those of each number of members. `lost` maps optional models that were left out because their
    forecasts are not finite to the number of such points. The fair CRPS of members is valid only for the `independent`
    models, whose members do not depend on each other.
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
    lost: Mapping[str, int] = field(default_factory=dict)
    independent: Collection[str] = ("raw",)
    wanted: Collection[Score] = field(default_factory=default_scores)
    diagrams: Collection[Diagram] = field(default_factory=default_diagrams)

    def scores(self, target: int) -> dict[str, Any]:
        """Return all scores of one target as plain values, None where a score is undefined."""
        groups = self._groups()
        everything = groups["region"]["global"]
        models: dict[str, Any] = {}
        for name in self.tallies:
            models[name] = self._entry(name, target, everything)
            plain = self._own(name, target, groups["region"]["unweighted"])
            models[name] |= {f"{key}_unweighted": plain[key] for key in ("crps", "crps_fair")}
            models[name]["rank_histogram"] = self._histogram(self.tallies[name], target)
            models[name]["diagrams"] = self._diagrams(self.tallies[name], target, everything)
            models[name]["crps_fair_valid"] = self.fair_is_valid(name)
            models[name]["members"] = self._members(name, target, everything)
            models[name]["runs"] = self._runs(name, target, everything)
            models[name]["by"] = {}
        # Group by group: the models of a group share cached tables of their starts.
        for kind, members in groups.items():
            for label, group in members.items():
                for name, model in models.items():
                    model["by"].setdefault(kind, {})[label] = self._entry(name, target, group)
        for size, tallies in self.by_member_count.items():
            some = replace(self, tallies=tallies, written=self.written_by_count.get(size, {}))
            for name, model in models.items():
                entry = some._entry(name, target, everything) | {"members": some._members(name, target, everything)}
                entry["fewer"] = self._fewer(size, name, target, everything)
                model["by"].setdefault("members", {})[str(size)] = entry
        variable, pairs = self.task.targets[target], self._pairs(target, everything)
        return {
            "task": self.task.name,
            "target": str(variable),
            "units": variable.units,
            "lead_times": list(self.task.lead_times),
            "grid": str(self.grid),
            "weights": "cell area; *_unweighted: every grid point alike",
            "n_dates": len(np.unique(self.init_times)),
            "n_forecasts": len(self.init_times),
            "left_out": self._left_out(target),
            "slices": self._slices(groups, target),
            "definitions": {score.name: self._definition(score, target) for score in self._computed()},
            "diagram_definitions": {
                one.name: {"title": one.title, "text": one.text, "reference": one.reference} for one in self._drawn()
            },
            "scores_left_out": self._scores_left_out(),
            "models": models,
            "pairs": pairs,
            "best_set": best_set({name: model["crps"] for name, model in models.items()}, pairs),
            "power": self._power(target, everything),
            "oracle": self._oracle_entry(target, everything),
            "warnings": self._warnings(models, target),
        }

    def _groups(self) -> dict[str, dict[str, ScoreGroup]]:
        every = np.ones(len(self.init_times), dtype=bool)
        index = {name: number for number, name in enumerate(self.regions)}
        valid = (self.init_times + self.lead_times * 3600).astype("datetime64[s]")
        month = valid.astype("datetime64[M]").astype(int) % 12 + 1
        leads = {str(lead): ScoreGroup(self.lead_times == lead, index["global"]) for lead in self.task.lead_times}
        seasons = {name: ScoreGroup(np.isin(month, months), index["global"]) for name, months in SEASONS.items()}
        hour = valid.astype("datetime64[h]").astype(int) % 24
        hours = {f"{one:02d}": ScoreGroup(hour == one, index["global"]) for one in np.unique(hour).tolist()}
        return {
            "lead": {name: group for name, group in leads.items() if group.rows.any()},
            "region": {name: ScoreGroup(every, number) for name, number in index.items()},
            "season": {name: group for name, group in seasons.items() if group.rows.any()},
            "hour": hours,
        }

    def _slices(self, groups: Mapping[str, Mapping[str, ScoreGroup]], target: int) -> dict[str, dict[str, Any]]:
        """Return the sample size of every group: forecasts and starts with a scored cell, and cells of the grid."""
        raw = self.tallies["raw"].per_forecast["crps"].weight[:, target]
        found: dict[str, dict[str, Any]] = {}
        for kind, members in groups.items():
            for label, group in members.items():
                scored = group.rows & (raw[:, group.region] > 0)
                found.setdefault(kind, {})[label] = {
                    "n_forecasts": int(scored.sum()),
                    "n_dates": len(np.unique(self.init_times[scored])),
                    "cells": int((list(self.regions.values())[group.region] > 0).sum()),
                }
        return found

    def _computed(self) -> list[Score]:
        """Return the scores that the settings allow."""
        settings = self.tallies["raw"].settings
        return [score for score in self.wanted if not score.missing(settings)]

    def _drawn(self) -> list[Diagram]:
        """Return the diagrams that the settings allow."""
        settings = self.tallies["raw"].settings
        return [diagram for diagram in self.diagrams if not diagram.missing(settings)]

    def _scores_left_out(self) -> dict[str, str]:
        """Return why scores and diagrams that were asked for cannot be computed."""
        settings = self.tallies["raw"].settings
        wanted: list[Score | Diagram] = [*self.wanted, *self.diagrams]
        return {one.name: why for one in wanted if (why := one.missing(settings))}

    def _definition(self, score: Score, target: int) -> dict[str, Any]:
        labels = list(score.labels(self.tallies["raw"].settings, target)) if score.labels else None
        return {
            "title": score.title, "text": score.text, "reference": score.reference, "units": score.units,
            "best": score.best, "labels": labels,
        }  # fmt: skip

    def _diagrams(self, tally: Tally, target: int, group: ScoreGroup) -> dict[str, Any]:
        """Return the data of all diagrams of one model as plain lists, with null for undefined numbers."""
        found: dict[str, Any] = {}
        for diagram in self._drawn():
            averages = {
                name: self._contributions(mean, group) if diagram.by_start else mean.sum(0).value
                for name in diagram.statistics
                for mean in [tally.per_forecast[name][group.rows, target, group.region]]
            }
            panels = diagram.value(tally.settings, target, **averages)
            found[diagram.name] = {
                label: {key: [_number(one) for one in np.ravel(values)] for key, values in panel.items()}
                for label, panel in panels.items()
            }
        return found

    def _contributions(self, mean: WeightedMean, group: ScoreGroup) -> np.ndarray:
        """Return the contribution of each start to the average of all, (starts, ...)."""
        starts, position = np.unique(self.init_times[group.rows], return_inverse=True)
        merged = _merge(mean, position, len(starts), np.ones(len(position), bool))
        return WeightedMean(merged.total, merged.weight.sum(0)).value

    def _all_scores(self, name: str, target: int, group: ScoreGroup) -> dict[str, Any]:
        """Return all scores of one model, their skill against the raw ensemble, and the intervals of both."""
        found: dict[str, Any] = {"scores": {}, "skill": {}, "ci95_scores": {}, "ci95_skill": {}}
        for score in self._computed():
            own, raw = (self._averages(model, score, target, group) for model in (name, "raw"))
            labels = score.labels(self.tallies["raw"].settings, target) if score.labels else None
            compared = {("scores", "ci95_scores"): (_alone(score), own)}
            if score.best == "low" and score.zero and (not score.name.endswith("_fair") or self.fair_is_valid(name)):
                compared[("skill", "ci95_skill")] = (_against(score), [*own, *raw])
            for (key, interval_key), (function, means) in compared.items():
                if labels is None:
                    found[key][score.name], found[interval_key][score.name] = self._compared(function, means, group)
                    continue
                numbers = self._estimates(function, means, group) or [Estimate(np.nan)] * len(labels)
                # Another target may have more numbers, such as more thresholds.
                pairs = [_value_and_interval(number) for number in numbers[: len(labels)]]
                for kind, column in ((key, 0), (interval_key, 1)):
                    found[kind][score.name] = {label: pair[column] for label, pair in zip(labels, pairs, strict=True)}
        return found

    def _averages(self, name: str, score: Score, target: int, group: ScoreGroup) -> list[WeightedMean]:
        tally = self._tally(name)
        return [tally.per_forecast[one][group.rows, target, group.region] for one in score.statistics]

    def fair_is_valid(self, name: str) -> bool:
        """Return whether the fair CRPS of a model is valid: it has a closed form, or independent members.

        Members that depend on each other can have a lower fair CRPS than any distribution.
        """
        return not self._tally(name).members or name in (*self.independent, ORACLE)

    def _left_out(self, target: int) -> dict[str, Any]:
        """Return the number of cells, over all forecasts, that have no analysis or lack a member and are not scored.

        `forecasts_without_value` has the number of forecasts that an optional model could not make, by its name.
        """
        unweighted = list(self.regions).index("unweighted")
        counted = self.tallies["raw"].per_forecast["crps"].weight[:, target, unweighted].sum()
        cells = len(self.init_times) * self.regions["unweighted"].size
        absent = {name: int(tally.absent[:, target].sum()) for name, tally in self.tallies.items()}
        without_value = {name: count for name, count in absent.items() if count}
        found: dict[str, Any] = {"cells": cells - round(counted), "of": cells}
        return found | ({"forecasts_without_value": without_value} if without_value else {})

    def _own(self, name: str, target: int, group: ScoreGroup) -> dict[str, float | None]:
        return self._alone(self._tally(name), target, group)

    def _alone(self, tally: Tally, target: int, group: ScoreGroup) -> dict[str, float | None]:
        """Return the scores that need no other model."""
        found = {}
        for score in map(all_scores().__getitem__, MAIN_SCORES):
            means = {s: tally.per_forecast[s][group.rows, target, group.region].sum(0) for s in score.statistics}
            found[score.name] = _number(score.value(**{s: mean.value for s, mean in means.items()}))
        return found

    def _entry(self, name: str, target: int, group: ScoreGroup) -> dict[str, Any]:
        """Return the scores of one model over one group, alone and against the references, with intervals."""
        entry: dict[str, Any] = self._own(name, target, group)
        intervals: dict[str, Any] = {}
        for key, comparison in self._comparisons(name).items():
            means = [self._crps(model, target, group, comparison.fair) for model in comparison.models]
            entry[key], intervals[key] = self._compared(comparison.score, means, group)
        entry["ci95"] = intervals
        return entry | self._all_scores(name, target, group)

    def _members(self, name: str, target: int, group: ScoreGroup) -> dict[str, Any] | None:
        """Return the scores of the members that `correct` writes, also against the distribution and raw."""
        if name not in self.written:
            return None
        tally = self.written[name]
        own = self._alone(tally, target, group)
        entry: dict[str, Any] = {key: own[key] for key in ("crps", "rmse", "bias", "spread", "spread_skill")}
        crps = tally.per_forecast["crps"][group.rows, target, group.region]
        others: dict[str, tuple[Callable[..., np.ndarray], list[WeightedMean]]] = {
            "crps": (np.asarray, []),
            "crps_minus_distribution": (np.subtract, [self._crps(name, target, group)]),
            "skill_vs_raw": (skill, [self._crps("raw", target, group)]),
        }
        intervals = {}
        for key, (score, means) in others.items():
            entry[key], intervals[key] = self._compared(score, [crps, *means], group)
        # The quantiles of a distribution are not random draws, so that their fair scores are not valid.
        beside = replace(self, tallies={**self.tallies, name: tally})
        if not beside.fair_is_valid(name):
            beside = replace(beside, wanted=[score for score in self.wanted if not score.name.endswith("_fair")])
        return entry | {"ci95": intervals} | beside._all_scores(name, target, group)

    def _pairs(self, target: int, group: ScoreGroup) -> Pairs:
        """Return the difference in CRPS of each model to every earlier model, with its interval and p-values."""
        names = list(self.tallies)
        pairs = {
            (name, other): [self._crps(model, target, group) for model in (name, other)]
            for number, name in enumerate(names)
            for other in names[:number]
        }
        differences = {pair: self._estimate(np.subtract, means, group) for pair, means in pairs.items()}
        relative = {pair: self._estimate(skill, means, group) for pair, means in pairs.items()}
        return describe_pairs(names, differences, relative)

    def _power(self, target: int, group: ScoreGroup) -> dict[str, Any]:
        """Return the differences from raw and EMOS, in per cent of the CRPS of raw, that the starts could show."""

        def share(reference: np.ndarray, model: np.ndarray, raw: np.ndarray) -> np.ndarray:
            return (reference - model) / raw

        gains = {
            reference: {
                name: self._estimate(share, [self._crps(one, target, group) for one in (reference, name, "raw")], group)
                for name in self.tallies
                if name not in ("raw", reference)
            }
            for reference in ("raw", "emos")
            if reference in self.tallies
        }
        return detectable_differences(len(np.unique(self.init_times)), gains)

    def _runs(self, name: str, target: int, group: ScoreGroup) -> list[float | None] | None:
        """Return the CRPS of each training run of a model with several runs."""
        crps = self._crps(name, target, group)
        return [_number(run.sum(0).value) for run in crps.runs[name]] if isinstance(crps, RunMean) else None

    def _fewer(self, size: int, name: str, target: int, group: ScoreGroup) -> dict[str, dict[str, Any]]:
        """Return the difference in fair CRPS of a model with `size` members to the same model with fewer members."""
        fair = {
            count: tallies[name].per_forecast["crps_fair"][group.rows, target, group.region]
            for count, tallies in self.by_member_count.items()
        }
        found: dict[str, dict[str, Any]] = {}
        for fewer in (count for count in fair if count < size):
            difference, interval = self._compared(np.subtract, [fair[size], fair[fewer]], group)
            found[str(fewer)] = {"crps_fair_minus": difference, "ci95": interval}
        return found

    def _compared(
        self, score: Callable[..., np.ndarray], means: Sequence[WeightedMean], group: ScoreGroup
    ) -> tuple[float | None, list[float] | None]:
        """Return a function of averages over the forecasts that all of them have, and its interval."""
        return _value_and_interval(self._estimate(score, means, group))

    def _estimate(self, score: Callable[..., np.ndarray], means: Sequence[WeightedMean], group: ScoreGroup) -> Estimate:
        """Return a single number of `_estimates`."""
        (estimate,) = self._estimates(score, means, group) or [Estimate(np.nan)]
        return estimate

    def _estimates(
        self, score: Callable[..., np.ndarray], means: Sequence[WeightedMean], group: ScoreGroup
    ) -> list[Estimate]:
        """Return the numbers of a function of averages over the forecasts that all of them have; [] if there are none.

        All lead times of a start are one case.
        """
        starts, position = np.unique(self.init_times[group.rows], return_inverse=True)
        counted = (
            np.all([mean.weight.reshape(len(mean.weight)) > 0 for mean in means], axis=0)
            if means
            else np.zeros(0, bool)
        )
        if not counted.any():
            return []
        return estimates(score, [_merge(mean, position, position.max() + 1, counted) for mean in means], starts)

    def _comparisons(self, name: str) -> dict[str, Comparison]:
        """Return all comparisons by key, without models where a model is missing or its fair CRPS is not valid."""
        comparisons = {"crps": Comparison(np.asarray, (name,))}
        for ending, fair in (("", False), ("_fair", True)):
            for reference in REFERENCES:
                comparisons[f"skill_vs_{reference}{ending}"] = Comparison(skill, (name, reference), fair)
            comparisons[f"captured{ending}"] = Comparison(captured, (name, "raw", ORACLE), fair)
        for reference in REFERENCES:
            comparisons[f"crps_minus_{reference}"] = Comparison(np.subtract, (name, reference))
        known = {*self.tallies, *([ORACLE] if self.oracle else [])}
        fair_ones = {model for model in known if self.fair_is_valid(model)}
        return {
            key: comparison if (fair_ones if comparison.fair else known).issuperset(comparison.models) else
            replace(comparison, models=())
            for key, comparison in comparisons.items()
        }  # fmt: skip

    def _crps(self, name: str, target: int, group: ScoreGroup, fair: bool = False) -> WeightedMean:
        # Always the fair CRPS of the oracle: truth and oracle members are draws of one distribution.
        statistic = "crps_fair" if fair or name == ORACLE else "crps"
        return self._tally(name).per_forecast[statistic][group.rows, target, group.region]

    def _tally(self, name: str) -> Tally:
        if name == ORACLE and self.oracle is not None:
            return self.oracle
        return self.tallies[name]

    def _histogram(self, tally: Tally, target: int) -> list[float]:
        everywhere = list(self.regions).index("global")
        return tally.per_forecast["rank"][:, target, everywhere].sum(0).value.tolist()

    def _oracle_entry(self, target: int, group: ScoreGroup) -> dict[str, Any] | None:
        if self.oracle is None:
            return None
        own = self._own(ORACLE, target, group)
        covered = self.oracle.per_forecast["crps"].weight[group.rows, target, group.region] > 0
        return {
            "n_forecasts": int(covered.sum()),
            "crps": own["crps_fair"],
            "crps_plain": own["crps"],
            "spread_skill": own["spread_skill"],
            "rank_histogram": self._histogram(self.oracle, target),
        }

    def _warnings(self, models: Mapping[str, Any], target: int) -> list[str]:
        """Return warnings: forecasts without a value, implausible scores, and models that beat the oracle by a leak."""
        absent = {name: int(tally.absent[:, target].sum()) for name, tally in self.tallies.items()}
        count, known = len(self.init_times), models.get("climatology")
        found = [
            f"{name} has no value in {lost} of {count} forecasts: its own scores and its comparisons are of the others"
            for name, lost in absent.items()
            if lost
        ]
        for name, model in models.items():
            for what in _implausible(model, known) if count >= FEWEST_FORECASTS else ():
                found.append(f"{name} {what}: a time, a place, a level or units of the data seem to be wrong")
        for name, model in models.items():
            key = headline_keys(model)[1]
            if (interval := model["ci95"][key]) and interval[0] > 1:
                found.append(
                    f"leak? {name} captures {100 * model[key]:.0f} % of the gain of the oracle: it beats the oracle "
                    "beyond its 95 % interval, so it has probably seen the truth that it is scored on"
                )
        return found


def _implausible(model: Mapping[str, Any], climatology: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield what is implausible about the scores of a model."""
    crps, least = model["crps"], climatology and climatology["crps"]
    if not crps or not least or crps <= least:
        return
    if crps > IMPLAUSIBLE_CRPS * least:
        yield f"has {crps / least:.1f} times the CRPS of climatology"
    histogram = np.array(model["rank_histogram"])
    if histogram.max() > IMPLAUSIBLE_BIN * histogram.sum() > 0:
        share, place = histogram.max() / histogram.sum(), f"{histogram.argmax() + 1} of {len(histogram)}"
        yield f"has {share:.0%} of the analyses in bin {place} of its rank histogram"


def headline_keys(model: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the keys of the main scores: skill against raw, share of the oracle's gain, skill against EMOS.

    These are the fair scores, which compare members with closed forms, where the model's fair CRPS is valid.
    """
    ending = "_fair" if model["crps_fair_valid"] else ""
    return f"skill_vs_raw{ending}", f"captured{ending}", f"skill_vs_emos{ending}"


def _alone(score: Score) -> Callable[..., np.ndarray]:
    """Return the score as a function of the averages of its statistics, in their order."""
    return lambda *averages: score.value(**dict(zip(score.statistics, averages, strict=True)))


def _against(score: Score) -> Callable[..., np.ndarray]:
    """Return the skill as a function of the averages of a model followed by those of the reference."""
    value, count = _alone(score), len(score.statistics)
    return lambda *averages: skill(value(*averages[:count]), value(*averages[count:]))


def _merge(mean: WeightedMean, position: np.ndarray, starts: int, counted: np.ndarray) -> WeightedMean:
    """Sum the forecasts of each start, without forecasts that a model of the comparison lacks."""
    if isinstance(mean, RunMean):
        return mean.each(lambda run: _merge(run, position, starts, counted))
    merged = WeightedMean(np.zeros((starts, *mean.total.shape[1:])), np.zeros((starts, *mean.weight.shape[1:])))
    np.add.at(merged.total, position[counted], mean.total[counted])
    np.add.at(merged.weight, position[counted], mean.weight[counted])
    return merged


def _value_and_interval(estimate: Estimate) -> tuple[float | None, list[float] | None]:
    interval = estimate.interval
    return _number(estimate.value), list(interval) if interval else None


def _number(value: np.ndarray | float) -> float | None:
    number = float(value)
    return number if np.isfinite(number) else None
