"""Charts of the report: skill, spread and other scores by lead time, region and season, and the CRPS by start."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib
import numpy as np

from evaluation.report.chart_frame import add_legend, chart, date_axis, dots, label_width, offsets, rule, set_limits
from evaluation.report.drawing import Drawing, Panel
from evaluation.report.figure_style import INK, RC, model_colours, model_marks
from evaluation.report.series import Series, list_slices, slice_title
from evaluation.report.tables import display_of, judge_title
from evaluation.scoring.scoreboard import headline_keys, judging_score
from evaluation.tables.csv_tables import StartScores
from evaluation.tables.score_json import entry_of

GROUP_TITLES = {
    "lead": "Lead time", "region": "Region", "season": "Season", "hour": "Hour of valid time", "threshold": "Threshold",
    "level": "Quantile level", "coverage": "Nominal coverage", "categories": "Categories",
}  # fmt: skip
"""Kinds of groups that scores are shown by, with their titles."""
NUMERIC = {"lead": "lead time (h)", "hour": "hour of valid time (UTC)"}
"""Kinds with a numeric axis, with its label."""
MOST_ROWS = 40
"""A chart has at most so many rows; the numbers of all groups are in scores.json."""
NUMERIC_FROM = 4
"""From so many lead times or hours on, scores are lines over a numeric axis."""

NO_ENDS = (np.nan, np.nan)

Read = Callable[[Mapping[str, Any], Mapping[str, Any]], tuple[float | None, Sequence[float] | None]]


@dataclass(frozen=True)
class Quantity:
    """A number that is drawn for each model and group: `read(model, entry)` returns it and its interval.

    Values are multiplied by `factor`; `reference` is the value that matters, such as 0 or 1, where a line is drawn.
    """

    name: str
    label: str
    read: Read
    factor: float = 1.0
    reference: float | None = None


def _estimate(entry: Mapping[str, Any], key: str) -> tuple[float | None, Sequence[float] | None]:
    return entry[key], entry["ci95"].get(key)


SPREAD_ERROR = Quantity("spread", "spread / error", lambda _, entry: _estimate(entry, "spread_skill"), reference=1)


def headline_skill(kind: str) -> Quantity:
    """Return the reduction of the CRPS of a `kind` against the raw ensemble: the fair one where it is valid."""
    label = f"{kind} below raw (%)"
    return Quantity("skill", label, lambda model, entry: _estimate(entry, headline_keys(model)[0]), 100, 0)


def score_by_part(series: Series) -> Quantity:
    """Return a score in its units; 0 is drawn where it is the best value."""
    label = f"{series.title} ({series.units})" if series.units else series.title
    reference = 0 if series.best == "zero" else None
    return Quantity(f"parts_{series.place[-1]}", label, lambda _, entry: series.of(entry), reference=reference)


def group_chart(
    scores: Mapping[str, Any],
    quantity: Quantity,
    models: Sequence[str],
    *,
    title: str,
    note: str,
    section: str = "curves",
    kinds: Sequence[str] = ("lead", "region", "season", "hour"),
) -> Drawing | None:
    """Draw a quantity of `models` by each of `kinds`, a panel for each kind; None if no group has a value.

    The heading is `title` with the kinds that are drawn.
    """
    rows: list[tuple[str, str, str, float, float, float]] = []
    panels = {}
    for kind, labels in _groups(scores, kinds).items():
        values = np.full((len(models), len(labels)), np.nan)
        ends = np.full((len(models), len(labels), 2), np.nan)
        for m, name in enumerate(models):
            model = scores["models"][name]
            for k, label in enumerate(labels):
                value, interval = quantity.read(model, entry_of(scores, name, kind, label))
                values[m, k] = np.nan if value is None else quantity.factor * value
                if interval is not None:
                    ends[m, k] = quantity.factor * np.array(interval)
                rows.append((kind, label, name, values[m, k], *ends[m, k]))
        if np.isfinite(values).any():
            panels[kind] = _group_panel(scores, quantity, models, kind, labels, values, ends)
    if not panels:
        return None
    heading = f"{title} by {' and '.join(GROUP_TITLES[kind].lower() for kind in panels)}"
    columns = dict(
        zip(("by", "group", "model", "value", "low", "high"), map(list, zip(*rows, strict=True)), strict=True)
    )
    numbers: dict[str, Any] = columns | {key: np.array(columns[key], float) for key in ("value", "low", "high")}
    return Drawing(quantity.name, section, heading, note, tuple(panels.values()), numbers)


def threshold_chart(scores: Mapping[str, Any], name: str, models: Sequence[str]) -> Drawing | None:
    """Draw the skill of a score over its thresholds or levels; None if no model has one."""
    definition = scores["definitions"][name]
    labels = list(definition["labels"])
    found = {
        model: (
            np.array([_number(scores["models"][model]["skill"].get(name), label) for label in labels]),
            np.array(
                [(scores["models"][model]["ci95_skill"].get(name) or {}).get(label) or NO_ENDS for label in labels]
            ),
        )
        for model in models
    }
    if not any(np.isfinite(values).any() for values, _ in found.values()):
        return None
    title = definition["title"][0].upper() + definition["title"][1:]
    kind = label_kind(labels)
    quantity = Quantity(f"thresholds_{name}", f"{title} below raw (%)", lambda *_: (None, None), 100, 0)
    values = 100 * np.stack([values for values, _ in found.values()])
    ends = 100 * np.stack([np.asarray(interval, float) for _, interval in found.values()])
    panel = _group_panel(scores, quantity, models, kind, labels, values, ends)
    columns: dict[str, Any] = {
        kind: labels * len(models),
        "model": np.repeat(list(models), len(labels)),
        "skill_percent": values.ravel(),
        "low": ends[..., 0].ravel(),
        "high": ends[..., 1].ravel(),
    }
    note = f"{definition['text'].replace('`', '')} Bars are 95 % intervals; the line at 0 is the raw ensemble."
    return Drawing(quantity.name, "decisions", f"{title} by {GROUP_TITLES[kind].lower()}", note, (panel,), columns)


def _group_panel(
    scores: Mapping[str, Any],
    quantity: Quantity,
    models: Sequence[str],
    kind: str,
    labels: Sequence[str],
    values: np.ndarray,
    ends: np.ndarray,
) -> Panel:
    """Draw values (models, labels) with intervals (..., 2): lines over a numeric axis, or a row for each label."""
    colours, marks = model_colours(scores["models"]), model_marks(scores["models"])
    reference = [] if quantity.reference is None else [quantity.reference]
    numeric = kind in NUMERIC and len(labels) >= NUMERIC_FROM
    with matplotlib.rc_context(RC):
        if numeric:
            figure, ax = chart(1.9, 0.62, models)
            x = np.array(labels, float)
            step = 0.012 * float(np.ptp(x))
            for m, name in enumerate(models):
                moved = x + step * (m - (len(models) - 1) / 2)
                ax.plot(moved, values[m], color=colours[name], lw=1.2)
                dots(ax, moved, values[m], ends[m], colour=colours[name], mark=marks[name], name=name, upright=True)
            ax.set_xlabel(NUMERIC[kind])
            ax.set_ylabel(quantity.label)
            ax.set_xticks(x if len(x) <= 10 else x[:: -(-len(x) // 10)])
        else:
            shown = [slice_title(kind, label) for label in labels]
            figure, ax = chart(len(labels) * (0.13 + 0.08 * len(models)), label_width(shown), models)
            for m, (name, offset) in enumerate(zip(models, offsets(len(models)), strict=True)):
                places = np.arange(len(labels)) + offset
                dots(ax, places, values[m], ends[m], colour=colours[name], mark=marks[name], name=name)
            ax.set_ylim(len(labels) - 0.45, -0.55)
            ax.set_yticks(range(len(labels)), shown)
            ax.set_xlabel(quantity.label)
        axis: Literal["x", "y"] = "y" if numeric else "x"
        set_limits(ax, axis, [values, ends, *reference])
        rule(ax, axis)
        for value in reference:
            line = ax.axhline if numeric else ax.axvline
            line(value, color=INK if value else colours["raw"], lw=1, zorder=1)
        ax.set_title(GROUP_TITLES[kind])
        add_legend(figure, ax, models)
    return Panel(figure, f"{quantity.label} of {', '.join(models)} by {kind}")


def _groups(scores: Mapping[str, Any], kinds: Sequence[str]) -> dict[str, list[str]]:
    """Return the labels of each kind; a single lead time, season or hour repeats the global value and is left out."""
    found = {kind: [one for one in labels if one != "unweighted"] for kind, labels in list_slices(scores).items()}
    return {kind: labels[:MOST_ROWS] for kind, labels in found.items() if kind in kinds}


def _number(values: Mapping[str, Any] | None, label: str) -> float:
    value = (values or {}).get(label)
    return np.nan if value is None else value


def label_kind(labels: Sequence[str]) -> str:
    """Return what the labels of a score are: nominal coverages, quantile levels, thresholds, or categories.

    >>> [label_kind(labels) for labels in (["50 %", "80 %"], ["0.1", "0.9"], ["> 0 °C", "< 10 %"], ["terciles"])]
    ['coverage', 'level', 'threshold', 'categories']
    """
    forms = {"coverage": r"[\d.]+ ?%", "level": r"[\d.]+", "threshold": r".*[<>].*"}
    matching = (kind for kind, form in forms.items() if all(re.fullmatch(form, label) for label in labels))
    return next(matching, "categories")


def starts_chart(scores: Mapping[str, Any], starts: StartScores, name: str) -> Drawing | None:
    """Draw the CRPS that judges a model, of each start, of raw and the model; None for a single start."""
    score = judging_score([scores["models"][name]["crps_fair_valid"]])
    units, factor = display_of(scores)
    times = starts.times.astype("datetime64[s]")
    means = {one: starts.mean(one, score) for one in ("raw", name)}
    lines = {one: factor * mean.value for one, mean in means.items() if mean is not None}
    if len(times) < 2 or len(lines) < 2:
        return None
    colours, marks = model_colours(scores["models"]), model_marks(scores["models"])
    title = f"{judge_title(scores, [name])} by start"
    with matplotlib.rc_context(RC):
        figure, ax = chart(1.9, 0.62, list(lines))
        for one, values in lines.items():
            ax.plot(times, values, color=colours[one], lw=1.1, marker=marks[one], ms=3, mec="none", label=one)
        date_axis(ax, 6, offset=False)
        ax.set_ylim(bottom=0)
        ax.set(title=title, ylabel=units)
        rule(ax, "y")
        add_legend(figure, ax, list(lines))
    better = float(np.mean(lines[name] < lines["raw"]))
    note = f"{name} is better than raw in {100 * better:.0f} % of {len(times)} starts."
    numbers: dict[str, Any] = {"start": [str(time) for time in times], **lines}
    return Drawing("starts", "first", "When", note, (Panel(figure, f"{title} of raw and {name}"),), numbers)
