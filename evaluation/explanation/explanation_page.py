"""The page of an explanation, one HTML file that needs no other file and no script, and its figures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator

from data_pipeline.grids.points import Points
from evaluation.explanation.explanation_tables import (
    ExplainedChange,
    ExplainedCorrector,
    input_table,
    place_table,
    show_number,
    summary_table,
    valid_text,
)
from evaluation.explanation.places import region_name
from evaluation.report.case_figures import FIELDS
from evaluation.report.drawing import Drawing, Panel
from evaluation.report.maps import DIVERGING, Coast, ColourScale, colour_scale, expert_drawing, map_panel
from evaluation.report.rendering import render_page
from evaluation.report.tables import variable_title

UNUSUAL = 2.0
"""Departure of a field, in typical departures of the training years, above which an input is called unusual.

Single cells are no measure: amounts of rain depart by 20 typical departures in some cell of every forecast."""
MOST_PROBLEMS = 30
"""Problems that are listed; a file can have one for each of hundreds of forecasts."""
DEFINITIONS = {
    "Part of an input": "The correction less the correction of the same forecast in which the ensemble mean of this "
    "input is its mean in the training years. Members keep their distances from each other. The parts of several "
    "inputs need not add up to the whole, because a network combines its inputs.",
    "Correction": "The corrected mean less the raw mean.",
    "Departure": "The ensemble mean less the mean of the training years in the cell, divided by the typical departure "
    "in the training years: the normaliser's units. A typical forecast has 1.",
    "Bias and spread": "The whole change of a normal distribution is (change of the mean)² + (change of the standard "
    "deviation)², its squared Wasserstein distance. Bias is the share of the first term, averaged over the area.",
    "Largest changes": "Cells where the mean changes most; on a grid, they are at least 10 degrees from each other.",
    "Spread": "The standard deviation: of the raw members, and of the corrected distribution.",
}


def explanation_page(correctors: Sequence[ExplainedCorrector], output: str, about: Mapping[str, str]) -> str:
    """Return the page about the corrected file `output`; `about` are facts of the run."""
    shown, total = (
        sum(counts) for counts in zip(*((len(one.forecasts), one.total) for one in correctors), strict=True)
    )
    return render_page(
        "explanation.html",
        title=f"Correction of {output}",
        headline=change_headline(correctors),
        facts=[", ".join(one.name for one in correctors), f"{shown} of {total} corrected forecasts are explained"],
        warnings=_warnings(correctors),
        summary=summary_table(correctors),
        problems=_problems(correctors),
        forecasts=list(_forecasts(correctors)),
        experts=list(_experts(correctors)),
        definitions=DEFINITIONS.items(),
        about=_about(correctors, about),
    )


def change_headline(correctors: Sequence[ExplainedCorrector]) -> str:
    """Return what was changed in the forecast whose mean changes most, as a multiple of its raw spread."""
    if not any(one.forecasts for one in correctors):
        return "No forecast of this file was corrected by a corrector, so there is nothing to explain."
    change = max((change for one in correctors for change in one.changes()), key=_relative_size)
    return f"{variable_title(change.variable)} at +{int(change.data.lead_time)} h: {_change_text(change)}"


def _relative_size(change: ExplainedChange) -> float:
    raw = change.size(change.data.raw_spread)
    return float(np.nan_to_num(change.typical / raw if raw > 0 else 0.0, nan=-1.0))


def _change_text(change: ExplainedChange) -> str:
    """Return one or two sentences about the change of a target."""
    if not change.cells.size:
        return "the correction changes the ensemble mean nowhere."
    one, cell = change.corrector, change.cells[0]
    region = region_name(one.coast.grid, one.position(cell), one.coast.earth, one.coast.land)
    text = (
        f"the ensemble mean typically changes by {change.show(change.typical, False)}\N{NO-BREAK SPACE}{change.units}, "
        f"and most at {one.place(cell)} ({region}), by "
        f"{change.show(change.of_mean.flat[cell])}\N{NO-BREAK SPACE}{change.units}."
    )
    if math.isfinite(change.spread_ratio):
        text += f" The corrected spread is {change.spread_ratio:.2f} times the raw spread."
    return text


def _forecasts(correctors: Sequence[ExplainedCorrector]) -> Iterator[dict[str, Any]]:
    """Yield the parts of a section for each explained forecast and target."""
    for number, one in enumerate(correctors):
        for place, change in enumerate(one.changes()):
            text = _change_text(change)
            yield {
                "ident": f"forecast-{number}-{place}",
                "title": change.title + (f", {one.name}" if len(correctors) > 1 else ""),
                "text": f"{text[0].upper()}{text[1:]} {_why_text(change)}",
                "valid": valid_text(change.data),
                "drawings": list(explanation_drawings(change, f"{number}-{place}")),
                "places": place_table(change),
                "inputs": input_table(change),
            }


def _why_text(change: ExplainedChange) -> str:
    inputs = change.inputs()
    if not inputs or not change.cells.size:
        return ""
    usual, today = (change.show(size, False) for size in change.usual_and_today())
    text = (
        f"With all inputs at their training means, the mean would change by {usual}\N{NO-BREAK SPACE}{change.units}; "
        f"today's departures from the training climate change it by {today}\N{NO-BREAK SPACE}{change.units}"
    )
    return text + (f", most of all {inputs[0].input.item()}." if inputs[0].mean_part > 0 else ".")


def _warnings(correctors: Sequence[ExplainedCorrector]) -> Iterator[str]:
    """Yield a sentence for each input whose field is unusual in some explained forecast."""
    for one in correctors:
        for name in one.forecasts[0].input.values if one.forecasts and "input" in one.forecasts[0].coords else ():
            part = max((forecast.sel(input=name) for forecast in one.forecasts), key=lambda part: float(part.departure))
            if part.departure > UNUSUAL:
                yield (
                    f"{name} is unusual at +{int(part.lead_time)} h: its departure from the training mean is "
                    f"{show_number(float(part.departure), 1)} times a typical one, and largest at "
                    f"{one.place(int(part.largest_cell))}"
                )


def _experts(correctors: Sequence[ExplainedCorrector]) -> Iterator[Drawing]:
    for number, one in enumerate(correctors):
        if one.experts is not None and not isinstance(one.coast.grid, Points):
            case = f"the forecast {valid_text(one.forecasts[0])}"
            yield replace(expert_drawing(one.coast, one.experts, one.name, case), name=f"experts-{number}")


def _problems(correctors: Sequence[ExplainedCorrector]) -> list[str]:
    found = list(dict.fromkeys(text for one in correctors for text in one.problems))
    more = len(found) - MOST_PROBLEMS
    return found[:MOST_PROBLEMS] + [f"{more} more problems are not listed here"] * (more > 0)


def _about(correctors: Sequence[ExplainedCorrector], about: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    yield from about.items()
    for one in correctors:
        yield f"Corrector {one.name}", "; ".join(f"{name} {text}" for name, text in one.about.items()) or "no facts"
        if one.forecasts and len(one.forecasts) < one.total:
            leads = ", ".join(f"+{int(forecast.lead_time)} h" for forecast in one.forecasts)
            yield f"Explained by {one.name}", f"{len(one.forecasts)} of {one.total} forecasts: {leads}"


def explanation_drawings(change: ExplainedChange, ending: str) -> Iterator[Drawing]:
    """Yield the maps of a change, and those of its strongest input if there is one; points have no maps."""
    coast, data, factor = change.corrector.coast, change.data, change.variable.display.factor
    if isinstance(coast.grid, Points):
        return
    means = {"raw mean": factor * data.raw_mean.values, "corrected mean": factor * data.corrected_mean.values}
    scale = ColourScale(colour_scale(list(means.values()), False), FIELDS, f"ensemble mean ({change.units})")
    panels = [_panel(coast, field, scale, title) for title, field in means.items()]
    label = f"corrected − raw ({change.units})"
    changes = {"change of the mean": (factor * change.of_mean, label)}
    changes["change of the spread"] = factor * change.of_spread, label
    note = "Red: the correction raises the mean or widens the spread; blue: it lowers or narrows them."
    panels += _differences(coast, changes)
    yield Drawing(f"change-{ending}", "maps", "Before and after", note, tuple(panels), {})
    if "strongest" not in data or data.strongest < 0:
        return
    name = data.input.values[int(data.strongest)]
    maps = {
        f"{name}: departure": (data.strongest_departure.values, "typical departures from the training mean"),
        f"{name}: part in the correction": (
            factor * data.strongest_part.values, f"part in the correction ({change.units})"
        ),
    }  # fmt: skip
    note = (
        f"{name} has the largest part in this correction. First map: how far its ensemble mean is from the "
        "mean of the training years. Second map: how much of the change of the mean comes from this departure."
    )
    panels = _differences(coast, maps)
    yield Drawing(f"strongest-{ending}", "maps", f"The strongest input: {name}", note, tuple(panels), {})


def _differences(coast: Coast, maps: Mapping[str, tuple[np.ndarray, str]]) -> list[Panel]:
    """Draw fields by their titles, with the labels of their colour bars; white is 0."""
    return [
        _panel(coast, field, ColourScale(colour_scale([field], True), DIVERGING, label), title)
        for title, (field, label) in maps.items()
    ]


def _panel(coast: Coast, field: np.ndarray, scale: ColourScale, title: str) -> Panel:
    """Draw a map whose colour bar has few marks, because small changes have long numbers."""
    panel = map_panel(coast, field, scale, title)
    panel.figure.axes[1].xaxis.set_major_locator(MaxNLocator(5))
    return panel
