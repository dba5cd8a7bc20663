"""The page of `deepweather compare` over training runs."""

from __future__ import annotations

from html import escape
from importlib.resources import files
from string import Template

from evaluation.report.page import scrolling
from evaluation.run_table import RunTable


def run_table_page(table: RunTable) -> str:
    """Return the page as HTML."""
    head = "".join(f"<th scope='col'>{escape(title)}</th>" for title in table.titles)
    rows = []
    for run in table.runs:
        name, *texts = map(escape, table.cells(run))
        cells = "".join(f"<td>{text}</td>" for text in texts)
        rows.append(f"<tr><th scope='row'>{name}</th>{cells}</tr>")
    body = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    done = sum(run.finished for run in table.runs)
    pruned = sum(run.state.startswith("pruned") for run in table.runs)
    parts = {
        "facts": f"{len(table.runs)} runs: {done} done, {pruned} pruned, {len(table.runs) - done - pruned} unfinished",
        "notes": "".join(f'<p class="warning">{escape(text)}</p>' for text in table.notes()),
        "table": scrolling(body, "Training runs"),
        "style": files("evaluation.report").joinpath("page.css").read_text("utf-8"),
    }
    return Template(files("evaluation.report").joinpath("run_table.html").read_text("utf-8")).substitute(parts)
