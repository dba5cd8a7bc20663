"""The page and the terminal's table of `deepweather compare`: models of several runs side by side."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from data_pipeline.task import Variable
from evaluation.report.rendering import render_page
from evaluation.report.tables import (
    INVALID,
    PageTable,
    display_of,
    forecast_title,
    format_amount,
    format_bound,
    format_percent,
    format_years,
    variable_title,
    with_ends,
)
from evaluation.run_comparison import RunComparison, RunScores
from evaluation.scoring.scoreboard import headline_keys
from evaluation.tables.score_json import entry_of


def comparison_page(comparisons: Sequence[RunComparison], notes: Sequence[str] = ()) -> str:
    """Return the page of all targets as HTML, with further `notes`."""
    every = [one.runs[0].scores for one in comparisons]
    titles = [variable_title(Variable.parse(scores["target"])) for scores in every]
    parts = list(zip(titles if len(every) > 1 else [""], comparisons, strict=True))
    groups = [(title, one, group) for title, one in parts for group in one.groups]
    return render_page(
        "comparison.html",
        title=", ".join([*titles[:-1], forecast_title(every[-1])]),
        headline=" ".join(_titled(title, headline_of(one)) for title, one in parts),
        facts=[
            f"{len({run.name for one in comparisons for run in one.runs})} runs",
            f"CRPS in {', '.join(dict.fromkeys(display_of(scores).units for scores in every))}",
        ],
        warnings=[*notes, *(_titled(title, text) for title, one in parts for text in one.notes())],
        ranking=[
            (_titled(title, ", ".join(run.name for run in group)) if len(groups) > 1 else "", _ranking(one, group))
            for title, one, group in groups
        ],
        models=[(title, _models(one)) for title, one in parts],
        slices=[(_titled(title, table.label), table) for title, one in parts for table in _slices(one)],
        runs=[(title, _runs(one)) for title, one in parts],
    )


def _titled(title: str, text: str) -> str:
    return f"{title}: {text}" if title else text


def headline_of(comparison: RunComparison) -> str:
    """Return what the comparison shows in one sentence; the best model counts only within the same forecasts."""
    if len(comparison.groups) > 1:
        return (
            f"The {len(comparison.runs)} runs scored different forecasts, so their models cannot be ranked together; "
            f"there are {len(comparison.groups)} tables."
        )
    run, name, *_ = (rows := comparison.ranking(comparison.runs))[0]
    beaten = [one for one in rows[1:] if one[4][0] > 0]
    known = [one for one in rows[1:] if not math.isnan(one[4][0])]
    text = f"{name} of {run.name} has the lowest CRPS of {len(rows)} models"
    if not known:
        return text + "; there are too few starts, or no starts.csv, to tell the differences from chance."
    if len(beaten) == len(rows) - 1:
        return text + ", and it beats each of the others beyond the 95 % interval of the difference."
    open_ones = ", ".join(f"{one[1]} of {one[0].name}" for one in rows[1:] if one not in beaten)
    return text + f"; that it is better than {open_ones} is not shown."


def plain_comparison(comparison: RunComparison) -> str:
    """Return the tables for the terminal, a table for each group of runs with the same forecasts."""
    scores = comparison.runs[0].scores
    width = max(len(run.name) for run in comparison.runs) + 2
    lines = [f"{forecast_title(scores)}; CRPS in {display_of(scores).units}", headline_of(comparison)]
    for group in comparison.groups:
        table = _ranking(comparison, group)
        lines.append(f"{'run':<{width}}{'model':<16}{table.columns[2]:>10}  {'difference [95 %]':<26}vs raw [95 %]")
        for name, run, amount, difference, gain in table.rows:
            lines.append(f"{run:<{width}}{name:<16}{amount:>10}  {difference:<26}{gain}".rstrip())
    return "\n".join([*lines, *(f"note: {text}" for text in comparison.notes())])


def _ranking(comparison: RunComparison, group: Sequence[RunScores]) -> PageTable:
    kind = "fair CRPS" if comparison.ranking_key(group) == "crps_fair" else "plain CRPS"
    rows = [
        (
            name, run.name, format_amount(_known(crps), run.scores), _difference(run, difference, ends),
            _skill(run, name, kind),
        )
        for run, name, crps, difference, ends in comparison.ranking(group)
    ]  # fmt: skip
    return PageTable("All models", ("model", "run", kind, "difference", "vs raw"), rows)


def _models(comparison: RunComparison) -> PageTable:
    rows = []
    for one in comparison.models:
        run = next(run for run in comparison.runs if run.name == one.run)
        amount = format_amount(_known(one.crps), run.scores) + ("" if one.fair else INVALID)
        crps = with_ends(amount, (format_amount(_known(end), run.scores) for end in one.crps_ends))
        minus = _difference(run, one.minus_first, one.minus_first_ends) if one.first_run else "–"
        to = f" (to {one.first_run})" if one.first_run and len(comparison.runs) > 2 else ""
        gain = format_percent(_known(one.skill), sign=True)
        skill = with_ends(gain, (format_bound(_known(end)) for end in one.skill_ends))
        rows.append((one.model, one.run, crps, minus + to, skill))
    columns = ("model", "run", "fair CRPS", "difference to the first run", "vs raw")
    return PageTable("Models of the same name in several runs", columns, rows)


def _slices(comparison: RunComparison) -> Iterator[PageTable]:
    """Yield a table of skill for each kind of slice that all runs have."""
    for kind, title in (("lead", "Lead time (h)"), ("region", "Region"), ("season", "Season")):
        labels = dict.fromkeys(label for run in comparison.runs for label in run.scores["slices"][kind])
        rows = []
        for run in comparison.runs:
            for name, model in run.scores["models"].items():
                if name != "raw":
                    key = headline_keys(model)[0]
                    known = run.scores["slices"][kind]
                    cells = (
                        _slice_cell(entry_of(run.scores, name, kind, label) if label in known else None, key)
                        for label in labels
                    )
                    rows.append((name, run.name, *cells))
        yield PageTable(title, ("model", "run", *labels), rows)


def _slice_cell(entry: Mapping[str, Any] | None, key: str) -> str:
    if entry is None or entry[key] is None:
        return "–"
    return with_ends(format_percent(entry[key], sign=True), map(format_bound, entry["ci95"][key] or ()))


def _runs(comparison: RunComparison) -> PageTable:
    facts = {
        "file": [str(run.path) for run in comparison.runs],
        "task": [run.scores["task"] for run in comparison.runs],
        "dates": [f"{run.scores['split']} {format_years(run.scores)}" for run in comparison.runs],
        "starts": [str(run.scores["n_dates"]) for run in comparison.runs],
        "forecasts": [str(run.scores["n_forecasts"]) for run in comparison.runs],
        "raw members": [str(run.scores["members"]) for run in comparison.runs],
        "grid": [run.scores["grid"] for run in comparison.runs],
    } | comparison.differences
    marks = {number: "differs" for number, texts in enumerate(facts.values()) if number and len(set(texts)) > 1}
    rows = [(title, *texts) for title, texts in facts.items()]
    return PageTable("The runs", ("", *(run.name for run in comparison.runs)), rows, marks=marks)


def _skill(run: RunScores, name: str, kind: str) -> str:
    model = run.scores["models"][name]
    key = "skill_vs_raw_fair" if kind.startswith("fair") else "skill_vs_raw"
    ends = map(format_bound, model["ci95"][key] or ())
    return "" if name == "raw" else with_ends(format_percent(model[key], sign=True), ends)


def _difference(run: RunScores, difference: float, ends: tuple[float, float]) -> str:
    if math.isnan(difference):
        return "–"
    text = "0" if difference == 0 else format_amount(difference, run.scores, sign=True)
    return with_ends(text, (format_amount(_known(end), run.scores, sign=True) for end in ends))


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
