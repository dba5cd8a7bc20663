"""The report: a single HTML page of all targets that needs no other files and can be printed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from data_pipeline.common.files import write_text
from data_pipeline.task import Variable
from evaluation.report.drawing import FIRST_SCREEN, Drawing, sections_of, write_files
from evaluation.report.figures import draw_figures
from evaluation.report.headline import cannot_say, headline, scored_on
from evaluation.report.provenance import provenance_terms
from evaluation.report.rendering import render_page
from evaluation.report.score_tables import all_scores_table, headline_table, scorecard
from evaluation.report.shown_data import TargetReport
from evaluation.report.tables import (
    display_of,
    fair_crps_footnote,
    forecast_title,
    member_count_table,
    method_table,
    variable_title,
)
from evaluation.report.verdict import comparisons_note, pairs_table, verdict


def write_report(folder: Path, targets: Sequence[TargetReport], run: Mapping[str, str] | None = None) -> None:
    """Write `report.html`, and every figure as `figures/NAME.png` with its numbers as `figures/NAME.csv`.

    Each target has its own `figures`. `run` has facts of this run for the provenance.
    """
    drawings = [draw_figures(target) for target in targets]
    for target, found in zip(targets, drawings, strict=True):
        for drawing in found.values():
            write_files(folder / target.folder / "figures", drawing)
    write_text(folder / "report.html", page(targets, drawings, run))


def page(
    targets: Sequence[TargetReport],
    drawings: Sequence[Mapping[str, Drawing]] | None = None,
    run: Mapping[str, str] | None = None,
) -> str:
    """Return the page as HTML."""
    every = [target.scores for target in targets]
    titles = [variable_title(Variable.parse(scores["target"])) for scores in every]
    return render_page(
        "report.html",
        title=", ".join([*titles[:-1], forecast_title(every[-1])]),
        headlines=[headline(scores) for scores in every],
        scorecard=scorecard(targets),
        scored_on=_each(titles, [list(scored_on(scores)) for scores in every]),
        warnings=_each(titles, [scores["warnings"] for scores in every]),
        cannot_say=_each(titles, [list(cannot_say(scores)) for scores in every]),
        targets=[
            _part(target, title if len(every) > 1 else "", list(found.values()))
            for target, title, found in zip(targets, titles, drawings or [{}] * len(every), strict=True)
        ],
        provenance=provenance_terms(every[0], run or {}).items(),
    )


def _part(target: TargetReport, title: str, drawings: Sequence[Drawing]) -> dict[str, Any]:
    """Return what the page shows of one target below the first screen."""
    scores = target.scores
    return {
        "title": title,
        "folder": f"{target.folder}/" if target.folder else "",
        "first": [drawing for drawing in drawings if drawing.section == FIRST_SCREEN],
        "verdict": verdict(scores),
        "comparisons": comparisons_note(scores),
        "headline_table": headline_table(scores),
        "units": display_of(scores).units,
        "members": scores["members"],
        "fair": fair_crps_footnote(scores),
        "pairs": pairs_table(scores),
        "best_set": f"{scores['best_set']['text']} {scores['power']['text']}",
        "all_scores": all_scores_table(scores),
        "definitions": [(one["title"], one["text"]) for one in scores["definitions"].values()],
        "sections": sections_of(drawings),
        "member_counts": member_count_table(scores),
        "methods": method_table(scores),
    }


def _each(titles: Sequence[str], texts: Sequence[Sequence[str]]) -> list[str]:
    """Return the texts of all targets: those of all of them once, others after the title of their target."""
    common = [text for text in texts[0] if all(text in other for other in texts)]
    own = [
        f"{title}: {text}" for title, found in zip(titles, texts, strict=True) for text in found if text not in common
    ]
    return common + own
