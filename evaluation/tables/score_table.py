"""The tidy table of all scores, `scores.csv`: a row for each model, score, target, lead time, region and season."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

from data_pipeline.common.files import atomic_path
from evaluation.tables.score_rows import OVERALL, ScoreRow

ROW_COLUMNS = [name for name in ScoreRow._fields if name not in ("hour", "members")]


def write_score_table(path: Path, rows: Iterable[ScoreRow]) -> None:
    """Write the rows with a scored cell, of all hours and all members, to a CSV file; undefined numbers are empty."""
    with atomic_path(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(ROW_COLUMNS)
        for row in rows:
            if row.n_forecasts and row.hour == row.members == OVERALL:
                table.writerow(_as_text(getattr(row, column)) for column in ROW_COLUMNS)


def _as_text(value: object) -> str:
    return f"{value:.9g}" * (value == value) if isinstance(value, float) else str(value)
