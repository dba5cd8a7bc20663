"""The summary of a corrector for its user: a few lines of text, or a table for a notebook."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from data_pipeline.common.messages import format_values
from data_pipeline.dates import Dates
from data_pipeline.formats.variables import describe_variables
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from models.provenance.choices import choice_text
from models.provenance.training_dates import seen_dates


def summary_rows(task: Task, grid: Grid, spec: Mapping[str, Any], provenance: Mapping[str, Any]) -> dict[str, str]:
    """Return the facts about a corrector: what it corrects, from what, on which data, when, and how well.

    A fact that the provenance does not state is left out.
    """
    options = {name: value for name, value in spec.items() if name != "_target_" and not isinstance(value, Mapping)}
    rows = {
        "model": str(spec.get("_target_", "")).rpartition(".")[2] or "unknown",
        "options": ", ".join(f"{name}={value}" for name, value in options.items()),
        "targets": describe_variables(task.targets),
        "lead times": f"{format_values(list(task.lead_times))} h",
        "inputs": describe_variables(task.inputs),
        "further inputs": ", ".join([*map(str, task.further), *task.static]),
        "grid": str(grid),
        "members": str(provenance.get("members", "")),
        "trained on": _dates(provenance, "train"),
        "validated on": _dates(provenance, "val"),
        "data": str(provenance.get("data", "")),
        "made": str(provenance.get("made", "")),
        "version": str(provenance.get("deepweather", "")),
        "validation": validation_text(provenance),
        "chosen": "; ".join(map(choice_text, provenance.get("choices", []))),
        "unfitted": "; ".join(unfitted_notes(provenance.get("unfitted") or {})),
    }
    return {name: text for name, text in rows.items() if text}


def validation_text(provenance: Mapping[str, Any]) -> str:
    """Return the CRPS of the validation, and by how much it is lower than the raw ensemble's."""
    crps, raw = provenance.get("validation_crps"), provenance.get("validation_crps_raw")
    if crps is None:
        return ""
    text = f"CRPS {crps:.4g} in normalised units"
    if raw:
        change = 100 * (1 - crps / raw)
        text += f", {abs(change):.1f} % {'lower' if change >= 0 else 'higher'} than the raw ensemble's {raw:.4g}"
    return text


def as_text(rows: Mapping[str, str]) -> str:
    """Return the facts as lines."""
    return "\n".join(["<deepweather.Corrector>", *(f"  {name + ':':15} {text}" for name, text in rows.items())])


def as_html(rows: Mapping[str, str]) -> str:
    """Return the facts as a table for a notebook."""
    cells = "".join(
        f'<tr><th scope="row" style="text-align:left">{escape(name)}</th>'
        f'<td style="text-align:left">{escape(text)}</td></tr>'
        for name, text in rows.items()
    )
    return f"<table><caption>deepweather.Corrector</caption><tbody>{cells}</tbody></table>"


def _dates(provenance: Mapping[str, Any], name: str) -> str:
    dates: Dates | None = seen_dates(provenance, name)
    if dates is None or not dates.spans:
        return ""
    ledger = provenance.get("ledger", {}).get(name, {})
    used = f", {ledger['used']:,} of {ledger['forecasts']:,} forecasts" if ledger else ""
    return f"{dates}{used}"


def unfitted_notes(counts: Mapping[str, Any]) -> list[str]:
    """Return the sentences for the user about the `count_unfitted` of a corrector."""
    found = []
    for name, text in (
        ("targets", "could not be fitted: there are too few training cases, or the forecast has no errors, or no fit "
         "beats the raw ensemble in training"),
        ("penalised", "are not determined by their training cases alone, as in cells that are nearly always dry: a "
         "penalty keeps their coefficients near least squares"),
    ):  # fmt: skip
        by_target = counts.get(name, {})
        total = counts.get("cells", 0) if name == "targets" else sum(by_target.values())
        if total:
            which = "; ".join(f"{target}: {n}" for target, n in by_target.items())
            found.append(
                f"{total} of {counts['of']} regressions (one for each cell, lead time and target"
                f"{'; ' * bool(which)}{which}) {text}"
            )
    return found
