"""All figures of the report, in the order of the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from evaluation.report.case_figures import case_drawings
from evaluation.report.charts import (
    gain_chart,
    group_chart,
    headline_skill,
    score_by_part,
    spread_error,
    threshold_chart,
)
from evaluation.report.diagrams import HISTOGRAM, curve_drawing, histogram_drawing
from evaluation.report.drawing import Drawing
from evaluation.report.expert_map import expert_drawing
from evaluation.report.figure_style import model_colours
from evaluation.report.maps import (
    BETTER,
    DIVERGING,
    SEQUENTIAL,
    Coast,
    ColourScale,
    colour_scale,
    map_numbers,
    map_panel,
    ratio_scale,
)
from evaluation.report.series import list_series, meaning_of
from evaluation.report.shown_data import MapData
from evaluation.report.tables import display_of
from evaluation.scoring.scoreboard import judging_score

DRAWN_BY_PART = ("scores:crps", "scores:bias")
"""Series that have a figure by lead time, region, season and hour."""


def draw_figures(scores: Mapping[str, Any], fields: MapData) -> dict[str, Drawing]:
    """Return every figure of the report by its file name; a figure without data is absent."""
    best, (units, factor) = scores["best"]["model"], display_of(scores)
    corrected = [name for name in scores["models"] if name not in ("raw", "climatology") or name == best]
    everyone = list(scores["models"])
    calibrated = [name for name in everyone if name != "climatology"]
    drawings: list[Drawing | None] = []
    if scores["oracle"] and any(name not in ("raw", "climatology") for name in everyone):
        drawings.append(gain_chart(scores))
    drawings += map_drawings(scores, fields, corrected, units, factor)
    drawings.append(
        group_chart(
            scores, headline_skill(), corrected, title="Skill by lead time, region, season and hour",
            note="The reduction of each model's CRPS relative to the raw ensemble, the grey line, by the fair CRPS "
            "where it is valid; bars are 95 % intervals. Seasons and hours are those of the valid time; the tropics "
            "reach to 20°.",
        )
    )  # fmt: skip
    for series in list_series(scores):
        if series.key in DRAWN_BY_PART:
            title = f"{series.title[0].upper()}{series.title[1:]} by lead time, region, season and hour"
            note = f"{meaning_of(scores, series)} Bars are 95 % intervals.".replace("`", "")
            drawings.append(group_chart(scores, score_by_part(series), calibrated, title=title, note=note))
    drawings.append(histogram_drawing(scores))
    drawings.append(
        group_chart(
            scores, spread_error(), calibrated, title="Calibration of the spread", section="calibration",
            kinds=("lead", "region"),
            note="Expected over actual error of the mean on a logarithmic axis: 1 is calibrated, less is "
            "overconfident. Grey: within 5 % of 1.",
        )
    )  # fmt: skip
    for name in scores.get("diagram_definitions", {}):
        if name != HISTOGRAM:
            drawings.append(curve_drawing(scores, name, everyone))
    for name, definition in scores.get("definitions", {}).items():
        if definition["labels"] and definition["best"] == "low":
            drawings.append(threshold_chart(scores, name, corrected))
    if fields.experts is not None:
        drawings.append(expert_drawing(Coast(fields.grid, fields.land, fields.earth), fields.experts, best))
    drawings += case_drawings(fields, best, units, factor, model_colours(everyone)[best])
    return {drawing.name: drawing for drawing in drawings if drawing is not None}


def map_drawings(
    scores: Mapping[str, Any], fields: MapData, corrected: Sequence[str], units: str, factor: float
) -> list[Drawing]:
    """Return the maps of averages of raw and all corrected models at the longest lead time, amounts times `factor`."""
    coast, lead, best = Coast(fields.grid, fields.land, fields.earth), f"{fields.lead_time} h", scores["best"]["model"]
    shown, found = ["raw", *corrected], []

    def add(
        name: str,
        title: str,
        note: str,
        maps: Mapping[str, np.ndarray],
        scale: ColourScale,
        tested: np.ndarray | None = None,
    ) -> None:
        panels = tuple(
            map_panel(coast, field, scale, label, tested if label == best else None) for label, field in maps.items()
        )
        columns = {label or name: field for label, field in maps.items()}
        if tested is not None:
            columns["significant"] = np.where(np.isfinite(maps[best]), tested, np.nan)
        found.append(Drawing(name, "maps", title, note, panels, map_numbers(fields.grid, columns)))

    raw = factor * fields.crps["raw"]
    scale = ColourScale(colour_scale([raw], False), SEQUENTIAL, f"CRPS of the raw ensemble ({units})", "max")
    note = f"Average CRPS of the raw ensemble at {lead}. Dark: large errors, usually storm tracks and land."
    add("crps_raw", "Errors of the raw ensemble", note, {"": raw}, scale)

    gained = {name: improvement(scores, fields, name) for name in corrected}
    note = "Blue-green: lower CRPS than the raw ensemble, by the fair CRPS where it is valid; brown: higher. " + (
        "With few dates, single cells are noisy."
        if fields.significant is None
        else f"Hatched (points: crossed) on the map of {best}: not significant, with at most 5 % false discoveries; "
        f"{_share(fields)}."
    )
    scale = ColourScale(colour_scale(list(gained.values()), True), BETTER, "CRPS below raw (%)")
    add("improvement", "Improvement", note, gained, scale, fields.significant)

    bias = {name: factor * fields.bias[name] for name in shown}
    scale = ColourScale(colour_scale(list(bias.values()), True), DIVERGING, f"mean forecast − analysis ({units})")
    note = (
        f"Mean forecast minus analysis at {lead}, one colour scale. Red: the forecast is too high. After a good "
        "correction only noise is left."
    )
    add("bias", "Systematic errors", note, bias, scale)

    if fields.squared_error:
        ratios = {name: spread_over_error(fields, name) for name in shown}
        scale = ColourScale(ratio_scale(list(ratios.values())), DIVERGING, "spread / error")
        note = (
            f"Expected over actual error of the mean at {lead}. Blue: too narrow, overconfident; red: too wide. With "
            "few dates, single cells are noisy."
        )
        add("spread_error_map", "Spread and error", note, ratios, scale)
    return found


def improvement(scores: Mapping[str, Any], fields: MapData, name: str) -> np.ndarray:
    """Return the reduction of a model's CRPS relative to raw in per cent, by the fair CRPS where it is valid."""
    crps = getattr(fields, judging_score([scores["models"][name]["crps_fair_valid"]]))
    with np.errstate(invalid="ignore", divide="ignore"):
        return 100 * (crps["raw"] - crps[name]) / np.where(crps["raw"] > 0, crps["raw"], np.nan)


def spread_over_error(fields: MapData, name: str) -> np.ndarray:
    """Return the square root of expected over actual squared error of a model, (H, W); NaN where the error is 0."""
    expected, actual = fields.expected_squared_error[name], fields.squared_error[name]
    return np.sqrt(expected / np.where(actual > 0, actual, np.nan))


def _share(fields: MapData) -> str:
    assert fields.significant is not None
    known = np.isfinite(fields.crps["raw"])
    weights = np.broadcast_to(np.array(fields.grid.weights)[:, None], fields.grid.shape)[known]
    return f"{100 * float(np.average(fields.significant[known], weights=weights)):.0f} % of the area is significant"
