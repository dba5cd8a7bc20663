"""All figures of the report of a target, in the order of the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from evaluation.report.case_figures import case_drawings
from evaluation.report.charts import (
    SPREAD_ERROR,
    group_chart,
    headline_skill,
    score_by_part,
    starts_chart,
    threshold_chart,
)
from evaluation.report.diagrams import HISTOGRAM, calibration_drawing, curve_drawing, histogram_drawing
from evaluation.report.drawing import Drawing
from evaluation.report.figure_style import model_colours
from evaluation.report.maps import (
    BETTER,
    DIVERGING,
    SEQUENTIAL,
    Coast,
    ColourScale,
    colour_scale,
    expert_drawing,
    map_numbers,
    map_panel,
    ratio_scale,
)
from evaluation.report.series import list_series
from evaluation.report.shown_data import MapData, TargetReport
from evaluation.report.tables import display_of, judge_title
from evaluation.scoring.scoreboard import judging_score


def draw_figures(target: TargetReport) -> dict[str, Drawing]:
    """Return every figure of a target by its file name; a figure without data is absent, and maps of a single station.

    The page shows the first figure of a section, and the others after a click.
    """
    scores, fields = target.scores, target.fields
    best, (units, factor) = scores["best"]["model"], display_of(scores)
    corrected = [name for name in scores["models"] if name not in ("raw", "climatology") or name == best]
    everyone = list(scores["models"])
    calibrated = [name for name in everyone if name != "climatology"]
    drawings: list[Drawing | None] = []
    if fields.grid.shape != (1, 1):
        drawings += map_drawings(scores, fields, corrected, units, factor)
    drawings.append(calibration_drawing(scores, best))
    drawings.append(starts_chart(scores, target.starts, best) if target.starts else None)
    drawings.append(
        group_chart(
            scores, headline_skill(judge_title(scores, corrected)), corrected,
            title="Gain",
            note="Reduction relative to raw, the grey line; bars are 95 % intervals. Seasons and hours are of the "
            "valid time; the tropics reach to 20°.",
        )
    )  # fmt: skip
    (bias,) = (one for one in list_series(scores) if one.key == "scores:bias")
    note = "Mean forecast minus analysis, with 95 % intervals."
    drawings.append(group_chart(scores, score_by_part(bias), calibrated, title="Bias", note=note))
    drawings.append(
        group_chart(
            scores, SPREAD_ERROR, calibrated, title="Spread over error", section="calibration",
            kinds=("lead", "region"), note="1 is calibrated, less is overconfident; bars are 95 % intervals.",
        )
    )  # fmt: skip
    drawings.append(histogram_drawing(scores, [name for name in calibrated if name not in ("raw", best)]))
    for name, definition in scores["definitions"].items():
        if definition["labels"] and definition["best"] == "low":
            drawings.append(threshold_chart(scores, name, corrected))
    for name in scores["diagram_definitions"]:
        if name != HISTOGRAM:
            drawings.append(curve_drawing(scores, name, everyone))
    if fields.experts is not None:
        drawings.append(expert_drawing(Coast(fields.grid, fields.land, fields.earth), fields.experts, best))
    drawings += case_drawings(fields, best, units, factor, model_colours(everyone)[best])
    return {drawing.name: drawing for drawing in drawings if drawing is not None}


def map_drawings(
    scores: Mapping[str, Any], fields: MapData, corrected: Sequence[str], units: str, factor: float
) -> list[Drawing]:
    """Return the maps of averages at the longest lead time, amounts times `factor`.

    All corrected models have a map of their gain; bias and spread are those of raw and the shown model.
    """
    coast, lead, best = Coast(fields.grid, fields.land, fields.earth), f"{fields.lead_time} h", scores["best"]["model"]
    found = []

    def add(
        name: str, title: str, note: str, maps: Mapping[str, np.ndarray], scale: ColourScale, section: str = "maps",
        tested: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        panels = tuple(
            map_panel(coast, field, scale, label if len(maps) > 1 else "", tested) for label, field in maps.items()
        )
        columns = {label or name: field for label, field in maps.items()}
        if tested is not None:
            columns["significant"] = np.where(np.isfinite(maps[best]), tested, np.nan)
        found.append(Drawing(name, section, title, note, panels, map_numbers(fields.grid, columns)))

    gained = {name: improvement(scores, fields, name) for name in corrected}
    gains = ColourScale(
        colour_scale(list(gained.values()), True), BETTER, f"{judge_title(scores, corrected)} below raw (%)"
    )
    note = f"{best}, {lead} ahead. " + (
        "With few dates, single cells are noisy."
        if fields.significant is None
        else f"{_share(fields)}; hatched (points: crossed): not significant, with at most 5 % false discoveries."
    )
    add("improvement", "Where", note, {best: gained.pop(best)}, gains, "first", fields.significant)

    two = list(dict.fromkeys(["raw", best]))
    bias = {name: factor * fields.bias[name] for name in two}
    scale = ColourScale(colour_scale(list(bias.values()), True), DIVERGING, f"mean forecast − analysis ({units})")
    note = f"Mean forecast minus analysis at {lead}. After a good correction only noise is left."
    add("bias", "Systematic errors", note, bias, scale)
    if gained:
        add("improvement_others", "Gain of the other models", f"At {lead}, without a test.", gained, gains)

    raw = factor * fields.crps["raw"]
    scale = ColourScale(colour_scale([raw], False), SEQUENTIAL, f"plain CRPS of the raw ensemble ({units})", "max")
    add("crps_raw", "Errors of the raw ensemble", f"Average at {lead}.", {"": raw}, scale)
    if fields.squared_error:
        ratios = {name: spread_over_error(fields, name) for name in two}
        scale = ColourScale(ratio_scale(list(ratios.values())), DIVERGING, "spread / error")
        note = f"Expected over actual error of the mean at {lead}. Blue: overconfident; red: too wide."
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
