"""The figures of the report and the data that they show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from data_pipeline.grid import Grid
from evaluation.report.charts import gain_chart, histogram_chart, skill_chart, spread_chart
from evaluation.report.figure_style import PAGE_WIDTH, RC
from evaluation.report.maps import (
    BETTER,
    DIVERGING,
    SEQUENTIAL,
    add_colour_bar,
    colour_scale,
    draw_field,
    map_figure,
    projection_of,
)
from evaluation.report.tables import display_of


@dataclass(frozen=True)
class ExampleForecast:
    """One forecast of the split; all fields (H, W) are in physical units."""

    init_time: int
    lead_time: int
    truth: np.ndarray
    raw_mean: np.ndarray
    mean: np.ndarray
    std: np.ndarray

    @property
    def valid(self) -> str:
        """Start and valid time as text."""
        start = datetime.fromtimestamp(self.init_time, UTC)
        end = start + timedelta(hours=self.lead_time)
        return f"{start:%-d %B %Y, %H} UTC + {self.lead_time} h, valid {end:%-d %B %Y, %H} UTC"


@dataclass(frozen=True)
class MapData:
    """Data of the maps at the longest lead time: averages (H, W) of each model, and one example forecast.

    `land` is the land fraction, None if it is unknown. `cells` has averages (H, W) by lead time, statistic and model.
    """

    grid: Grid
    lead_time: int
    crps: Mapping[str, np.ndarray]
    crps_fair: Mapping[str, np.ndarray]
    bias: Mapping[str, np.ndarray]
    example: ExampleForecast
    land: np.ndarray | None = None
    cells: Mapping[int, Mapping[str, Mapping[str, np.ndarray]]] = field(default_factory=dict)


def improvement(scores: Mapping[str, Any], fields: MapData, name: str) -> tuple[np.ndarray, str]:
    """Return the reduction of a model's CRPS relative to the raw ensemble in per cent, and a label."""
    fair = scores["models"][name]["crps_fair_valid"]
    crps = fields.crps_fair if fair else fields.crps
    raw, corrected = crps["raw"], crps[name]
    with np.errstate(invalid="ignore", divide="ignore"):
        share = 100 * (raw - corrected) / np.where(raw > 0, raw, np.nan)
    return share, f"{name}: {'fair ' if fair else ''}CRPS below raw (%)"


def draw_figures(scores: Mapping[str, Any], fields: MapData) -> dict[str, Figure]:
    """Return every figure of the report by its file name."""
    best, (units, factor) = scores["best"]["model"], display_of(scores)

    def draw(maps: dict[str, np.ndarray], label: str, cmap: str, centred: bool) -> Figure:
        return map_figure(fields.grid, maps, label=label, cmap=cmap, centred=centred, land=fields.land)

    gained, label = improvement(scores, fields, best)
    bias = {name: factor * fields.bias[name] for name in ("raw", best)}
    raw = {"": factor * fields.crps["raw"]}
    figures = {
        "crps_raw": draw(raw, f"CRPS of the raw ensemble ({units})", SEQUENTIAL, centred=False),
        "improvement": draw({"": gained}, label, BETTER, centred=True),
        "bias": draw(bias, f"mean forecast − analysis ({units})", DIVERGING, centred=True),
        "skill": skill_chart(scores),
        "histograms": histogram_chart(scores),
        "spread": spread_chart(scores),
        "example": _example_figure(fields, best, units, factor),
    }
    if scores["oracle"] and best != "climatology":
        figures["gain"] = gain_chart(scores)
    return figures


def _example_figure(fields: MapData, best: str, units: str, factor: float) -> Figure:
    """Draw analysis, both means, their errors and the corrected spread of one forecast, times `factor`."""
    example = fields.example
    truth, raw, mean, std = (factor * field for field in (example.truth, example.raw_mean, example.mean, example.std))
    values = {"analysis": truth, "raw mean": raw, f"{best} mean": mean}
    errors = {"raw − analysis": raw - truth, f"{best} − analysis": mean - truth}
    projection = projection_of(fields.grid)
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(PAGE_WIDTH, 4.6), layout="constrained")
        axes = figure.subplots(2, 3, subplot_kw={"projection": projection})
        panels = (
            (axes[0], values, False, "RdYlBu_r", units),
            (axes[1, :2], errors, True, DIVERGING, f"error of the mean ({units})"),
            (
                axes[1, 2:],
                {f"{best} spread": std},
                False,
                SEQUENTIAL,
                f"standard deviation ({units})",
            ),
        )
        for row, content, centred, cmap, label in panels:
            norm = colour_scale(list(content.values()), centred)
            for ax, (title, field) in zip(row, content.items(), strict=True):
                mesh = draw_field(ax, fields.grid, field, norm, cmap, fields.land)
                ax.set_title(title)
            add_colour_bar(figure, mesh, list(row), label, centred)
    return figure
