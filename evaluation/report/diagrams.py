"""Diagrams of the report: rank histograms, reliability, ROC, economic value, spread against error, and any other curve.

The data are `diagrams` of scores.json. A diagram without a style of its own is drawn as lines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evaluation.report.chart_frame import add_legend, chart, rule, set_limits
from evaluation.report.drawing import Drawing, Panel
from evaluation.report.figure_style import FAINT, INK, RC, model_colours, model_marks

MOST_PANELS = 6
"""A diagram is drawn for at most so many thresholds; scores.json has all."""
HISTOGRAM = "rank_histogram"


@dataclass(frozen=True)
class CurveStyle:
    """Axes of a diagram; with `diagonal`, x = y is drawn, the perfect or the useless forecast."""

    x: str
    y: str
    diagonal: bool = False
    unit_square: bool = False
    level: float | None = None
    logarithmic: bool = False


STYLES = {
    "reliability": CurveStyle("forecast probability", "observed frequency", diagonal=True, unit_square=True),
    "roc": CurveStyle("false alarm rate", "hit rate", diagonal=True, unit_square=True),
    "economic_value": CurveStyle("cost / loss", "relative economic value", level=0.0),
    "spread_error": CurveStyle("spread", "error", diagonal=True, logarithmic=True),
}
"""Styles by the name of the diagram; others have axes x and y."""


def calibration_drawing(scores: Mapping[str, Any], name: str) -> Drawing:
    """Draw the rank or PIT histogram of raw and the shown model in one panel, and say how flat they are."""
    found = histograms(scores, ["raw", name])
    chances = [
        f"{one} {' and '.join(map(_chance, ps))}"
        for one, panel in found.items()
        if None not in (ps := [(panel.get(key) or [None])[0] for key in ("p_chi_square", "p_kolmogorov")])
    ]
    note = "Flat: calibrated; U: overconfident; slope: bias; all places and seasons together."
    if chances:
        note += f" Chance that a calibrated forecast is as uneven, and as biased: {'; '.join(chances)}."
    return _histogram_drawing("calibration", "first", "Trust", note, found, scores, together=True)


def histogram_drawing(scores: Mapping[str, Any], names: Sequence[str]) -> Drawing | None:
    """Draw the rank or PIT histogram of each of `names` and the oracle; None if there are none."""
    found = histograms(scores, names) | (
        {"oracle": scores["oracle"]["diagrams"][HISTOGRAM][""]} if scores["oracle"] else {}
    )
    note = "Rank and PIT histograms of the other models, as above."
    return _histogram_drawing("histograms", "calibration", "Other histograms", note, found, scores) if found else None


def histograms(scores: Mapping[str, Any], names: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    """Return the data of the rank histogram of each model."""
    return {name: scores["models"][name]["diagrams"][HISTOGRAM][""] for name in dict.fromkeys(names)}


def _histogram_drawing(
    name: str, section: str, title: str, note: str, found: Mapping[str, Mapping[str, Any]], scores: Mapping[str, Any],
    together: bool = False,
) -> Drawing:  # fmt: skip
    """Draw histograms relative to a flat one, in a panel each or `together`, with the band of a flat one.

    The band is that of the last model of a panel; there is none where the starts do not tell the independent cases.
    """
    colours = model_colours(scores["models"])
    heights = {one: np.array(panel["y"], float) * len(panel["y"]) for one, panel in found.items()}
    top, panels, bands = 1.08 * max(float(np.nanmax(bars)) for bars in heights.values()), [], {}
    for one, panel in found.items():
        cases = (panel.get("independent_cases") or [None])[0]
        bands[one] = (np.nan, np.nan, np.nan) if cases is None else (cases, *flat_band(len(panel["y"]), cases))
    for names in [list(heights)] if together else [[one] for one in heights]:
        bars, (_, low, high) = heights[names[-1]], bands[names[-1]]
        with matplotlib.rc_context(RC):
            figure, ax = chart(1.9 if together else 1.3, 0.62, names if together else ())
            width = 0.86 / len(names)
            for k, one in enumerate(names):
                places = np.arange(len(bars)) + width * (k - (len(names) - 1) / 2)
                ax.bar(places, heights[one], width=width, color=colours[one], label=one)
            if np.isfinite(low):
                ax.axhspan(low, high, color=FAINT, alpha=0.3, lw=0, zorder=0)
            ax.axhline(1, color=INK, lw=1, ls=(0, (3, 2)))
            ax.set(title="Rank of the analysis" if together else names[0], ylim=(0, top), ylabel="frequency / flat")
            ax.set_xticks([0, len(bars) - 1], ["below all", "above all"])
            ax.tick_params(axis="x", length=0)
            if together:
                add_legend(figure, ax, names)
        panels.append(Panel(figure, f"Rank or PIT histogram of {' and '.join(names)} relative to a flat one"))
    rows = [(one, k, bar, *bands[one]) for one, bars in heights.items() for k, bar in enumerate(bars)]
    keys = ("model", "bin", "frequency_relative_to_flat", "independent_cases", "low", "high")
    if together and np.isfinite(bands[names[-1]][1]):
        note += " Grey: 95 % of the bars of a calibrated forecast."
    return Drawing(
        name, section, title, note, tuple(panels), dict(zip(keys, map(list, zip(*rows, strict=True)), strict=True))
    )


def _chance(p: float) -> str:
    return "below 0.1 %" if p < 0.001 else f"{100 * p:.1f} %" if p < 0.1 else f"{100 * p:.0f} %"


def flat_band(bins: int, cases: float) -> tuple[float, float]:
    """Return the 95 % band of a bar of a flat histogram relative to its mean, for independent cases.

    Counts are binomial with probability 1/bins: 1 ± 1.96 sqrt((bins - 1) / cases).
    """
    half = 1.96 * float(np.sqrt((bins - 1) / max(cases, 1)))
    return max(0.0, 1 - half), 1 + half


def curve_drawing(scores: Mapping[str, Any], name: str, models: Sequence[str]) -> Drawing | None:
    """Draw a diagram of all `models`, one panel for each label, such as a threshold; None if it has no data."""
    definition = scores["diagram_definitions"][name]
    style = STYLES.get(name, CurveStyle("x", "y"))
    found = {model: scores["models"][model].get("diagrams", {}).get(name) or {} for model in models}
    labels = list(dict.fromkeys(label for curves in found.values() for label in curves))
    rows: list[dict[str, Any]] = []
    panels: list[Panel] = []
    for label in labels:
        curves = {
            model: {key: np.array(values, float) for key, values in of_model[label].items()}
            for model, of_model in found.items()
            if label in of_model
        }
        curves = {m: curve for m, curve in curves.items() if np.isfinite(curve["x"] * curve["y"]).any()}
        for model, curve in curves.items():
            points = len(curve["x"])
            rows += [
                {"label": label, "model": model}
                | {key: column[k] for key, column in curve.items() if len(column) == points}
                for k in range(points)
            ]
        if curves and len(panels) < MOST_PANELS:
            panels.append(_curve_panel(scores, style, definition["title"], label, curves))
    if not panels:
        return None
    note = definition["text"].replace("`", "")
    if name == "reliability":
        note += " Bars reach from low to high; the panel below shows how often each probability was forecast."
    if len(labels) > len(panels):
        note += f" Drawn for {len(panels)} of {len(labels)} thresholds; the CSV file has all."
    keys = dict.fromkeys(key for row in rows for key in row)
    columns: dict[str, Any] = {key: [row.get(key) for row in rows] for key in keys}
    numbers = {key: col if key in ("label", "model") else np.array(col, float) for key, col in columns.items()}
    return Drawing(name, "decisions", definition["title"], note, tuple(panels), numbers)


def _curve_panel(
    scores: Mapping[str, Any], style: CurveStyle, title: str, label: str, curves: Mapping[str, Mapping[str, np.ndarray]]
) -> Panel:
    colours, marks = model_colours(scores["models"]), model_marks(scores["models"])
    shares = {model: curve for model, curve in curves.items() if "share" in curve}
    with matplotlib.rc_context(RC):
        body = 3.0 if style.diagonal else 1.9
        figure, ax = chart(body, 0.66, list(curves))
        lowest = ax
        if shares:
            lowest = _add_shares(figure, ax, shares, colours)
        lowest.set_xlabel(style.x)
        for model, curve in curves.items():
            x, y, colour = curve["x"], curve["y"], colours[model]
            if "low" in curve:
                ax.vlines(x, curve["low"], curve["high"], color=colour, lw=3, alpha=0.3)
            many = len(x) > 25
            if "as_forecast" in curve:
                ax.plot(x, curve["as_forecast"], color=colour, lw=0.9, ls=(0, (2, 1.5)))
            ax.plot(x, y, color=colour, lw=1.3, marker=None if many else marks[model], ms=4, mec="none", label=model)
        every = [curve[key] for curve in curves.values() for key in ("x", "y", "low", "high") if key in curve]
        if style.diagonal:
            reached = np.concatenate(every)
            known = reached[np.isfinite(reached) & (reached > 0)]
            ends = (0, 1) if style.unit_square or not known.size else (known.min(), known.max())
            ax.plot(ends, ends, color=INK, lw=0.9, ls=(0, (3, 2)), zorder=1)
        if style.logarithmic:
            for axis in ("x", "y"):
                _logarithmic(ax, axis)
        if style.unit_square:
            ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        elif style.level is not None:
            ax.axhline(style.level, color=INK, lw=0.9, zorder=1)
            values = [curve["y"] for curve in curves.values()]
            # Values far below zero are of no use to any user.
            ax.set_ylim(
                max(-0.2, float(min(np.nanmin(v) for v in values)) - 0.02),
                max(0.1, *(1.08 * float(np.nanmax(v)) for v in values)),
            )
        elif not style.logarithmic:
            set_limits(ax, "x", [curve["x"] for curve in curves.values()])
        if shares:
            lowest.set_xscale(ax.get_xscale())
            low, high = lowest.set_xlim(ax.get_xlim())
            ticks = [float(tick) for tick in ax.get_xticks() if low <= tick <= high]
            lowest.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            lowest.set_xticks([], minor=True)
            ax.tick_params(labelbottom=False)
        ax.set_ylabel(style.y)
        ax.set_title(label or title)
        rule(ax, "y")
        add_legend(figure, ax, list(curves))
    return Panel(figure, f"{title}{f', {label}' if label else ''}: {', '.join(curves)}")


def _logarithmic(ax: Axes, axis: Literal["x", "y"]) -> None:
    """Make an axis logarithmic, with marks at 1, 2 and 5 or, over many decades, at powers of 10."""
    values = np.concatenate([np.asarray(getattr(line, f"get_{axis}data")(), float) for line in ax.lines])
    values = values[np.isfinite(values) & (values > 0)]
    if not values.size:
        return
    low, high = float(values.min()) / 1.15, float(values.max()) * 1.15
    decades = np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)) + 1)
    steps = (1, 2, 5) if high / low < 60 else (1,)
    step = max(1, -(-len(decades) // 6)) if len(steps) == 1 else 1
    marks = [first * 10.0**power for power in decades[::step] for first in steps]
    marks = [mark for mark in marks if low <= mark <= high]
    (ax.set_xscale if axis == "x" else ax.set_yscale)("log")
    (ax.set_xlim if axis == "x" else ax.set_ylim)(low, high)
    (ax.set_xticks if axis == "x" else ax.set_yticks)(marks, [f"{mark:g}" for mark in marks])
    (ax.set_xticks if axis == "x" else ax.set_yticks)([], minor=True)


def _add_shares(
    figure: Figure, ax: Axes, curves: Mapping[str, Mapping[str, np.ndarray]], colours: Mapping[str, str]
) -> Axes:
    """Give the lowest quarter of a chart to the share of the cases in each class, on a logarithmic axis."""
    left, bottom, width, height = ax.get_position().bounds
    ax.set_position((left, bottom + 0.27 * height, width, 0.73 * height))
    below = figure.add_axes((left, bottom, width, 0.22 * height))
    for model, curve in curves.items():
        shown = np.where(curve["share"] > 0, curve["share"], np.nan)
        below.plot(curve["x"], shown, color=colours[model], lw=1.1, marker=".")
    _logarithmic(below, "y")
    below.set_ylabel("share")
    below.grid(axis="y", color=FAINT, alpha=0.3, lw=0.6)
    return below
