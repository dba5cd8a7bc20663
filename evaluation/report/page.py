"""The report: a single HTML page that needs no other files, works without its script and can be printed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from data_pipeline.common.files import atomic_write
from data_pipeline.ledger import omission_texts
from evaluation.report.drawing import sections_html, write_files
from evaluation.report.explorer import definition_of, explorer_json
from evaluation.report.figures import draw_figures
from evaluation.report.headline import headline
from evaluation.report.provenance import provenance_list, term_list
from evaluation.report.score_tables import all_scores_table, html_table, sample_table, slice_tables
from evaluation.report.series import default_series, sample_size, sample_text
from evaluation.report.shown_data import MapData
from evaluation.report.tables import (
    display_of,
    fair_crps_footnote,
    forecast_title,
    format_years,
    member_count_table,
    members_table,
    omission_note,
    omission_parts,
)
from evaluation.report.verdict import comparisons_note, pairs_table, power_note, verdict


def write_report(
    folder: Path, scores: Mapping[str, Any], fields: MapData, run: Mapping[str, str] | None = None
) -> None:
    """Write `report.html`, every figure as `figures/NAME.png`, and its numbers as `figures/NAME.csv` into `folder`.

    `run` has facts of this run for the provenance.
    """
    drawings = draw_figures(scores, fields)
    for drawing in drawings.values():
        write_files(folder / "figures", drawing)
    with atomic_write(folder / "report.html") as file:
        file.write(page(scores, sections_html(drawings.values()), run).encode())


def page(scores: Mapping[str, Any], figures: str = "", run: Mapping[str, str] | None = None) -> str:
    """Return the page as HTML; `figures` are its sections with figures."""
    facts = [
        f"{scores['split']} {format_years(scores)}",
        f"{scores['n_dates']} starts, {scores['n_forecasts']} forecasts",
        f"{scores['members']} raw members",
        scores["grid"],
        *filter(None, [omission_note(scores)]),
    ]
    shown = default_series(scores)
    parts = {
        "title": escape(forecast_title(scores)),
        "headline": headline(scores),
        "facts": " · ".join(map(escape, facts)),
        "warnings": "".join(f'<p class="warning">{escape(text)}</p>' for text in scores["warnings"]),
        "verdict": verdict(scores),
        "power": f'<p class="power">{escape(text)}</p>' if (text := power_note(scores)) else "",
        "comparisons": comparisons_note(scores),
        "sample": sample_text(sample_size(scores, "all", "all")),
        "table": html_table(scores),
        "fair": escape(fair_crps_footnote(scores)),
        "all_scores": all_scores_table(scores),
        "pairs": pairs_section(scores),
        "members_section": members_section(scores),
        "units": escape(display_of(scores).units),
        "members": scores["members"],
        "default_meaning": escape(f"{shown.title}. {definition_of(scores, shown)}"),
        "slices": "".join(map(scrolling, slice_tables(scores))),
        "figures": figures,
        "sizes": member_count_section(scores),
        "left_out": left_out_list(scores),
        "samples": sample_table(scores),
        "definitions": definitions_list(scores),
        "provenance": provenance_list(scores, run or {}),
    }
    contents = contents_list(_template("page.html").safe_substitute(parts))
    beside = {"style": _resource("page.css"), "script": _resource("page.js"), "data": explorer_json(scores)}
    return _template("page.html").substitute(parts, contents=contents, **beside)


def scrolling(table: str, label: str = "Scores of parts of the forecasts") -> str:
    """Return a table in a frame that scrolls on a narrow screen, also by the keyboard."""
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}">{table}</div>'


def contents_list(text: str) -> str:
    """Return links to the sections of a page that have an id and a heading."""
    sections = re.findall(r'<section[^>]* id="([^"]+)"[^>]*>\s*<h2>(.*?)</h2>', text)
    return "".join(f'<li><a href="#{name}">{title}</a></li>' for name, title in sections)


def pairs_section(scores: Mapping[str, Any]) -> str:
    """Return the table of pairs of models as HTML; "" if raw is compared with a single model."""
    if not (table := pairs_table(scores)):
        return ""
    units = escape(display_of(scores).units)
    return (
        f"<details><summary>Which model beats which</summary>{scrolling(table, 'Differences between models')}"
        f'<p class="note">The CRPS of the row less that of the column, in {units}; negative: the row is better. '
        "<i>better</i> and <i>worse</i>: the p-value, adjusted for all pairs, is below 0.05. "
        f"{escape(scores['best_set']['text'])}</p></details>"
    )


def left_out_list(scores: Mapping[str, Any]) -> str:
    """Return the forecasts and cells that were scored, and those that were left out, with their numbers."""
    ledger = scores["ledger"]
    counted = [
        f"{ledger['used']:,} of {ledger['forecasts']:,} forecasts that are valid on the scored dates are used",
        *omission_texts(ledger),
        *(omission_parts(scores) or ["no cell of these forecasts is left out"]),
    ]
    parts = [part[0].upper() + part[1:] for part in counted] + leak_audit_parts(scores)
    return "<ul>" + "".join(f"<li>{escape(part)}.</li>" for part in parts) + "</ul>"


def leak_audit_parts(scores: Mapping[str, Any]) -> list[str]:
    """Return how far the dates of each fit are from the scored dates, and the notes of the audit."""
    found = scores["leak_audit"]
    days = [
        f"The nearest date of a fit of {name} is {model['nearest_days']:,} days from the scored dates"
        for name, model in found["models"].items()
        if model["nearest_days"] is not None
    ]
    return [*days, *found["notes"]]


def definitions_list(scores: Mapping[str, Any]) -> str:
    """Return the definition of every score and diagram with its reference."""
    found = [*scores["definitions"].values(), *scores["diagram_definitions"].values()]
    return term_list(
        (
            one["title"][0].upper() + one["title"][1:],
            f"{_with_code(one['text'])} <span class='reference'>{escape(one['reference'])}</span>",
        )
        for one in found
    )


def member_count_section(scores: Mapping[str, Any]) -> str:
    """Return the section on the number of members; "" if only all members were scored."""
    if "gate" not in scores["models"]["raw"]:
        return ""
    return _template("member_counts.html").substitute(table=member_count_table(scores))


def members_section(scores: Mapping[str, Any]) -> str:
    """Return the section on the members that `correct` writes; "" if there is no corrector."""
    if not (table := members_table(scores)):
        return ""
    return _template("members.html").substitute(table=table, members=scores["members"], levels=scores["levels"])


def _with_code(text: str) -> str:
    """Return text as HTML; names between backticks are code."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(text))


def _template(name: str) -> Template:
    return Template(_resource(name))


def _resource(name: str) -> str:
    return files("evaluation.report").joinpath(name).read_text("utf-8")
