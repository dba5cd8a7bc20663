"""The page and the terminal's table of `deepweather compare`: models of several runs side by side."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from string import Template

from evaluation.report.page import contents_list, scrolling
from evaluation.report.tables import (
    display_of,
    forecast_title,
    format_amount,
    format_bound,
    format_percent,
    format_years,
)
from evaluation.run_comparison import ComparedModel, RunComparison, RunScores
from evaluation.scoreboard import headline_keys

PLAIN = "†"
"""Marks a plain CRPS among fair ones."""


def comparison_page(comparison: RunComparison) -> str:
    """Return the page as HTML."""
    first = comparison.runs[0].scores
    notes = "".join(f'<p class="warning">{escape(text)}</p>' for text in comparison.notes())
    text = Template(files("evaluation.report").joinpath("comparison.html").read_text("utf-8"))
    parts = {
        "title": escape(forecast_title(first)),
        "headline": escape(headline_of(comparison)),
        "facts": escape(f"{len(comparison.runs)} runs · CRPS in {display_of(first).units}"),
        "notes": notes,
        "ranking": "".join(_ranking(comparison, group) for group in comparison.groups),
        "models": scrolling(_models(comparison), "Models of the same name in several runs"),
        "slices": "".join(_slices(comparison)),
        "runs": scrolling(_runs(comparison), "The runs"),
    }
    style = files("evaluation.report").joinpath("page.css").read_text("utf-8")
    contents = contents_list(text.safe_substitute(parts))
    return text.substitute(parts, contents=contents, style=style)


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
    return text + f"; that it is better than {open_ones} is not shown beyond doubt."


def plain_comparison(comparison: RunComparison) -> str:
    """Return the tables for the terminal, a table for each group of runs with the same forecasts."""
    scores = comparison.runs[0].scores
    width = max(len(run.name) for run in comparison.runs) + 2
    lines = [f"{forecast_title(scores)}; CRPS in {display_of(scores).units}", headline_of(comparison)]
    for group in comparison.groups:
        kind = "fair CRPS" if comparison.ranking_key(group) == "crps_fair" else "plain CRPS"
        lines.append(f"{'run':<{width}}{'model':<16}{kind:>10}  {'difference [95 %]':<26}vs raw [95 %]")
        for run, name, crps, difference, ends in comparison.ranking(group):
            cells = _difference(run, difference, ends), _skill(run, name, kind)
            amount = format_amount(_known(crps), run.scores)
            lines.append(f"{run.name:<{width}}{name:<16}{amount:>10}  {cells[0]:<26}{cells[1]}")
    return "\n".join([*lines, *(f"note: {text}" for text in comparison.notes())])


def _ranking(comparison: RunComparison, group: Sequence[RunScores]) -> str:
    kind = "fair CRPS" if comparison.ranking_key(group) == "crps_fair" else "plain CRPS"
    rows = [
        (
            name, escape(run.name), format_amount(_known(crps), run.scores),
            _small(_difference(run, difference, ends)), _small(_skill(run, name, kind)),
        )
        for run, name, crps, difference, ends in comparison.ranking(group)
    ]  # fmt: skip
    title = f"<h3>{escape(', '.join(run.name for run in group))}</h3>" if len(comparison.groups) > 1 else ""
    return title + scrolling(_table(("model", "run", kind, "difference", "vs raw"), rows), "All models")


def _models(comparison: RunComparison) -> str:
    rows = []
    for one in comparison.models:
        run = next(run for run in comparison.runs if run.name == one.run)
        amount = format_amount(_known(one.crps), run.scores) + ("" if one.fair else PLAIN)
        interval = _bracketed(*(format_amount(_known(end), run.scores) for end in one.crps_ends))
        minus = _difference(run, one.minus_first, one.minus_first_ends) if one.first_run else "–"
        to = f" (to {one.first_run})" if one.first_run and len(comparison.runs) > 2 else ""
        rows.append(
            (one.model, escape(one.run), _small(f"{amount} {interval}"), _small(minus) + escape(to), _small(_gain(one)))
        )
    return _table(("model", "run", "fair CRPS", "difference to the first run", "vs raw"), rows)


def _gain(one: ComparedModel) -> str:
    text = format_percent(_known(one.skill), sign=True)
    return f"{text} {_bracketed(*(format_bound(end) if end == end else '' for end in one.skill_ends))}"


def _slices(comparison: RunComparison) -> Iterable[str]:
    """Yield a table of skill for each kind of slice that all runs have."""
    for kind, title in (("lead", "Lead time (h)"), ("region", "Region"), ("season", "Season")):
        labels = dict.fromkeys(label for run in comparison.runs for label in run.scores["models"]["raw"]["by"][kind])
        rows = []
        for run in comparison.runs:
            for name, model in run.scores["models"].items():
                if name != "raw":
                    key = headline_keys(model)[0]
                    cells = (_slice_cell(model["by"][kind].get(label), key) for label in labels)
                    rows.append((name, escape(run.name), *cells))
        yield f"<h3>{title}</h3>{scrolling(_table(('model', 'run', *labels), rows), title)}"


def _slice_cell(entry: dict | None, key: str) -> str:
    if entry is None or entry[key] is None:
        return "–"
    interval = entry["ci95"][key]
    ends = _bracketed(*map(format_bound, interval)) if interval else ""
    return _small(f"{format_percent(entry[key], sign=True)} {ends}")


def _runs(comparison: RunComparison) -> str:
    rows: list[tuple[str, ...]] = [("file", *(escape(str(run.path)) for run in comparison.runs))]
    facts = {
        "task": [run.scores["task"] for run in comparison.runs],
        "dates": [f"{run.scores['split']} {format_years(run.scores)}" for run in comparison.runs],
        "starts": [str(run.scores["n_dates"]) for run in comparison.runs],
        "forecasts": [str(run.scores["n_forecasts"]) for run in comparison.runs],
        "raw members": [str(run.scores["members"]) for run in comparison.runs],
        "grid": [run.scores["grid"] for run in comparison.runs],
    } | comparison.differences
    for title, texts in facts.items():
        differs = len(set(texts)) > 1
        rows.append((title, *(f"<b>{escape(text)}</b>" if differs else escape(text) for text in texts)))
    return _table(("", *(run.name for run in comparison.runs)), rows)


def _skill(run: RunScores, name: str, kind: str) -> str:
    model = run.scores["models"][name]
    key = "skill_vs_raw_fair" if kind.startswith("fair") else "skill_vs_raw"
    interval = model["ci95"][key]
    ends = _bracketed(*map(format_bound, interval)) if interval else ""
    return "" if name == "raw" else f"{format_percent(model[key], sign=True)} {ends}".strip()


def _difference(run: RunScores, difference: float, ends: tuple[float, float]) -> str:
    if math.isnan(difference):
        return "–"
    text = "0" if difference == 0 else format_amount(difference, run.scores, sign=True)
    return f"{text} {_bracketed(*(format_amount(_known(end), run.scores, sign=True) for end in ends))}".strip()


def _bracketed(low: str, high: str) -> str:
    return "" if {low, high} & {"–", ""} else f"[{low}, {high}]"


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _small(text: str) -> str:
    """Return a number with its interval as HTML, the interval in small print."""
    number, bracket, rest = text.strip().partition(" [")
    return f"{escape(number)}<span class='ci'>[{escape(rest)}</span>" if bracket else escape(number)


def _table(columns: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; the first cell of a row is a name, the other cells are HTML."""
    head = "".join(f"<th scope='col'>{escape(name)}</th>" if name else "<td></td>" for name in columns)
    body = "".join(
        f"<tr><th scope='row'>{escape(row[0])}</th>{''.join(f'<td>{cell}</td>' for cell in row[1:])}</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
