"""Comparison of several runs of `evaluate`: their differences, and the models of all runs side by side."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.common.files import write_csv
from evaluation.scoring.scoreboard import judging_score
from evaluation.significance.intervals import interval
from evaluation.tables.csv_tables import StartScores
from evaluation.tables.score_json import entry_of, skill_in

_SAME = 1e-9
"""Largest relative difference of the raw ensemble's CRPS in two runs of the same forecasts."""
MUST_AGREE = ("target", "units")
"""Keys of scores.json that must be equal in all runs."""
MAY_DIFFER = {
    "task": "task", "grid": "grid", "lead_times": "lead times", "split": "split", "dates": "dates",
    "n_dates": "starts", "n_forecasts": "forecasts", "members": "raw members", "levels": "quantile levels",
}  # fmt: skip
"""Keys of scores.json whose differences are shown, with their names for readers."""


@dataclass(frozen=True)
class RunScores:
    """The results of one run: the content of `scores.json` under a name."""

    name: str
    path: Path
    scores: Mapping[str, Any]

    @classmethod
    def load_targets(cls, name: str, path: Path, wanted: int) -> list[RunScores]:
        """Read the `scores.json` of every target of a run: the file, the one in a folder, or those in its folders."""
        several = path.is_dir() and not (path / "scores.json").exists()
        files = sorted(path.glob("*/scores.json")) if several else []
        found = [cls.load(name, file, wanted) for file in files or [path]]
        if len({run.scores["target"] for run in found}) < len(found):
            folders = ", ".join(file.parent.name for file in files)
            raise InputError(f"{path} holds several runs of one target; name one of its folders: {folders}")
        return found

    @classmethod
    def load(cls, name: str, path: Path, wanted: int) -> RunScores:
        """Read a `scores.json`, or the one in a folder, of the format `wanted`."""
        file = path / "scores.json" if path.is_dir() else path
        try:
            scores = json.loads(file.read_text("utf-8"))
        except OSError as error:
            if (path / "config.yaml").exists() or any(path.glob("*/config.yaml")):
                raise InputError(
                    f"{path} holds training, no scores: see its curves with tensorboard --logdir {path}, or score "
                    "correctors with deepweather evaluate and compare those runs"
                ) from None
            raise InputError(f"cannot read {file} ({error.strerror}); name a scores.json or its folder") from None
        except ValueError:
            raise InputError(f"{file} is not JSON, so it is no scores.json of deepweather evaluate") from None
        if not isinstance(scores, dict) or not {"format", "models", "target"} <= scores.keys():
            raise InputError(f"{file} is no scores.json of deepweather evaluate; name one, or the folder that holds it")
        if scores["format"] != wanted:
            raise InputError(
                f"{file} has format {scores['format']}, this version compares format {wanted}; run deepweather "
                "evaluate again with the same command"
            )
        return cls(name, file, scores)

    @cached_property
    def starts(self) -> StartScores | None:
        """The scores of each start in `starts.csv` beside `scores.json`; None if there is no such file."""
        file = self.path.with_name("starts.csv")
        return StartScores.read(file) if file.exists() else None

    def has_the_forecasts_of(self, other: RunScores) -> bool:
        """Whether both runs scored the same forecasts in the same cells against the same analysis.

        It does if starts and lead times are the same, and the CRPS of the raw ensemble is equal in all regions, at all
        lead times and in all seasons.
        """
        if any(self.scores[key] != other.scores[key] for key in ("lead_times", "n_dates", "n_forecasts", "grid")):
            return False
        own, others = (run.scores["slices"] for run in (self, other))
        return own["season"].keys() == others["season"].keys() and all(
            _equal(*(entry_of(run.scores, "raw", kind, label)["crps"] for run in (self, other)))
            for kind in ("lead", "region", "season")
            for label in own[kind].keys() & others[kind].keys()
        )


def _equal(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - other) <= _SAME * abs(one)


class ComparedModel(NamedTuple):
    """A model of a run beside the same model of `first_run`, the first run with this model and the same forecasts.

    `crps` is the fair CRPS if this is valid in both runs (`fair`), else the plain CRPS. `minus_first` is NaN in the
    first run. Ends of 95 % intervals are NaN if they are unknown.
    """

    run: str
    model: str
    crps: float
    crps_ends: tuple[float, float]
    fair: bool
    skill: float
    skill_ends: tuple[float, float]
    first_run: str
    minus_first: float
    minus_first_ends: tuple[float, float]


NOTHING = (np.nan, np.nan)


@dataclass(frozen=True)
class RunComparison:
    """Runs of one target, in the order of the command."""

    runs: tuple[RunScores, ...]

    @classmethod
    def of_targets(cls, runs: Sequence[RunScores]) -> list[RunComparison]:
        """Return the comparison of every target that two runs or more have; without one, `InputError` says why."""
        by_target: dict[str, list[RunScores]] = {}
        for run in runs:
            by_target.setdefault(run.scores["target"], []).append(run)
        compared = [found for found in by_target.values() if len(found) > 1] or [[*runs]]
        for first, *others in compared:
            for other in others:
                if any(first.scores[key] != other.scores[key] for key in MUST_AGREE):
                    raise InputError(
                        f"{other.path} scores {other.scores['target']} in {other.scores['units']}, {first.path} "
                        f"{first.scores['target']} in {first.scores['units']}; compare runs of one target"
                    )
        return [cls(tuple(found)) for found in compared]

    @cached_property
    def groups(self) -> list[list[RunScores]]:
        """The runs in groups that scored the same forecasts."""
        found: list[list[RunScores]] = []
        for run in self.runs:
            home = next((group for group in found if run.has_the_forecasts_of(group[0])), None)
            if home is None:
                found.append([run])
            else:
                home.append(run)
        return found

    @property
    def differences(self) -> dict[str, list[str]]:
        """The values of `MAY_DIFFER` that are not the same in all runs, by name, as texts in the order of the runs."""
        found = {title: [_text(run.scores.get(key)) for run in self.runs] for key, title in MAY_DIFFER.items()}
        found["version"] = [_text(run.scores.get("inputs", {}).get("deepweather")) for run in self.runs]
        return {title: texts for title, texts in found.items() if len(set(texts)) > 1}

    def notes(self) -> list[str]:
        """Return sentences on what can be compared: other forecasts, other settings, missing intervals."""
        found = []
        if len(self.groups) > 1:
            parts = "; ".join(", ".join(run.name for run in group) for group in self.groups)
            found.append(
                f"the runs scored different forecasts, in {len(self.groups)} groups ({parts}): differences are given "
                "within a group only, and scores of different groups are of different weather"
            )
        for title, texts in self.differences.items():
            pairs = ", ".join(f"{run.name}: {text}" for run, text in zip(self.runs, texts, strict=True))
            found.append(f"the runs differ in their {title} ({pairs})")
        for run in self.runs:
            if run.starts is None:
                found.append(f"{run.path.parent} has no starts.csv, so differences to {run.name} have no interval")
            found += [f"{run.name}: {text}" for text in run.scores["warnings"]]
        return found

    @cached_property
    def models(self) -> list[ComparedModel]:
        """Every model of every run: names in the order of their first appearance, runs in the order of the command."""
        names = dict.fromkeys(name for run in self.runs for name in run.scores["models"])
        found = []
        for name in names:
            having = [run for run in self.runs if name in run.scores["models"]]
            for run in having:
                group = next(group for group in self.groups if run in group)
                first = next(one for one in having if one in group)
                found.append(self._compared(run, name, first))
        return found

    def _compared(self, run: RunScores, name: str, first: RunScores) -> ComparedModel:
        model = run.scores["models"][name]
        key = judging_score(one.scores["models"][name]["crps_fair_valid"] for one in (run, first))
        difference, ends = np.nan, NOTHING
        if first is not run:
            difference, ends = self.difference((run, name), (first, name), key)
        return ComparedModel(
            run.name, name, _number(model[key]), _ends(model["ci95"][key]), key == "crps_fair",
            _number(skill_in(model, key)), _ends(skill_in(model, key, interval=True)),
            "" if first is run else first.name, difference, ends,
        )  # fmt: skip

    def difference(
        self, one: tuple[RunScores, str], other: tuple[RunScores, str], key: str
    ) -> tuple[float, tuple[float, float]]:
        """Return the CRPS (`key`) of the model `one` minus the CRPS of the model `other`, and its paired 95 % interval.

        Both runs must have scored the same forecasts. The interval needs `starts.csv` of both runs.
        """
        a, b = (_number(run.scores["models"][name][key]) for run, name in (one, other))
        means = [run.starts.mean(name, key) if run.starts else None for run, name in (one, other)]
        times = [run.starts.times if run.starts else np.zeros(0) for run, _ in (one, other)]
        if means[0] is None or means[1] is None or not np.array_equal(times[0], times[1]):
            return a - b, NOTHING
        return a - b, interval(np.subtract, [means[0], means[1]], times[0]) or NOTHING

    def ranking(self, group: Sequence[RunScores]) -> list[tuple[RunScores, str, float, float, tuple[float, float]]]:
        """Return the models of runs of the same forecasts, the lowest CRPS first.

        An entry has the run, the name, the CRPS, its difference to the first entry, and the ends of the difference's
        interval. All models are compared by the fair CRPS if it is valid for all of them, else by the plain one. A
        reference that has the same CRPS in several runs is listed once.
        """
        every = [(run, name) for run in group for name in run.scores["models"]]
        key = self.ranking_key(group)
        found: list[tuple[RunScores, str, float]] = []
        for run, name in every:
            value = _number(run.scores["models"][name][key])
            if not any(name == known and _equal(value, crps) for _, known, crps in found):
                found.append((run, name, value))
        found.sort(key=lambda one: one[2])
        best = found[0][:2]
        return [
            (run, name, crps, *((0.0, NOTHING) if (run, name) == best else self.difference((run, name), best, key)))
            for run, name, crps in found
        ]

    def ranking_key(self, group: Sequence[RunScores]) -> str:
        """Return the CRPS by which all models of some runs may be compared: the fair one if it is valid for all."""
        return judging_score(model["crps_fair_valid"] for run in group for model in run.scores["models"].values())


def _text(value: object) -> str:
    if isinstance(value, list):
        return " ".join(" to ".join(map(str, one)) if isinstance(one, list) else str(one) for one in value)
    return "unknown" if value is None else str(value)


def _number(value: float | None) -> float:
    return np.nan if value is None else float(value)


def _ends(found: Sequence[float] | None) -> tuple[float, float]:
    return (found[0], found[1]) if found else NOTHING


def run_names(paths: Sequence[Path]) -> list[str]:
    """Return a short name for each path: its folder, with as many folders above as are needed to tell them apart.

    >>> run_names([Path("runs/a/scores.json"), Path("runs/b/scores.json"), Path("old/a")])
    ['runs/a', 'runs/b', 'old/a']
    """
    folders = [path.parent if path.name == "scores.json" else path for path in (path.absolute() for path in paths)]
    for count in range(1, max(len(folder.parts) for folder in folders) + 1):
        names = ["/".join(folder.parts[-count:]) for folder in folders]
        if len(set(names)) == len(names):
            return names
    twice = next(one for one, other in pairwise(sorted(folders)) if one == other)
    raise InputError(f"the same run is given twice ({twice}); name each run once")


_COLUMNS = (
    "target", "run", "model", "score", "label", "units", "value", "low", "high", "skill", "skill_low", "skill_high",
    "first_run", "minus_first", "minus_first_low", "minus_first_high", "n_forecasts", "n_dates",
)  # fmt: skip


def write_comparison(path: Path, comparisons: Sequence[RunComparison]) -> None:
    """Write a row for each target, run, model, score and label, with intervals, and the difference to the first run."""
    write_csv(path, _COLUMNS, (row for one in comparisons for model in one.models for row in _rows(one, model)))


def _rows(comparison: RunComparison, one: ComparedModel) -> Iterator[tuple[object, ...]]:
    """Yield the rows of a model of a run."""
    runs = {run.name: run for run in comparison.runs}
    run, first = runs[one.run], runs.get(one.first_run)
    entry = run.scores["models"][one.model]
    for score, definition in run.scores["definitions"].items():
        units = run.scores["units"] if definition["units"] == "target" else ""
        for label in definition["labels"] or [None]:
            value, gain = (_number(_of(label, found)) for found in (entry.get(score), skill_in(entry, score)))
            minus = np.nan, NOTHING
            if first is not None and score in ("crps", "crps_fair"):
                minus = comparison.difference((run, one.model), (first, one.model), score)
            elif first is not None:
                minus = value - _number(_of(label, first.scores["models"][one.model].get(score))), NOTHING
            yield (
                run.scores["target"], one.run, one.model, score, label or "", units,
                value, *_ends(_of(label, entry["ci95"].get(score))),
                gain, *_ends(_of(label, skill_in(entry, score, interval=True))),
                one.first_run, minus[0], *minus[1], run.scores["n_forecasts"], run.scores["n_dates"],
            )  # fmt: skip


def _of(label: str | None, found: Any) -> Any:
    return found.get(label) if label is not None and found is not None else found
