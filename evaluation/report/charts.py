"""Charts of the report: share of the oracle's gain, skill by lead time, region and season, calibration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evaluation.report.figure_style import FAINT, INK, PAGE_WIDTH, RC, model_colours
from evaluation.scoreboard import headline_keys

REGION_ORDER = ("global", "north", "tropics", "south", "land", "sea")


def gain_chart(scores: Mapping[str, Any]) -> Figure:
    """Draw bars of the captured share of the oracle's gain, from the raw ensemble (0) to the oracle (100 %).

    The bar uses the fair CRPS where it is valid; a diamond shows the share by the plain CRPS.
    """
    models = {
        n: m for n, m in scores["models"].items() if n not in ("raw", "climatology") and m["captured"] is not None
    }
    colours = model_colours(scores["models"])
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(PAGE_WIDTH, 0.5 + 0.36 * len(models)), layout="constrained")
        ax = figure.add_subplot()
        for row, (name, model) in enumerate(models.items()):
            key = headline_keys(model)[1]
            value, interval, plain = 100 * model[key], model["ci95"][key], 100 * model["captured"]
            ax.barh(row, 100, color=FAINT, alpha=0.16, height=0.62)
            ax.barh(row, value, color=colours[name], height=0.62)
            if interval:
                ax.plot([100 * end for end in interval], [row, row], color=INK, lw=1.4, solid_capstyle="butt")
            ax.plot(plain, row, "d", color=INK, ms=4, mfc="none")
            end = max(100 * interval[1] if interval else value, plain, 0)
            ax.text(end + 1.2, row, f"{value:.0f} %", va="center", fontweight="bold")
        ax.axvline(0, color=colours["raw"], lw=1.6)
        ax.axvline(100, color=colours["oracle"], lw=1.6)
        ax.set_yticks(range(len(models)), list(models), fontsize=9)
        low = min([0.0, *(100 * m[key] for m in models.values() for key in ("captured", headline_keys(m)[1]))])
        ax.set(xlim=(low - 3 if low < 0 else -0.5, 104), ylim=(len(models) - 0.45, -0.55))
        ax.set_xticks([0, 25, 50, 75, 100], ["raw ensemble", "25 %", "50 %", "75 %", "oracle"])
        ax.tick_params(axis="both", length=0)
        ax.spines[["left", "bottom"]].set_visible(False)
    return figure


def skill_chart(scores: Mapping[str, Any]) -> Figure:
    """Draw the skill against the raw ensemble by lead time, region and season, by the fair CRPS where it is valid."""
    models = [name for name in scores["models"] if name not in ("raw", "climatology")] or ["climatology"]
    colours = model_colours(scores["models"])
    groups = _groups(scores, models[0])
    ratios = [len(labels) + 0.6 for labels in groups.values()]
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(PAGE_WIDTH, 3.1), layout="constrained")
        panels = figure.subplots(1, len(groups), sharey=True, width_ratios=ratios, squeeze=False)[0]
        for ax, (kind, labels) in zip(panels, groups.items(), strict=True):
            for k, name in enumerate(models):
                entries = [scores["models"][name]["by"][kind][label] for label in labels]
                key = headline_keys(scores["models"][name])[0]
                _points(ax, entries, key, 100, colours[name], _offset(k, len(models)), name)
            ax.axhline(0, color=colours["raw"], lw=1.2)
            ax.set_xticks(range(len(labels)), [f"+{label} h" if kind == "lead" else label for label in labels])
            ax.set_title({"lead": "Lead time", "region": "Region", "season": "Season"}[kind])
            ax.tick_params(axis="x", length=0)
            ax.grid(axis="y", color=FAINT, alpha=0.25, lw=0.6)
            ax.margins(x=0.08 + 0.3 / len(labels))
        panels[0].set_ylabel("CRPS below raw (%)")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(models))
    return figure


def spread_chart(scores: Mapping[str, Any]) -> Figure:
    """Draw the ratio of spread to error by region, one row of dots per model; 1 is calibrated."""
    names = [name for name in scores["models"] if name != "climatology"]
    colours = model_colours(scores["models"])
    labels = _groups(scores, names[0])["region"]
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(PAGE_WIDTH, 2.6), layout="constrained")
        ax = figure.add_subplot()
        for k, name in enumerate(names):
            entries = [scores["models"][name]["by"]["region"][label] for label in labels]
            _points(ax, entries, "spread_skill", 1, colours[name], _offset(k, len(names)), name)
        ax.axhline(1, color=INK, lw=1)
        ax.set_xticks(range(len(labels)), labels)
        ax.set_ylabel("spread / error")
        ax.grid(axis="y", color=FAINT, alpha=0.25, lw=0.6)
        ax.tick_params(axis="x", length=0)
        figure.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=len(names))
    return figure


def histogram_chart(scores: Mapping[str, Any]) -> Figure:
    """Draw the rank or PIT histogram of every model, relative to a flat one."""
    panels = {name: model["rank_histogram"] for name, model in scores["models"].items() if name != "climatology"}
    if scores["oracle"]:
        panels["oracle"] = scores["oracle"]["rank_histogram"]
    colours = model_colours(scores["models"])
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(PAGE_WIDTH, 2.0), layout="constrained")
        for ax, (name, bins) in zip(
            figure.subplots(1, len(panels), sharey=True, squeeze=False)[0], panels.items(), strict=True
        ):
            height = np.array(bins) * len(bins)
            ax.bar(np.arange(len(bins)), height, width=0.86, color=colours[name])
            ax.axhline(1, color=INK, lw=1, ls=(0, (3, 2)))
            ax.set_title(name)
            ax.set_xticks([0, len(bins) - 1], ["low", "high"])
            ax.tick_params(axis="x", length=0)
        figure.axes[0].set_ylabel("frequency / flat")
    return figure


def _groups(scores: Mapping[str, Any], name: str) -> dict[str, list[str]]:
    by = scores["models"][name]["by"]
    groups = {
        "lead": list(by["lead"]),
        "region": [label for label in REGION_ORDER if label in by["region"]],
        "season": list(by["season"]),
    }
    # A single lead time or season repeats the global value.
    return {kind: labels for kind, labels in groups.items() if len(labels) > 1 or kind == "region"}


def _points(
    ax: Axes, entries: list[dict[str, Any]], key: str, factor: float, colour: str, offset: float, name: str
) -> None:
    """Draw the scores of one model as dots, with their intervals if they have any."""
    places = np.arange(len(entries)) + offset
    for place, entry in zip(places, entries, strict=True):
        if interval := entry["ci95"].get(key):
            ax.plot([place, place], [factor * end for end in interval], color=colour, lw=2, alpha=0.45)
    values = [np.nan if entry[key] is None else factor * entry[key] for entry in entries]
    ax.plot(places, values, "o", color=colour, ms=5, label=name)


def _offset(number: int, count: int) -> float:
    return 0.0 if count == 1 else 0.5 * (number / (count - 1) - 0.5)
