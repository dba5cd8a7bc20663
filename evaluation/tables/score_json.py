"""The content of `scores.json`: the rows of scores as nested plain values; docs/scores.md defines every key.

Statements about several models, such as p-values, are added from the sums of the scoreboard.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from evaluation.scores import all_scores
from evaluation.scores.rank_histogram import RANK_HISTOGRAM
from evaluation.scores.ratios import skill
from evaluation.scores.score import Diagram, Score
from evaluation.scoring.aggregation import Tally
from evaluation.scoring.scoreboard import DISTRIBUTION, MEMBERS, REFERENCES, Scoreboard, headline_keys
from evaluation.significance.intervals import Estimate
from evaluation.significance.model_comparison import Pairs, best_set, describe_pairs, detectable_differences
from evaluation.significance.run_means import RunMean
from evaluation.tables.lead_gain import lead_gains
from evaluation.tables.score_rows import GLOBAL, Finisher, ScoreRows, whole

SCORES_FORMAT = 7
"""Version of `scores.json`; results of another version are computed again."""
SKILL_KEYS = {"crps": "skill_vs_raw", "crps_fair": "skill_vs_raw_fair"}
"""Keys of the skill of the CRPS against raw, which stands beside other comparisons by the CRPS."""
IMPLAUSIBLE_CRPS, IMPLAUSIBLE_BIN, FEWEST_FORECASTS = 3.0, 0.95, 20
"""A CRPS of so many times that of climatology, and a share of the analyses in one bin of the rank histogram of a model
worse than climatology, that hint at other data than the metadata say; fewer forecasts may have either by chance."""


def scores_of(board: Scoreboard, target: int, rows: ScoreRows | None = None) -> dict[str, Any]:
    """Return all scores of one target as plain values, None where a score is undefined."""
    rows, finisher = rows or ScoreRows.of(board, target), Finisher(board, target, whole(board))
    entries, slices = _entries(board, rows)
    models: dict[str, Any] = {}
    for name, tally in board.tallies.items():
        models[name] = entries[name, DISTRIBUTION, "region", GLOBAL] | {
            "crps_fair_valid": board.fair_is_valid(name),
            "diagrams": _diagrams(board, finisher, tally, board.drawn),
            "central_interval": _central_interval(finisher, tally),
            "lead_gain": lead_gains(finisher, name),
            "members": entries.get((name, MEMBERS, "region", GLOBAL)),
            "runs": _runs(finisher, name),
            "by": {kind: {} for kind in ("lead", "region", "season", "hour")},
        }
        if board.further and name in board.written:
            forms = {board.method: MEMBERS, **{method: method for method in board.further}}
            models[name]["methods"] = {method: entries[name, form, "region", GLOBAL] for method, form in forms.items()}
        for other in REFERENCES:  # the differences of all models over all forecasts are in `pairs`
            for values in (models[name], models[name]["ci95"]):
                values.pop(f"crps_minus_{other}", None)
    for (name, form, kind, label), entry in entries.items():
        if form == DISTRIBUTION and (kind, label) != ("region", GLOBAL):
            models[name]["by"].setdefault(kind, {})[label] = entry
            if kind == "members":
                entry["members"] = entries.get((name, MEMBERS, kind, label))
                entry["fewer"] = _fewer(board, finisher, int(label), name)
    variable, pairs = board.task.targets[target], _pairs(board, finisher)
    wanted: list[Score | Diagram] = [*board.wanted, *board.diagrams]
    return {
        "task": board.task.name,
        "target": str(variable),
        "units": variable.units,
        "lead_times": list(board.task.lead_times),
        "grid": str(board.grid),
        "weights": "cell area; region unweighted: every grid point alike",
        "n_dates": len(np.unique(board.init_times)),
        "n_years": len(np.unique(board.init_times.astype("datetime64[s]").astype("datetime64[Y]"))),
        "n_forecasts": len(board.init_times),
        "left_out": _left_out(board, target),
        "slices": slices,
        "definitions": {score.name: _definition(board, score, target) for score in board.computed},
        "diagram_definitions": {
            one.name: {"title": one.title, "text": one.text + one.note(board.settings), "reference": one.reference}
            for one in board.drawn
        },
        "scores_left_out": {one.name: why for one in wanted if (why := one.missing(board.settings))},
        "models": models,
        "pairs": pairs,
        "best_set": best_set(pairs),
        "power": _power(board, finisher),
        "oracle": _oracle(board, finisher),
        "warnings": _warnings(board, models, target),
    }


def entry_of(scores: Mapping[str, Any], model: str, kind: str, label: str) -> Mapping[str, Any]:
    """Return the scores of a model in one part of the forecasts; the kind `all` and the region `global` are all."""
    entry: Mapping[str, Any] = scores["models"][model]
    return entry if kind == "all" or (kind, label) == ("region", GLOBAL) else entry["by"][kind][label]


def skill_in(entry: Mapping[str, Any], score: str, interval: bool = False) -> Any:
    """Return the skill of a score against raw in an entry of scores.json, or its interval; None if there is none."""
    if score in SKILL_KEYS:
        return (entry["ci95"] if interval else entry).get(SKILL_KEYS[score])
    return entry["ci95_skill" if interval else "skill"].get(score)


def _entries(
    board: Scoreboard, rows: ScoreRows
) -> tuple[dict[tuple[str, str, str, str], dict[str, Any]], dict[str, dict[str, Any]]]:
    """Return the entry of each model, form and part by one kind, and the sample size of each part."""
    entries: dict[tuple[str, str, str, str], dict[str, Any]] = {}
    slices: dict[str, dict[str, Any]] = {kind: {} for kind in ("lead", "region", "season", "hour")}
    skilled = {score.name for score in board.computed if score.has_skill}
    for row in (*rows.rows, *rows.comparisons):
        if row.slice is None:
            continue
        entry = entries.setdefault((row.model, row.form, *row.slice), {"ci95": {}, "skill": {}, "ci95_skill": {}})
        _put(entry, entry["ci95"], row.score, row.label, row.value, row.low, row.high)
        gain = row.skill, row.skill_low, row.skill_high
        if row.score in SKILL_KEYS:
            _put(entry, entry["ci95"], SKILL_KEYS[row.score], "", *gain)
        elif row.score in skilled:
            _put(entry["skill"], entry["ci95_skill"], row.score, row.label, *gain)
        kind, label = row.slice
        if kind in slices and label not in slices[kind]:
            cells = int((board.regions[row.region] > 0).sum())
            slices[kind][label] = {"n_forecasts": row.n_forecasts, "n_dates": row.n_dates, "cells": cells}
    return entries, slices


def _put(
    values: dict[str, Any], intervals: dict[str, Any], key: str, label: str, value: float, low: float, high: float
) -> None:
    if label:
        values, intervals, key = values.setdefault(key, {}), intervals.setdefault(key, {}), label
    values[key], intervals[key] = _number(value), None if math.isnan(low) else [low, high]


def _definition(board: Scoreboard, score: Score, target: int) -> dict[str, Any]:
    labels = list(score.labels_of(board.settings, target)) if score.labels else None
    return {
        "title": score.title, "text": score.text + score.note(board.settings), "reference": score.reference,
        "units": score.units, "best": score.best, "labels": labels,
    }  # fmt: skip


def _diagrams(board: Scoreboard, finisher: Finisher, tally: Tally, drawn: Iterable[Diagram]) -> dict[str, Any]:
    """Return the data of all diagrams of one model as plain lists, with null for undefined numbers."""
    found: dict[str, Any] = {}
    for diagram in drawn:
        averages = {
            name: finisher.contributions(tally, name) if diagram.by_start else finisher.mean(tally, name).sum(0).value
            for name in diagram.statistics
        }
        panels = diagram.value(tally.settings, finisher.target, **averages)
        found[diagram.name] = {
            label: {key: [_number(one) for one in np.ravel(values)] for key, values in panel.items()}
            for label, panel in panels.items()
        }
    return found


def _central_interval(finisher: Finisher, tally: Tally) -> dict[str, Any] | None:
    """Return the share of the analyses in the central interval of about 80 %, from the bins of the rank histogram.

    `nominal` is the share of these bins, so that it is exact for any number of members; None for two bins.
    """
    rank = finisher.mean(tally, "rank")
    bins = rank.total.shape[-1]
    if bins < 3:
        return None
    outside = max(1, round(0.1 * bins))
    held = finisher.estimate(lambda share: share[..., outside : bins - outside].sum(-1), [rank])
    interval = held.interval
    return {
        "nominal": 1 - 2 * outside / bins, "held": _number(held.value), "ci95": list(interval) if interval else None,
    }  # fmt: skip


def _left_out(board: Scoreboard, target: int) -> dict[str, Any]:
    """Return the number of cells, over all forecasts, that have no analysis or lack a member and are not scored.

    `forecasts_without_value` has the number of forecasts that an optional model could not make, by its name.
    """
    unweighted = list(board.regions).index("unweighted")
    counted = board.tallies["raw"].per_forecast["crps"].weight[:, target, unweighted].sum()
    cells = len(board.init_times) * board.regions["unweighted"].size
    without_value = _absent(board, target)
    found: dict[str, Any] = {"cells": cells - round(counted), "of": cells}
    return found | ({"forecasts_without_value": without_value} if without_value else {})


def _absent(board: Scoreboard, target: int) -> dict[str, int]:
    """Return the number of forecasts that a model could not make, for models without some."""
    absent = {name: int(tally.absent[:, target].sum()) for name, tally in board.tallies.items()}
    return {name: count for name, count in absent.items() if count}


def _pairs(board: Scoreboard, finisher: Finisher) -> Pairs:
    """Return the difference of each model to every earlier model, with its interval and p-values."""
    names = list(board.tallies)
    every = [(name, other) for number, name in enumerate(names) for other in names[:number]]

    def compared(function: Callable[..., np.ndarray]) -> dict[tuple[str, str], Estimate]:
        return {pair: finisher.compare(function, *pair) for pair in every}

    scores = {pair: board.judging_score(*pair) for pair in every}
    return describe_pairs(names, scores, compared(np.subtract), compared(skill))


def _power(board: Scoreboard, finisher: Finisher) -> dict[str, Any]:
    """Return the differences from raw and EMOS, in per cent of the CRPS of raw, that the starts could show."""

    def share(reference: np.ndarray, model: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return (reference - model) / raw

    gains = {
        reference: {
            name: finisher.compare(share, reference, name, "raw")
            for name in board.tallies
            if name not in ("raw", reference)
        }
        for reference in ("raw", "emos")
        if reference in board.tallies
    }
    return detectable_differences(len(np.unique(board.init_times)), gains)


def _runs(finisher: Finisher, name: str) -> list[float | None] | None:
    """Return the CRPS of each training run of a model with several runs."""
    crps = finisher.crps(name)
    return [_number(run.sum(0).value) for run in crps.runs[name]] if isinstance(crps, RunMean) else None


def _fewer(board: Scoreboard, finisher: Finisher, size: int, name: str) -> dict[str, dict[str, Any]]:
    """Return the difference in fair CRPS of a model with `size` members to the same model with fewer members."""
    fair = {count: finisher.mean(tallies[name], "crps_fair") for count, tallies in board.by_member_count.items()}
    found = {}
    for fewer in (count for count in fair if count < size):
        estimate = finisher.estimate(np.subtract, [fair[size], fair[fewer]])
        interval = estimate.interval
        ends, p_value = list(interval) if interval else None, estimate.p_value()
        found[str(fewer)] = {"crps_fair_minus": _number(estimate.value), "ci95": ends, "p": p_value}
    return found


def _oracle(board: Scoreboard, finisher: Finisher) -> dict[str, Any] | None:
    """Return the scores of the oracle over the forecasts that it has."""
    tally = board.oracle
    if tally is None:
        return None

    def number(name: str) -> float | None:
        score = all_scores()[name]
        return _number(score.value(**{one: finisher.mean(tally, one).sum(0).value for one in score.statistics}))

    return {
        "n_forecasts": int((finisher.mean(tally, "crps").weight > 0).sum()),
        "crps": number("crps_fair"),
        "crps_plain": number("crps"),
        "spread_skill": number("spread_skill"),
        "diagrams": _diagrams(board, finisher, tally, [RANK_HISTOGRAM]),
    }


def _warnings(board: Scoreboard, models: Mapping[str, Any], target: int) -> list[str]:
    """Return warnings: forecasts without a value, implausible scores, and models that beat the oracle by a leak."""
    count = len(board.init_times)
    found = [
        f"{name} has no value in {lost} of {count} forecasts: its own scores and its comparisons are of the others"
        for name, lost in _absent(board, target).items()
    ]
    for name, model in models.items():
        for what in _implausible(model, models.get("climatology")) if count >= FEWEST_FORECASTS else ():
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
    histogram = np.array(model["diagrams"]["rank_histogram"][""]["y"])
    if histogram.max() > IMPLAUSIBLE_BIN * histogram.sum() > 0:
        share, place = histogram.max() / histogram.sum(), f"{histogram.argmax() + 1} of {len(histogram)}"
        yield f"has {share:.0%} of the analyses in bin {place} of its rank histogram"


def _number(value: np.ndarray | float) -> float | None:
    number = float(value)
    return number if np.isfinite(number) else None
