"""The page of an explanation: one HTML file that needs no other file and no script."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np

from data_pipeline.points import Points
from evaluation.explanation.explanation_figures import change_maps, strongest_maps
from evaluation.explanation.explanation_tables import (
    ExplainedCorrector,
    amount_format,
    input_table,
    place_table,
    show_number,
    spread_ratio,
    start_of,
    summary_table,
    title_of,
)
from evaluation.explanation.forecast_explanation import (
    Change,
    ForecastExplanation,
    InputPart,
    root_mean_square,
)
from evaluation.explanation.places import place_name, region_name
from evaluation.report.drawing import Drawing
from evaluation.report.expert_map import expert_drawing
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
    corrector, forecast, target, change = max(
        ((one, *row) for one in correctors for row in one.rows()),
        key=lambda found: np.nan_to_num(_relative_size(found[0], found[3]), nan=-1.0),
    )
    title = variable_title(corrector.targets[target])
    return f"{title} at +{forecast.lead_time} h: {_change_text(corrector, target, change)}"


def _relative_size(one: ExplainedCorrector, change: Change) -> float:
    raw = root_mean_square(change.raw_std, one.area)
    return root_mean_square(change.of_mean, one.area) / raw if raw > 0 else 0.0


def _change_text(one: ExplainedCorrector, target: int, change: Change) -> str:
    """Return one or two sentences about the change of a target."""
    units, factor, show = one.units_of(target), one.targets[target].display.factor, amount_format(one, target, change)
    if not change.cells:
        return "the correction changes the ensemble mean nowhere."
    cell = change.cells[0]
    text = (
        f"the ensemble mean typically changes by {show(factor * root_mean_square(change.of_mean, one.area), False)}"
        f"\N{NO-BREAK SPACE}{units}, and most at {place_name(one.coast.grid, cell)} "
        f"({region_name(one.coast.grid, cell, one.coast.earth, one.coast.land)}), by "
        f"{show(factor * float(change.of_mean[cell]))}\N{NO-BREAK SPACE}{units}."
    )
    ratio = spread_ratio(change, one.area)
    if math.isfinite(ratio):
        text += f" The corrected spread is {ratio:.2f} times the raw spread."
    return text


def _forecasts(correctors: Sequence[ExplainedCorrector]) -> Iterator[dict[str, Any]]:
    """Yield the parts of a section for each explained forecast and target."""
    for number, one in enumerate(correctors):
        for place, (forecast, target, change) in enumerate(one.rows()):
            variable, units, end = one.targets[target], one.units_of(target), f"{number}-{place}"
            drawings = []
            if not isinstance(one.coast.grid, Points):
                drawings.append(change_maps(one.coast, change, variable, units, f"change-{end}"))
                if forecast.strongest and (strongest := forecast.strongest[target]):
                    drawings.append(strongest_maps(one.coast, strongest, variable, units, f"strongest-{end}"))
            text = _change_text(one, target, change)
            yield {
                "ident": f"forecast-{end}",
                "title": title_of(one, forecast, target) + (f", {one.name}" if len(correctors) > 1 else ""),
                "text": f"{text[0].upper()}{text[1:]} {_why_text(one, forecast, target)}",
                "valid": _valid(forecast),
                "drawings": drawings,
                "places": place_table(one, forecast, target),
                "inputs": input_table(one, forecast, target),
            }


def _why_text(one: ExplainedCorrector, forecast: ForecastExplanation, target: int) -> str:
    change, units, factor = forecast.changes[target], one.units_of(target), one.targets[target].display.factor
    if change.usual is None or not change.cells:
        return ""
    show = amount_format(one, target, change)
    usual, today = (
        show(factor * root_mean_square(field, one.area), False)
        for field in (change.usual, change.of_mean - change.usual)
    )
    text = (
        f"With all inputs at their training means, the mean would change by {usual}\N{NO-BREAK SPACE}{units}; today's "
        f"departures from the training climate change it by {today}\N{NO-BREAK SPACE}{units}"
    )
    ranked = sorted(forecast.inputs, key=lambda part: -part.mean_part[target])
    if ranked and ranked[0].mean_part[target] > 0:
        text += f", most of all {ranked[0].name}"
    return text + "."


def _warnings(correctors: Sequence[ExplainedCorrector]) -> Iterator[str]:
    """Yield a sentence for each input whose field is unusual in some explained forecast."""
    for one in correctors:
        unusual: dict[str, tuple[InputPart, ForecastExplanation]] = {}
        for forecast in one.forecasts:
            for part in forecast.inputs:
                if part.departure > (unusual[part.name][0].departure if part.name in unusual else UNUSUAL):
                    unusual[part.name] = part, forecast
        for part, forecast in unusual.values():
            assert part.cell is not None
            yield (
                f"{part.name} is unusual at +{forecast.lead_time} h: its departure from the training mean is "
                f"{show_number(part.departure, 1)} times a typical one, and largest at "
                f"{place_name(one.coast.grid, part.cell)}"
            )


def _experts(correctors: Sequence[ExplainedCorrector]) -> Iterator[Drawing]:
    for number, one in enumerate(correctors):
        if one.experts is not None and not isinstance(one.coast.grid, Points):
            case = f"the forecast {_valid(one.forecasts[0])}"
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
            leads = ", ".join(f"+{forecast.lead_time} h" for forecast in one.forecasts)
            yield f"Explained by {one.name}", f"{len(one.forecasts)} of {one.total} forecasts: {leads}"


def _valid(forecast: ForecastExplanation) -> str:
    start = start_of(forecast)
    end = start + timedelta(hours=forecast.lead_time)
    return f"{start:%-d %B %Y, %H} UTC + {forecast.lead_time} h, valid {end:%-d %B %Y, %H} UTC"
