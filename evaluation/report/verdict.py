"""The verdict in words: which differences between models over all forecasts are shown, and which are open."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from data_pipeline.common.messages import listed
from evaluation.report.tables import PageTable, format_amount, format_percent, with_ends
from evaluation.significance.intervals import ENOUGH_YEARS

BETTER, WORSE, OPEN = "better", "worse", "not shown"


def results(scores: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """Return whether each model is better or worse than each earlier one, by the p-value adjusted for all pairs."""
    found = {}
    for name, others in scores["pairs"].items():
        for other, pair in others.items():
            shown = pair["p_holm"] is not None and pair["p_holm"] < scores["best_set"]["level"]
            found[name, other] = (BETTER if pair["crps_minus"] < 0 else WORSE) if shown else OPEN
    return found


def verdict(scores: Mapping[str, Any]) -> str:
    """Return one sentence on the shown model: which differences to other models are shown and which are not."""
    best = scores["best"]["model"]
    turned = {BETTER: WORSE, WORSE: BETTER, OPEN: OPEN}
    against = {
        (other if name == best else name): result if name == best else turned[result]
        for (name, other), result in results(scores).items()
        if best in (name, other)
    }
    better, worse, equal = (
        [other for other, result in against.items() if result == wanted] for wanted in (BETTER, WORSE, OPEN)
    )
    name = f"**{best}**"
    if not better and not worse:
        return f"Nothing is shown: every difference to {name} may be chance."
    shown = [f"a lower CRPS than {_names(better)}"] if better else []
    shown += [f"a higher CRPS than {_names(worse)}"] if worse else []
    text = f"Shown: {name} has {' and '.join(shown)}"
    return text + (f"; not shown: a difference between {name} and {_names(equal, 'or')}." if equal else ".")


def pairs_table(scores: Mapping[str, Any]) -> PageTable | None:
    """Return the table of all pairs of models but raw: CRPS of the row less that of the column; None for one model."""
    names = [name for name in scores["models"] if name != "raw"]
    if len(names) < 2:
        return None
    show = partial(format_amount, scores=scores, sign=True)
    found = {
        (name, other): f"{with_ends(show(pair['crps_minus']), map(show, pair['ci95'] or ()))}\n{result}"
        for (name, other), result in results(scores).items()
        for pair in [scores["pairs"][name][other]]
    }
    rows = [[name, *(found.get((name, other), "") for other in names[:-1])] for name in names[1:]]
    return PageTable("Differences between models", ["CRPS less that of", *names[:-1]], rows)


def comparisons_note(scores: Mapping[str, Any]) -> str:
    """Return how the verdict was reached."""
    return (
        "Models are compared by the fair CRPS where it is valid for both, else by the CRPS of their members. A "
        "difference is shown if its p-value, adjusted for all pairs of models (Holm 1979), is below "
        f"{scores['best_set']['level']:.2f}.{_runs_note(scores)}"
    )


def years_note(scores: Mapping[str, Any]) -> str:
    """Return how much years must differ to overturn the verdict; "" for many years, or if no such years can."""
    best, count = scores["best"]["model"], scores["n_years"]
    shares = {
        other if name == best else name: pair["year_share"]
        for name, others in scores["pairs"].items()
        for other, pair in others.items()
        if best in (name, other) and pair["year_share"] is not None and pair["year_share"] < 1
    }
    if count >= ENOUGH_YEARS or not shares:
        return ""
    parts = [f"{format_percent(share)} (**{other}**)" for other, share in shares.items()]
    return (
        f"The starts are in {count} year{'s' * (count != 1)}, too few to show how much years differ. A difference to "
        f"**{best}** may be chance if the years vary by more than this share of the variance of single starts: "
        f"{listed(parts)}."
    )


def _runs_note(scores: Mapping[str, Any]) -> str:
    """Return which models are means over several training runs; "" if there are none."""
    counts = {name: len(model["runs"]) for name, model in scores["models"].items() if model.get("runs")}
    described = [f"**{name}** ({count} runs)" for name, count in counts.items()]
    if not described:
        return ""
    return f" Scores of {listed(described)} are means over training runs; intervals hold over dates and seeds."


def _names(names: Iterable[str], word: str = "and") -> str:
    return listed((f"**{name}**" for name in names), word)
