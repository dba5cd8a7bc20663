"""The verdict in words: which differences between models the 95 % intervals show, and which they leave open."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from evaluation.report.series import list_slices, slice_title
from evaluation.report.tables import PageTable, format_amount, format_percent, with_interval
from evaluation.scoring.scoreboard import headline_keys
from evaluation.significance.intervals import ENOUGH_YEARS
from evaluation.tables.score_json import entry_of

PLURALS = {"lead": "lead times", "region": "regions", "season": "seasons", "hour": "hours"}
NOT_A_PART = ("global", "unweighted")
"""Labels of regions that stand for all forecasts."""
BETTER, WORSE, OPEN = "better", "worse", "not shown"


@dataclass(frozen=True)
class ModelComparison:
    """A model against another in one slice; `difference` is its CRPS less that of the other, in units of the scores."""

    model: str
    other: str
    kind: str
    label: str
    result: str
    difference: float | None = None
    interval: tuple[float, float] | None = None


def compare_models(scores: Mapping[str, Any]) -> list[ModelComparison]:
    """Return each model against every earlier one over all forecasts.

    A difference is shown by its p-value, which is adjusted for all pairs.
    """
    found = []
    for name, others in scores["pairs"].items():
        for other, pair in others.items():
            result = OPEN
            if pair["p_holm"] is not None and pair["p_holm"] < scores["best_set"]["level"]:
                result = BETTER if pair["crps_minus"] < 0 else WORSE
            found.append(ModelComparison(name, other, "all", "all", result, pair["crps_minus"], pair["ci95"]))
    return found


def compare_slices(scores: Mapping[str, Any], name: str) -> list[ModelComparison]:
    """Return a model against raw in every part of the forecasts: lead times, regions, seasons and hours."""
    found = []
    key = headline_keys(scores["models"][name])[0]
    for kind, labels in list_slices(scores).items():
        for label in labels:
            entry = entry_of(scores, name, kind, label)
            if label not in NOT_A_PART and entry[key] is not None:
                found.append(ModelComparison(name, "raw", kind, label, _result(entry["ci95"][key])))
    return found


def verdict(scores: Mapping[str, Any]) -> str:
    """Return one sentence on the shown model: what is shown beyond doubt and what is not."""
    best = scores["best"]["model"]
    against = {
        _other(one, best): _seen_from(one, best) for one in compare_models(scores) if best in (one.model, one.other)
    }
    parts = compare_slices(scores, best)
    name = f"**{best}**"
    if all(result == OPEN for result in against.values()) and all(one.result == OPEN for one in parts):
        return f"Nothing is shown: every difference to {name} may be chance."
    shown, open_ones = [], []
    if better := [other for other, result in against.items() if result == BETTER]:
        shown.append(f"{name} has a lower CRPS than {_listed(better)}")
    if worse := [other for other, result in against.items() if result == WORSE]:
        shown.append(f"{'' if shown else name + ' '}{'has ' if not shown else ''}a higher CRPS than {_listed(worse)}")
    for result, verb in ((BETTER, "lower"), (WORSE, "higher")):
        if where := _places(parts, result):
            shown.append(f"{'it has ' if shown else name + ' has '}a {verb} CRPS than raw {where}")
    if equal := [other for other, result in against.items() if result == OPEN]:
        open_ones.append(f"a difference between {name} and {_listed(equal, 'or')}")
    if where := _places(parts, OPEN):
        open_ones.append(f"a difference to raw {where}")
    text = f"Shown: {'; '.join(shown)}." if shown else "Nothing is shown."
    return text[:-1] + (f"; not shown: {'; nor '.join(open_ones)}." if open_ones else ".")


def comparison_count(scores: Mapping[str, Any]) -> int:
    """Return the number of comparisons that the verdict rests on."""
    best = scores["best"]["model"]
    whole = [one for one in compare_models(scores) if best in (one.model, one.other)]
    return len(whole) + len(compare_slices(scores, best))


def pairs_table(scores: Mapping[str, Any]) -> PageTable | None:
    """Return the table of all pairs of models but raw: CRPS of the row less that of the column; None for one model."""
    names = [name for name in scores["models"] if name != "raw"]
    if len(names) < 2:
        return None
    show = partial(format_amount, scores=scores, sign=True)
    found = {
        (one.model, one.other): f"{with_interval(one.difference, one.interval, show)}\n{one.result}"
        for one in compare_models(scores)
    }
    rows = [[name, *(found.get((name, other), "") for other in names[:-1])] for name in names[1:]]
    return PageTable("Differences between models", ["CRPS less that of", *names[:-1]], rows)


def comparisons_note(scores: Mapping[str, Any]) -> str:
    """Return how the verdict was reached."""
    count = comparison_count(scores)
    return (
        f"The sentence rests on {count} comparison{'s' * (count != 1)}. Models are compared by the fair CRPS where it "
        "is valid for both, else by the CRPS of their members. A difference over all forecasts is shown if its "
        f"p-value, adjusted for all pairs (Holm 1979), is below {scores['best_set']['level']:.2f}. A difference to raw "
        "in a part is shown if the 95 % interval of the skill excludes 0. Each such interval stands for itself: where "
        f"nothing differs, one in twenty excludes 0 by chance.{_runs_note(scores)}"
    )


def years_note(scores: Mapping[str, Any]) -> str:
    """Return how much years must differ to overturn the verdict; "" for many years, or if nothing is shown."""
    best, count = scores["best"]["model"], scores["n_years"]
    shares = {
        other if name == best else name: pair["year_share"]
        for name, others in scores["pairs"].items()
        for other, pair in others.items()
        if best in (name, other) and pair["year_share"] is not None
    }
    if count >= ENOUGH_YEARS or not shares:
        return ""
    parts = [f"{format_percent(min(share, 9.99))} (**{other}**)" for other, share in shares.items()]
    return (
        f"The starts are in {count} year{'s' * (count != 1)}, too few to show how much years differ. A difference to "
        f"**{best}** may be chance if the years vary by more than this share of the variance of single starts: "
        f"{_joined(parts, 'and')}."
    )


def _runs_note(scores: Mapping[str, Any]) -> str:
    """Return which models are means over several training runs; "" if there are none."""
    counts = {name: len(model["runs"]) for name, model in scores["models"].items() if model.get("runs")}
    described = [f"**{name}** ({count} runs)" for name, count in counts.items()]
    if not described:
        return ""
    return f" Scores of {_joined(described, 'and')} are means over training runs; intervals hold over dates and seeds."


def _result(skill: Iterable[float] | None) -> str:
    """Return what the interval of a skill shows."""
    if skill is None:
        return OPEN
    low, high = skill
    return BETTER if low > 0 else WORSE if high < 0 else OPEN


def _other(one: ModelComparison, name: str) -> str:
    return one.other if one.model == name else one.model


def _seen_from(one: ModelComparison, name: str) -> str:
    if one.model == name or one.result == OPEN:
        return one.result
    return WORSE if one.result == BETTER else BETTER


def _places(parts: list[ModelComparison], result: str) -> str:
    """Return where comparisons have a result: `in every region, in 1 of 2 seasons (JJA)`; "" for nowhere."""
    texts = []
    for kind in dict.fromkeys(one.kind for one in parts):
        of_kind = [one for one in parts if one.kind == kind]
        titles = [slice_title(kind, one.label) for one in of_kind if one.result == result]
        plural = PLURALS.get(kind, f"parts by {kind}")
        preposition = "at" if kind in ("lead", "hour") else "in"
        if titles and len(titles) == len(of_kind):
            every = {1: titles[0], 2: f"both {plural}"}.get(len(titles), f"all {len(titles)} {plural}")
            texts.append(f"{preposition} {every}")
        elif titles:
            texts.append(f"{preposition} {len(titles)} of {len(of_kind)} {plural} ({', '.join(titles)})")
    return _joined(texts, "and")


def _listed(names: Iterable[str], word: str = "and") -> str:
    return _joined([f"**{name}**" for name in names], word)


def _joined(texts: list[str], word: str) -> str:
    return f" {word} ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)
