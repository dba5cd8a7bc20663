"""Scoreboard: the tallies of all models over one split, and the scores that come of them.

`Scoreboard.scores` is what `scores.json` holds; docs/scores.md defines every key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from data_pipeline.grid import Grid
from data_pipeline.task import Task
from evaluation import metrics
from evaluation.aggregation import Mean, Tally
from evaluation.significance import BlockBootstrap

SEASONS = {"DJF": (12, 1, 2), "MAM": (3, 4, 5), "JJA": (6, 7, 8), "SON": (9, 10, 11)}
REFERENCES = ("raw", "emos", "climatology")
ORACLE = "oracle"

Quantity = tuple[Callable[..., np.ndarray], tuple[str, ...]]


@dataclass(frozen=True)
class Group:
    """What a score is averaged over: some of the forecasts, and the weights of one region."""

    rows: np.ndarray
    region: int


@dataclass(frozen=True)
class Scoreboard:
    """Tallies that saw the same forecasts.

    `init_times` (seconds since 1970) and `lead_times` (hours) say for each place along the forecast axis of
    the tallies which forecast it is. `tallies` holds `raw`, `climatology` if it could be fitted, and the
    correctors in the order of the report; the `oracle` may lack some of the forecasts. `by_size` holds, by
    increasing number of members, the tallies of the same models on the first so many.
    """

    task: Task
    grid: Grid
    regions: Mapping[str, np.ndarray]
    init_times: np.ndarray
    lead_times: np.ndarray
    tallies: Mapping[str, Tally]
    oracle: Tally | None = None
    seed: int = 0
    by_size: Mapping[int, Mapping[str, Tally]] = field(default_factory=dict)

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
            models[name]["by"] = {}
        # Group by group, because the models of a group share the draws of the bootstrap.
        for kind, members in groups.items():
            for label, group in members.items():
                for name, model in models.items():
                    model["by"].setdefault(kind, {})[label] = self._entry(name, target, group)
        for size, tallies in self.by_size.items():
            some = replace(self, tallies=tallies)
            for name, model in models.items():
                entry = some._entry(name, target, everything) | {"fewer": self._fewer(size, name, target, everything)}
                model["by"].setdefault("members", {})[str(size)] = entry
        variable = self.task.targets[target]
        return {
            "task": self.task.name,
            "target": str(variable),
            "units": variable.units,
            "lead_times": list(self.task.lead_times),
            "grid": str(self.grid),
            "weights": "cell area; *_unweighted: every grid point alike",
            "n_dates": len(np.unique(self.init_times)),
            "n_forecasts": len(self.init_times),
            "models": models,
            "pairs": self._pairs(target, everything),
            "oracle": self._oracle_entry(target, everything),
            "warnings": self._warnings(models),
        }

    def _groups(self) -> dict[str, dict[str, Group]]:
        every = np.ones(len(self.init_times), dtype=bool)
        index = {name: number for number, name in enumerate(self.regions)}
        valid = (self.init_times + self.lead_times * 3600).astype("datetime64[s]")
        month = valid.astype("datetime64[M]").astype(int) % 12 + 1
        leads = {str(lead): Group(self.lead_times == lead, index["global"]) for lead in self.task.lead_times}
        seasons = {name: Group(np.isin(month, months), index["global"]) for name, months in SEASONS.items()}
        return {
            "lead": {name: group for name, group in leads.items() if group.rows.any()},
            "region": {name: Group(every, number) for name, number in index.items()},
            "season": {name: group for name, group in seasons.items() if group.rows.any()},
        }

    def _own(self, name: str, target: int, group: Group) -> dict[str, float | None]:
        tally = self._tally(name)
        means = {s: mean[group.rows, target, group.region].sum(0) for s, mean in tally.per_forecast.items()}
        return {key: _number(value) for key, value in metrics.scores(means).items()}

    def _entry(self, name: str, target: int, group: Group) -> dict[str, Any]:
        """Scores of one model over one group, alone and against the references, with intervals."""
        entry: dict[str, Any] = self._own(name, target, group)
        intervals: dict[str, Any] = {}
        for key, (score, models) in self._quantities(name).items():
            entry[key], intervals[key] = self._compared(score, [self._crps(m, target, group) for m in models], group)
        entry["ci95"] = intervals
        return entry

    def _pairs(self, target: int, group: Group) -> dict[str, dict[str, Any]]:
        """Difference in CRPS of each model to all that stand before it, with its interval."""
        found: dict[str, dict[str, Any]] = {}
        names = list(self.tallies)
        for number, name in enumerate(names):
            found[name] = {}
            for other in names[:number]:
                means = [self._crps(model, target, group) for model in (name, other)]
                difference, interval = self._compared(np.subtract, means, group)
                found[name][other] = {"crps_minus": difference, "ci95": interval}
        return found

    def _fewer(self, size: int, name: str, target: int, group: Group) -> dict[str, dict[str, Any]]:
        """Difference in fair CRPS of a model with `size` members to itself with fewer, with its interval."""
        fair = {
            count: tallies[name].per_forecast["crps_fair"][group.rows, target, group.region]
            for count, tallies in self.by_size.items()
        }
        found: dict[str, dict[str, Any]] = {}
        for fewer in (count for count in fair if count < size):
            difference, interval = self._compared(np.subtract, [fair[size], fair[fewer]], group)
            found[str(fewer)] = {"crps_fair_minus": difference, "ci95": interval}
        return found

    def _compared(
        self, score: Callable[..., np.ndarray], means: Sequence[Mean], group: Group
    ) -> tuple[float | None, list[float] | None]:
        """Return a function of some averages over the forecasts that all of them counted, and its interval."""
        starts, position = np.unique(self.init_times[group.rows], return_inverse=True)
        counted = np.all([mean.weight > 0 for mean in means], axis=0) if means else np.zeros(0, bool)
        if not counted.any():
            return None, None
        per_start = [_merge(mean, position, position.max() + 1, counted) for mean in means]
        interval = BlockBootstrap(starts, self.seed).interval(score, *per_start)
        return _number(score(*(mean[counted].sum(0).value for mean in means))), list(interval) if interval else None

    def _quantities(self, name: str) -> dict[str, Quantity]:
        """What is compared, as functions of the mean CRPS of some models; of none where one is missing."""
        quantities: dict[str, Quantity] = {"crps": (np.asarray, (name,))}
        for reference in REFERENCES:
            quantities[f"skill_vs_{reference}"] = (metrics.skill, (name, reference))
        quantities["captured"] = (metrics.captured, (name, "raw", ORACLE))
        for reference in REFERENCES:
            quantities[f"crps_minus_{reference}"] = (np.subtract, (name, reference))
        known = {*self.tallies, *([ORACLE] if self.oracle else [])}
        return {key: (f, models if known.issuperset(models) else ()) for key, (f, models) in quantities.items()}

    def _crps(self, name: str, target: int, group: Group) -> Mean:
        # The oracle stands for infinitely many members, as the truth is one more draw of what they are drawn
        # from.
        statistic = "crps_fair" if name == ORACLE else "crps"
        return self._tally(name).per_forecast[statistic][group.rows, target, group.region]

    def _tally(self, name: str) -> Tally:
        if name == ORACLE and self.oracle is not None:
            return self.oracle
        return self.tallies[name]

    def _histogram(self, tally: Tally, target: int) -> list[float]:
        everywhere = list(self.regions).index("global")
        return tally.histogram[:, target, everywhere].sum(0).value.tolist()

    def _oracle_entry(self, target: int, group: Group) -> dict[str, Any] | None:
        if self.oracle is None:
            return None
        own = self._own(ORACLE, target, group)
        return {
            "crps": own["crps_fair"],
            "crps_plain": own["crps"],
            "spread_skill": own["spread_skill"],
            "rank_histogram": self._histogram(self.oracle, target),
        }

    def _warnings(self, models: Mapping[str, Any]) -> list[str]:
        """Results too good to be true, for nothing that knows less than the oracle beats it in expectation; gaps."""
        gaps = ["climatology is not scored: there are no forecasts of the training years to fit it on"]
        leaks = [
            f"leak? {name} captures {100 * model['captured']:.0f} % of the reachable gain: it beats the "
            "oracle beyond its 95 % interval, so it has probably seen what it is scored on"
            for name, model in models.items()
            if (interval := model["ci95"]["captured"]) and interval[0] > 1
        ]
        return leaks if "climatology" in models else leaks + gaps


def _merge(mean: Mean, position: np.ndarray, starts: int, counted: np.ndarray) -> Mean:
    """Sum the forecasts of one start; those that some model of the comparison lacks count for none."""
    total, weight = np.where(counted, mean.total, 0.0), np.where(counted, mean.weight, 0.0)
    return Mean(np.bincount(position, total, starts), np.bincount(position, weight, starts))


def _number(value: np.ndarray) -> float | None:
    number = float(value)
    return number if np.isfinite(number) else None
