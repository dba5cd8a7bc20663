"""The report: a single HTML page that needs no other files and can be printed."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from data_pipeline.common.files import atomic_write
from evaluation.report.figure_style import inline_svg, save_png
from evaluation.report.figures import MapData, draw_figures
from evaluation.report.tables import (
    display_of,
    fair_crps_footnote,
    forecast_title,
    format_amount,
    format_bound,
    format_percent,
    format_years,
    html_table,
    member_count_table,
    members_table,
    omission_note,
)
from evaluation.scoreboard import headline_keys
from evaluation.shown_corrector import OPTION, VALIDATION

ALT = {
    "gain": "Bars of the captured share of the oracle's gain",
    "crps_raw": "Map of the CRPS of the raw ensemble",
    "improvement": "Map of the improvement over the raw ensemble",
    "bias": "Maps of the bias before and after correction",
    "skill": "Skill by lead time, region and season",
    "histograms": "Rank and PIT histograms",
    "spread": "Ratio of spread to error by region",
    "example": "One forecast before and after correction",
}
"""Alternative text of every figure of the page."""


def write_report(folder: Path, scores: Mapping[str, Any], fields: MapData) -> None:
    """Write `report.html` and every figure as `figures/NAME.png` into `folder`."""
    figures = draw_figures(scores, fields)
    for name, figure in figures.items():
        save_png(figure, folder / "figures" / f"{name}.png")
    images = {name: inline_svg(figure, name, ALT[name]) for name, figure in figures.items()}
    with atomic_write(folder / "report.html") as file:
        file.write(page(scores, fields, images).encode())


def page(scores: Mapping[str, Any], fields: MapData, images: Mapping[str, str]) -> str:
    """Return the page as HTML; the section of the gain figure is hidden if `images` lacks it."""
    resources = files("evaluation.report")
    facts = [
        f"{scores['split']} {format_years(scores)}",
        f"{scores['n_dates']} starts, {scores['n_forecasts']} forecasts",
        f"{scores['members']} raw members",
        scores["grid"],
        *filter(None, [omission_note(scores)]),
    ]
    return Template(resources.joinpath("page.html").read_text("utf-8")).substitute(
        {f"image_{name}": images.get(name, "") for name in ALT},
        style=resources.joinpath("page.css").read_text("utf-8"),
        title=escape(forecast_title(scores)),
        headline=headline(scores),
        facts=" · ".join(map(escape, facts)),
        warnings="".join(f'<p class="warning">{escape(text)}</p>' for text in scores["warnings"]),
        table=html_table(scores),
        fair=escape(fair_crps_footnote(scores)),
        members_section=members_section(scores),
        best=escape(scores["best"]["model"]),
        units=escape(display_of(scores).units),
        members=scores["members"],
        lead=f"{fields.lead_time} h",
        example=escape(fields.example.valid),
        sizes=member_count_section(scores),
        gain_hidden="" if "gain" in images else "hidden",
    )


def member_count_section(scores: Mapping[str, Any]) -> str:
    """Return the section on the number of members; "" if only all members were scored."""
    if "gate" not in scores["models"]["raw"]:
        return ""
    return Template(files("evaluation.report").joinpath("member_counts.html").read_text("utf-8")).substitute(
        table=member_count_table(scores)
    )


def members_section(scores: Mapping[str, Any]) -> str:
    """Return the section on the members that `correct` writes; "" if there is no corrector."""
    if not (table := members_table(scores)):
        return ""
    template = Template(files("evaluation.report").joinpath("members.html").read_text("utf-8"))
    return template.substitute(table=table, members=scores["members"], levels=scores["levels"])


def headline(scores: Mapping[str, Any]) -> str:
    """Return the main result as HTML; gains are by the fair CRPS where it is valid."""
    name = scores["best"]["model"]
    model = scores["models"][name]
    raw, captured, emos = headline_keys(model)
    if model[raw] is None:
        crps = f"{format_amount(model['crps'], scores)} {escape(display_of(scores).units)}"
        return f"<b>{escape(name)}</b> has a CRPS of {crps}."
    verb = "lowers" if model[raw] >= 0 else "raises"
    kind = "fair CRPS" if model["crps_fair_valid"] else "plain CRPS"
    text = f"<b>{escape(name)}</b> {verb} the {kind} of the raw ensemble by {_change(model, raw)}"
    if model[emos] is not None and name != "emos":
        verb = "" if (model[emos] >= 0) == (model[raw] >= 0) else "lowers " if model[emos] >= 0 else "raises "
        text += f" and {verb}that of EMOS by {_change(model, emos)}"
    text += "."
    if model[captured] is not None and name != "climatology":
        text += (
            f" That is <b>{format_percent(model[captured])}</b> of the gain of the oracle, which knows the state "
            "around which the members were drawn and the equations of nature."
        )
    return text + _choice(scores)


def _choice(scores: Mapping[str, Any]) -> str:
    """Return how the model of the headline was chosen, if there was a choice."""
    others = [name for name in scores["models"] if name not in ("raw", "climatology")]
    by = scores["best"]["by"]
    if by == OPTION or len(others) < 2:
        return ""
    if by == VALIDATION:
        return f" Of {len(others)} correctors it had the lowest CRPS on the validation years."
    return (
        f" Of {len(others)} correctors it has the lowest CRPS on these years. Scores on these years favour a model "
        "that they select: name the one that validation years chose as <code>shown_corrector=NAME</code>."
    )


def _change(model: Mapping[str, Any], key: str) -> str:
    """Return the absolute value of a change with its interval; the text around it states the direction."""
    sign = 1 if model[key] >= 0 else -1
    text = f"<b>{format_percent(sign * model[key])}</b>"
    if interval := model["ci95"][key]:
        low, high = sorted(sign * value for value in interval)
        text += f" <span class='ci'>[{format_bound(low)}, {format_percent(high)}]</span>"
    return text
