"""The model card of the shown corrector, `model_card.md`: what it is, its scores and checks, in the form of Mitchell et
al. (2019, doi:10.1145/3287560.3287596)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from evaluation.report.headline import headline
from evaluation.report.score_tables import headline_table
from evaluation.report.tables import display_of, fair_crps_footnote, forecast_title, format_years, omission_note

_FRONT = """---
library_name: deepweather
tags:
- weather
- ensemble-post-processing
---
"""


def model_card(scores: Mapping[str, Any], facts: Mapping[str, str], count: int) -> str:
    """Return the card of the shown corrector from `scores` and the `facts` of `summary_rows`, as Markdown.

    `count` is the number of correctors of a cross-validation.
    """
    name, table = scores["best"]["model"], headline_table(scores)
    own = dict(facts)
    if sha256 := scores["inputs"]["correctors"].get(name):
        own["SHA-256"] = f"begins with {sha256}"
    if count > 1:
        own["cross-validation"] = f"the first of {count} correctors; each is scored on dates that it has not seen"
    footnotes = [text for text in (fair_crps_footnote(scores), omission_note(scores), scores["power"]["text"]) if text]
    parts = {
        f"{name}: {forecast_title(scores)}": [headline(scores)],
        "Intended use": [
            f"It corrects ensembles of {facts['targets']}, {facts['lead times']} ahead, from {facts['inputs']}. "
            "`deepweather correct corrector=FILE input=FORECAST output=FILE` applies it."
        ],
        "Not intended for": [
            "- other variables, lead times and grids than those of the next table;\n"
            "- another forecast model, or another version of it, than that of the training data: its errors differ;\n"
            "- statements about years, places or events for which the scores below have no number."
        ],
        "Corrector and training data": [_table(["fact", "value"], own.items())],
        "Scores": [
            f"{scores['split'].capitalize()} {format_years(scores)}: {scores['n_dates']} starts, "
            f"{scores['n_forecasts']} forecasts; averages: {scores['weights']}. Amounts are in "
            f"{display_of(scores).units}, 95 % intervals over starts in brackets.",
            _table(table.columns, table.rows),
            *footnotes,
        ],
        "Checks": ["\n".join(f"- {text}" for text in [*_audit(scores["leak_audit"], name), *scores["warnings"]])],
        "Licence": ["The file of the corrector states none."],
    }
    sections = ["\n\n".join([f"## {title}", *texts]) for title, texts in parts.items()]
    return _FRONT + "\n\n".join(sections).removeprefix("#") + "\n"


def _audit(audit: Mapping[str, Any], name: str) -> list[str]:
    """Return what the leak audit found about a corrector."""
    known = audit["models"].get(name)
    found = ["Leak audit: no part was fitted on a scored date"]
    if known:
        found[0] += f"; the nearest date of a fit is {known['nearest_days']} days from a scored date ({known['part']})"
    return [f"{found[0]}.", *audit["notes"]]


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("\n", " ").replace("|", "\\|")
