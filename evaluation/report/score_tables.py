"""Tables of the page: the scorecard, the headline and all scores."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from data_pipeline.task import Variable
from evaluation.report.series import Series, list_series, slice_title
from evaluation.report.shown_data import TargetReport
from evaluation.report.tables import (
    INVALID,
    PageTable,
    format_amount,
    format_bound,
    format_percent,
    format_ratio,
    variable_title,
    with_ends,
)
from evaluation.tables.score_rows import GLOBAL, OVERALL, ScoreRow

HEADLINE_COLUMNS = {
    "fair CRPS": "scores:crps_fair",
    "vs raw, fair": "skill_vs_raw_fair",
    "vs EMOS, fair": "skill_vs_emos_fair",
    "vs climatology, fair": "skill_vs_climatology_fair",
    "captured, fair": "captured_fair",
    "spread / error": "scores:spread_skill",
    "bias": "scores:bias",
    "RMSE": "scores:rmse",
    "plain CRPS": "scores:crps",
    "vs raw, plain": "skill_vs_raw",
    "captured, plain": "captured",
}
"""Columns of the headline table, and the keys of their series."""
WRITTEN_COLUMNS = ("plain CRPS", "vs raw, plain", "RMSE", "bias", "spread / error")
"""Columns of the members as written."""
NO_REFERENCE = "–"


def headline_table(scores: Mapping[str, Any]) -> PageTable:
    """Return the table of all models and of the members that `correct` writes, without empty columns."""
    series = {one.key: one for one in list_series(scores)}
    columns = {title: series[key] for title, key in HEADLINE_COLUMNS.items() if key in series}
    rows: list[list[str]] = []
    marks = {}
    for name, model in scores["models"].items():
        if name == scores["best"]["model"]:
            marks[len(rows)] = "best"
        rows.append([name, *(_headline_cell(name, model, one, series) for one in columns.values())])
        if model["members"]:
            marks[len(rows)] = "written"
            rows.append([f"{name} as {scores['members']} members", *_written_cells(model["members"], columns)])
    if oracle := scores["oracle"]:
        found = {
            "plain CRPS": format_amount(oracle["crps_plain"], scores),
            "fair CRPS": format_amount(oracle["crps"], scores),
            "captured, fair": "100 %",
            "captured, plain": "100 %",
            "spread / error": format_ratio(oracle["spread_skill"]),
        }
        rows.append(["oracle", *(found.get(title, NO_REFERENCE) for title in columns)])
    return PageTable("Scores of all models", ["model", *columns], rows, marks=marks)


def _headline_cell(name: str, model: Mapping[str, Any], one: Series, series: Mapping[str, Series]) -> str:
    """Return a cell; the plain score, marked, where the fair one is not valid."""
    mark = INVALID if "fair" in one.key and not model["crps_fair_valid"] else ""
    shown = series[one.key.removesuffix("_fair")] if mark and one.place[0] != "scores" else one
    return NO_REFERENCE if name in shown.without else shown.cell(model, mark)


def _written_cells(members: Mapping[str, Any], columns: Mapping[str, Series]) -> Iterator[str]:
    """Yield the cells of a model's members as written, which have plain scores only."""
    entry = {**members, "ci95": {key: members["ci95"][key] for key in ("crps", "skill_vs_raw")}}
    for title, one in columns.items():
        yield one.cell(entry) if title in WRITTEN_COLUMNS else NO_REFERENCE


def all_scores_table(scores: Mapping[str, Any]) -> PageTable:
    """Return the table of every score (rows) of every model (columns), with intervals."""
    rows = [
        [f"{one.title}{f' ({one.units})' if one.units else ''}", *map(one.cell, scores["models"].values())]
        for one in list_series(scores)
        if one.place[0] == "scores"
    ]
    return PageTable("All scores of all models", ["score", *scores["models"]], rows)


def scorecard(targets: Iterable[TargetReport]) -> PageTable:
    """Return the gain of the shown model of each target (rows: lead times; columns: regions and seasons).

    A mark says what the 95 % interval shows: ▲ better than raw, ▼ worse; without a mark it contains 0.
    """
    rows: list[list[str]] = []
    regions: dict[str, str] = {}
    seasons: dict[str, str] = {}
    for target in targets:
        whole = [row for row in target.gains if row.hour == OVERALL == row.members]
        found = {(row.lead_time, row.region, row.season): row for row in whole}
        leads = list(dict.fromkeys(row.lead_time for row in whole))
        regions |= {label: slice_title("region", label) for label in target.scores["slices"]["region"]}
        regions.pop("unweighted", None)
        seasons |= {label: label for label in target.scores["slices"]["season"]}
        parts = [(label, OVERALL) for label in regions] + [(GLOBAL, label) for label in seasons]
        title = variable_title(Variable.parse(target.scores["target"]))
        for lead in leads if len(leads) > 2 else leads[-1:]:
            cells = [_gain_cell(found.get((lead, *part))) for part in parts]
            rows.append([f"{title}, {'all' if lead == OVERALL else slice_title('lead', lead)}", *cells])
    above = [("", 1), ("region", len(regions)), ("season", len(seasons))]
    return PageTable("Gain of the shown model over raw", ["", *regions.values(), *seasons], rows, above)


def _gain_cell(row: ScoreRow | None) -> str:
    if row is None or math.isnan(row.skill):
        return NO_REFERENCE
    interval = None if math.isnan(row.skill_low) else (row.skill_low, row.skill_high)
    mark = "" if interval is None else "▲ " if interval[0] > 0 else "▼ " if interval[1] < 0 else ""
    return mark + with_ends(format_percent(row.skill, sign=True), map(format_bound, interval or ()))
