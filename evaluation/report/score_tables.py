"""Tables of the page: the headline, all scores, the headline score by slice, and the sample sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from evaluation.report.series import (
    Series,
    default_series,
    entry_of,
    kind_title,
    list_series,
    list_slices,
    sample_size,
    slice_title,
)
from evaluation.report.tables import INVALID, format_amount, format_ratio

HEADLINE_COLUMNS = {
    "fair CRPS": "scores:crps_fair",
    "vs raw, fair": "skill_vs_raw_fair",
    "vs EMOS, fair": "skill_vs_emos_fair",
    "vs climatology, fair": "skill_vs_climatology_fair",
    "captured, fair": "captured_fair",
    "spread / error": "scores:spread_skill",
    "bias": "scores:bias",
    "RMSE": "scores:rmse",
    "CRPS": "scores:crps",
    "vs raw, plain": "skill_vs_raw",
    "captured, plain": "captured",
}
"""Columns of the headline table, and the keys of their series."""
WRITTEN_KEYS = {
    "CRPS": "crps",
    "vs raw, plain": "skill_vs_raw",
    "RMSE": "rmse",
    "bias": "bias",
    "spread / error": "spread_skill",
}
"""Columns of the members as written, and the keys of their scores."""
NO_REFERENCE = "–"


def html_table(scores: Mapping[str, Any]) -> str:
    """Return the table of all models and of the members that `correct` writes, without empty columns."""
    series = {one.key: one for one in list_series(scores)}
    columns = {title: series[key] for title, key in HEADLINE_COLUMNS.items() if key in series}
    head = "".join(f"<th scope='col'>{title}</th>" for title in ["model", *columns])
    rows = []
    for name, model in scores["models"].items():
        cells = "".join(_headline_cell(name, model, one, series) for one in columns.values())
        mark = " class='best'" if name == scores["best"]["model"] else ""
        rows.append(f"<tr{mark}><th scope='row'>{escape(name)}</th>{cells}</tr>")
        if model["members"]:
            rows.append(_written_row(name, model["members"], columns, scores))
    if oracle := scores["oracle"]:
        found = {
            "CRPS": format_amount(oracle["crps_plain"], scores),
            "fair CRPS": format_amount(oracle["crps"], scores),
            "captured, fair": "100 %",
            "captured, plain": "100 %",
            "spread / error": format_ratio(oracle["spread_skill"]),
        }
        cells = "".join(f"<td>{found.get(title, NO_REFERENCE)}</td>" for title in columns)
        rows.append(f"<tr data-all-only><th scope='row'>oracle</th>{cells}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _headline_cell(name: str, model: Mapping[str, Any], one: Series, series: Mapping[str, Series]) -> str:
    """Return a cell; the plain score, marked, where the fair one is not valid. The script reads its attributes."""
    mark = INVALID if "fair" in one.key and not model["crps_fair_valid"] else ""
    shown = series[one.key.removesuffix("_fair")] if mark and one.place[0] != "scores" else one
    if shown.leaves_out(name):
        return f"<td>{NO_REFERENCE}</td>"
    marked = f" data-mark='{mark}'" if mark else ""
    return f"<td data-series='{escape(shown.key)}' data-model='{escape(name)}'{marked}>{shown.cell(model, mark)}</td>"


def _written_row(
    name: str, members: Mapping[str, Any], columns: Mapping[str, Series], scores: Mapping[str, Any]
) -> str:
    """Return the row of a model's members as written, which have plain scores only."""
    cells = []
    for title, one in columns.items():
        key = WRITTEN_KEYS.get(title)
        if key is None or members[key] is None:
            cells.append(f"<td>{NO_REFERENCE}</td>")
            continue
        entry = {"scores": {one.place[-1]: members[key]}, "ci95_scores": {one.place[-1]: members["ci95"].get(key)}}
        entry |= {one.place[0]: members[key]} if one.place[0] != "scores" else {}
        cells.append(f"<td>{one.cell(entry | {'ci95': members['ci95']})}</td>")
    title = f"<th scope='row'>{escape(name)} as {scores['members']} members</th>"
    return f"<tr class='written' data-all-only>{title}{''.join(cells)}</tr>"


def all_scores_table(scores: Mapping[str, Any]) -> str:
    """Return the table of every score (rows) of every model (columns), with intervals."""
    models = scores["models"]
    head = "".join(f"<th scope='col'>{escape(name)}</th>" for name in models)
    body = "".join(
        f"<tr><th scope='row'>{escape(one.title)}{f' ({escape(one.units)})' if one.units else ''}</th>"
        + "".join(
            f"<td data-series='{escape(one.key)}' data-model='{escape(name)}'>{one.cell(model)}</td>"
            for name, model in models.items()
        )
        + "</tr>"
        for one in list_series(scores)
        if one.place[0] == "scores"
    )
    return f"<table><thead><tr><th scope='col'>score</th>{head}</tr></thead><tbody>{body}</tbody></table>"


def slice_tables(scores: Mapping[str, Any]) -> Iterable[str]:
    """Yield a table of the headline score of all models for each kind of slice."""
    one, models = default_series(scores), list(scores["models"])
    for kind, labels in list_slices(scores).items():
        if kind == "all":
            continue
        head = "".join(f"<th scope='col'>{escape(text)}</th>" for text in [kind_title(kind), *models, "starts"])
        body = ""
        for label in labels:
            cells = "".join(
                f"<td>{NO_REFERENCE if one.leaves_out(name) else one.cell(entry_of(scores, name, kind, label))}</td>"
                for name in models
            )
            size = sample_size(scores, kind, label)
            starts = f"{size['n_dates']:,}" if size else NO_REFERENCE
            body += f"<tr><th scope='row'>{escape(slice_title(kind, label))}</th>{cells}<td>{starts}</td></tr>"
        yield f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def sample_table(scores: Mapping[str, Any]) -> str:
    """Return the table of the sample sizes of all slices."""
    head = "".join(
        f"<th scope='col'>{text}</th>" for text in ("by", "part", "starts", "forecasts", "cells of the grid")
    )
    body = ""
    for kind, labels in scores["slices"].items():
        for k, (label, size) in enumerate(labels.items()):
            first = f"<th scope='rowgroup' rowspan='{len(labels)}'>{escape(kind_title(kind))}</th>" if k == 0 else ""
            numbers = "".join(f"<td>{size[key]:,}</td>" for key in ("n_dates", "n_forecasts", "cells"))
            body += f"<tr>{first}<th scope='row'>{escape(slice_title(kind, label))}</th>{numbers}</tr>"
    return f"<table class='samples'><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
