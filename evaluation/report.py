"""The report: one page that opens anywhere, reads in a minute, and prints.

Everything in it comes from the scores and from `pictures`; nothing is fetched when it is opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from data_pipeline.files import atomic_write
from evaluation.pictures import Fields, best_model, draw_pictures
from evaluation.style import inline_svg, save_png
from evaluation.tables import amount, end, html_table, percent, size_table, subject, years

ALT = {
    "gain": "Bars of the captured part of the reachable gain",
    "crps_raw": "Map of the CRPS of the raw ensemble",
    "improvement": "Map of the improvement over the raw ensemble",
    "bias": "Maps of the bias before and after correction",
    "skill": "Skill by lead time, region and season",
    "histograms": "Rank and PIT histograms",
    "spread": "Ratio of spread to error by region",
    "example": "One forecast before and after correction",
}
"""Every picture the page has a place for, in words."""


def write_report(folder: Path, scores: Mapping[str, Any], fields: Fields) -> None:
    """Write `report.html`, and every picture in it as `figures/NAME.png`, into `folder`."""
    pictures = draw_pictures(scores, fields)
    for name, figure in pictures.items():
        save_png(figure, folder / "figures" / f"{name}.png")
    images = {name: inline_svg(figure, name, ALT[name]) for name, figure in pictures.items()}
    with atomic_write(folder / "report.html") as file:
        file.write(page(scores, fields, images).encode())


def page(scores: Mapping[str, Any], fields: Fields, images: Mapping[str, str]) -> str:
    """Return the page as HTML; the section of a picture that is not in `images` is hidden."""
    resources = files("evaluation")
    facts = [
        f"{scores['split']} years {years(scores)}",
        f"{scores['n_dates']} starts, {scores['n_forecasts']} forecasts",
        f"{scores['members']} raw members",
        scores["grid"],
    ]
    return Template(resources.joinpath("report.html").read_text("utf-8")).substitute(
        {f"image_{name}": images.get(name, "") for name in ALT},
        style=resources.joinpath("report.css").read_text("utf-8"),
        title=escape(subject(scores)),
        headline=headline(scores),
        facts=" · ".join(map(escape, facts)),
        warnings="".join(f'<p class="warning">{escape(text)}</p>' for text in scores["warnings"]),
        table=html_table(scores),
        best=escape(best_model(scores)),
        units=escape(scores["units"]),
        members=scores["members"],
        lead=f"{fields.lead_time} h",
        example=escape(fields.example.valid),
        sizes=size_section(scores),
        gain_hidden="" if "gain" in images else "hidden",
    )


def size_section(scores: Mapping[str, Any]) -> str:
    """Return the section on the number of members; nothing where all members alone were scored."""
    if "gate" not in scores["models"]["raw"]:
        return ""
    return Template(files("evaluation").joinpath("sizes.html").read_text("utf-8")).substitute(table=size_table(scores))


def headline(scores: Mapping[str, Any]) -> str:
    """Return the result in a sentence or two, as HTML."""
    best = best_model(scores)
    model = scores["models"][best]
    skill, emos = model["skill_vs_raw"], model["skill_vs_emos"]
    if skill is None:
        crps = f"{amount(model['crps'], scores)} {escape(scores['units'])}"
        return f"<b>{escape(best)}</b> has a CRPS of {crps}."
    verb = "lowers" if skill >= 0 else "raises"
    text = f"<b>{escape(best)}</b> {verb} the CRPS of the raw ensemble by {_change(model, 'skill_vs_raw')}"
    if emos is not None and best != "emos":
        verb = "" if (emos >= 0) == (skill >= 0) else "lowers " if emos >= 0 else "raises "
        text += f" and {verb}that of EMOS by {_change(model, 'skill_vs_emos')}"
    text += "."
    if model["captured"] is not None and best != "climatology":
        share = percent(model["captured"])
        text += f" That is <b>{share}</b> of what any forecast from the same information could gain."
    return text


def _change(model: Mapping[str, Any], key: str) -> str:
    """Size of a change whose direction is said in words, with its interval."""
    sign = 1 if model[key] >= 0 else -1
    text = f"<b>{percent(sign * model[key])}</b>"
    if interval := model["ci95"][key]:
        low, high = sorted(sign * value for value in interval)
        text += f" <span class='ci'>[{end(low)}, {percent(high)}]</span>"
    return text
