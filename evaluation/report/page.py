"""The report: a single HTML page that needs no other files and can be printed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from data_pipeline.common.files import atomic_write
from data_pipeline.ledger import omission_texts
from evaluation.report.drawing import Drawing, sections_of, write_files
from evaluation.report.figures import draw_figures
from evaluation.report.headline import headline
from evaluation.report.provenance import provenance_terms
from evaluation.report.rendering import render_page
from evaluation.report.score_tables import all_scores_table, headline_table, sample_tables, series_by_part
from evaluation.report.series import sample_size, sample_text
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
        file.write(page(scores, drawings.values(), run).encode())


def page(scores: Mapping[str, Any], drawings: Iterable[Drawing] = (), run: Mapping[str, str] | None = None) -> str:
    """Return the page as HTML."""
    facts = [
        f"{scores['split']} {format_years(scores)}",
        f"{scores['n_dates']} starts, {scores['n_forecasts']} forecasts",
        f"{scores['members']} raw members",
        scores["grid"],
        *filter(None, [omission_note(scores)]),
    ]
    return render_page(
        "report.html",
        title=forecast_title(scores),
        headline=headline(scores),
        facts=facts,
        warnings=scores["warnings"],
        verdict=verdict(scores),
        power=power_note(scores),
        comparisons=comparisons_note(scores),
        sample=sample_text(sample_size(scores, "region", "global")),
        headline_table=headline_table(scores),
        fair=fair_crps_footnote(scores),
        all_scores=all_scores_table(scores),
        pairs=pairs_table(scores),
        best_set=scores["best_set"]["text"],
        members_table=members_table(scores),
        units=display_of(scores).units,
        members=scores["members"],
        levels=scores["levels"],
        series=list(series_by_part(scores)),
        sections=sections_of(drawings),
        member_counts=member_count_table(scores),
        left_out=left_out_list(scores),
        samples=sample_tables(scores),
        definitions=definitions_of(scores),
        provenance=provenance_terms(scores, run or {}).items(),
    )


def left_out_list(scores: Mapping[str, Any]) -> list[str]:
    """Return the forecasts and cells that were scored, and those that were left out, with their numbers."""
    ledger = scores["ledger"]
    counted = [
        f"{ledger['used']:,} of {ledger['forecasts']:,} forecasts that are valid on the scored dates are used",
        *omission_texts(ledger),
        *(omission_parts(scores) or ["no cell of these forecasts is left out"]),
    ]
    parts = [part[0].upper() + part[1:] for part in counted] + leak_audit_parts(scores)
    return [f"{part}." for part in parts]


def leak_audit_parts(scores: Mapping[str, Any]) -> list[str]:
    """Return how far the dates of each fit are from the scored dates, and the notes of the audit."""
    found = scores["leak_audit"]
    days = [
        f"The nearest date of a fit of {name} is {model['nearest_days']:,} days from the scored dates"
        for name, model in found["models"].items()
        if model["nearest_days"] is not None
    ]
    return [*days, *found["notes"]]


def definitions_of(scores: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield title and text, with its reference, of every score and diagram."""
    for one in [*scores["definitions"].values(), *scores["diagram_definitions"].values()]:
        yield one["title"][0].upper() + one["title"][1:], f"{one['text']}\n{one['reference']}"
