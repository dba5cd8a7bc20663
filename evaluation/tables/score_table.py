"""The tidy table of all scores, `scores.csv`: a row for each model, score, lead time, region and season."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

from data_pipeline.common.files import atomic_path
from evaluation.tables.score_rows import GLOBAL, OVERALL, ScoreRow

ROW_COLUMNS = (
    "part", "model", "form", "score", "label", "target", "units", "lead_time", "region", "season", "value", "low",
    "high", "skill", "skill_low", "skill_high", "n_forecasts", "n_dates",
)  # fmt: skip
"""`part` is `all`, or names what the forecasts are selected by: `lead`, `region`, `season`, or several with `+`."""


def write_score_table(path: Path, rows: Iterable[ScoreRow]) -> None:
    """Write the rows with a scored cell, of all hours and all members, to a CSV file, rows of all forecasts first.

    Undefined numbers are empty, and so is the lead time (hours) of a row of all lead times: columns have one type.
    """
    kept = [(_part(row), row) for row in rows if row.n_forecasts and row.hour == row.members == OVERALL]
    with atomic_path(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(ROW_COLUMNS)
        for part, row in sorted(kept, key=lambda one: len(one[0])):
            lead_time = "" if row.lead_time == OVERALL else row.lead_time
            cells = row._asdict() | {"part": "+".join(part) or OVERALL, "lead_time": lead_time}
            table.writerow(_as_text(cells[column]) for column in ROW_COLUMNS)


def _part(row: ScoreRow) -> list[str]:
    chosen = {"lead": row.lead_time != OVERALL, "region": row.region != GLOBAL, "season": row.season != OVERALL}
    return [kind for kind, is_chosen in chosen.items() if is_chosen]


def _as_text(value: object) -> str:
    return f"{value:.9g}" * (value == value) if isinstance(value, float) else str(value)
