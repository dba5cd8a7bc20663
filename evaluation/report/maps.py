"""Maps: one field in colours, with coasts, and hatched where it is not significant; the map of a mixture of experts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import matplotlib
import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import BoundaryNorm, Colormap, ListedColormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse, Rectangle
from matplotlib.ticker import FuncFormatter, NullLocator

from data_pipeline.grid import Grid
from data_pipeline.grids.points import Points
from evaluation.report.coastlines import Coastlines
from evaluation.report.drawing import Drawing, Panel
from evaluation.report.figure_style import FAINT, INK, PANEL_WIDTH, RC
from evaluation.report.map_view import MapView, centred_longitudes, raster_of, view_of
from evaluation.report.shown_data import ExpertMap

SEQUENTIAL, DIVERGING, BETTER = "YlGnBu", "RdBu_r", "BrBG"
"""Colour maps for amounts, for differences (red: too high) and for improvements (blue-green: better); all are readable
with colour vision deficiency."""
COAST, MISSING = "#333333", "#c9ced4"
"""Colours of coasts on a field, and of cells without a value: the same in light and dark pages."""
TALLEST = 3.6
"""Greatest height of a map in inches."""
RATIOS = (0.1, 0.2, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 5.0, 10.0)
"""Marks of the colour bar of a ratio."""


@dataclass(frozen=True)
class ColourScale:
    """The colours of one or more maps, and the `label` of their colour bar."""

    norm: Normalize
    cmap: str | Colormap
    label: str
    extend: str = "both"


@dataclass(frozen=True)
class Coast:
    """The coast on a map of `grid`: the Earth's, or the half-way contour of `land` (share of land, (H, W)), or none."""

    grid: Grid
    land: np.ndarray | None = None
    earth: bool = False

    @cached_property
    def lines(self) -> list[np.ndarray]:
        """Lines (n, 2) in the coordinates of the map, without details smaller than a pixel."""
        view = view_of(self.grid)
        if self.earth:
            coasts = Coastlines.load()
            found = list(coasts.lines) if view.globe else coasts.within(*view.box)
        elif self.land is not None and not isinstance(self.grid, Points):
            found = _contour(self.grid, self.land)
        else:
            return []
        left, right, _, _ = view.box
        pixel = (right - left) / 900
        thinned = []
        for line in found:
            line = np.stack(view.project(*line.T), 1)
            whole = np.round(line / pixel)
            moved = np.any(np.diff(whole, axis=0) != 0, axis=1)
            thinned.append(line[np.concatenate([[True], moved])])
        return [line for line in thinned if len(line) > 1]


def colour_scale(fields: Sequence[np.ndarray], centred: bool) -> Normalize:
    """Return the common colour scale of fields.

    A `centred` scale is symmetric about 0. Scales end at the 98th and 99th percentile, so that a few extreme cells do
    not dominate.
    """
    values = np.concatenate([field[np.isfinite(field)] for field in fields])
    if not values.size:
        return Normalize(-1, 1)
    if centred:
        end = float(np.quantile(abs(values), 0.98)) or 1.0
        return Normalize(-end, end)
    low, high = (float(q) for q in np.quantile(values, [0.01, 0.99]))
    return Normalize(low, high if high > low else low + 1)


def ratio_scale(fields: Sequence[np.ndarray]) -> LogNorm:
    """Return the common logarithmic scale of ratios, symmetric about 1: half and double are equally far from it."""
    values = np.concatenate([field[np.isfinite(field) & (field > 0)] for field in fields])
    end = float(np.exp(np.quantile(abs(np.log(values)), 0.98))) if values.size else 2.0
    end = min(max(end, 1.1), 10.0)
    return LogNorm(1 / end, end)


def map_panel(
    coast: Coast, field: np.ndarray, scale: ColourScale, title: str, significant: np.ndarray | None = None
) -> Panel:
    """Draw a field (H, W); cells where `significant` (H, W) is false are hatched, points get a cross."""
    view = view_of(coast.grid)
    left, right, bottom, top = view.box
    shape = (top - bottom) / (right - left) * view.aspect
    width = min(PANEL_WIDTH - 0.1, TALLEST / shape)
    height = width * shape
    above, below = 0.3 if title else 0.08, 0.55
    total = height + above + below
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(PANEL_WIDTH, total))
        ax = figure.add_axes(
            ((PANEL_WIDTH - width) / 2 / PANEL_WIDTH, below / total, width / PANEL_WIDTH, height / total)
        )
        drawn = draw_field(ax, coast, field, scale, significant)
        if title:
            figure.text(0.05 / PANEL_WIDTH, 1 - 0.06 / total, title, va="top", fontweight="bold", fontsize=9.5)
        bar_axes = figure.add_axes((0.12, (below - 0.14) / total, 0.76, 0.09 / total))
        bar = figure.colorbar(drawn, cax=bar_axes, orientation="horizontal", label=scale.label, extend=scale.extend)
        bar.outline.set_visible(False)
        bar.ax.tick_params(length=2, color=INK)
        if isinstance(scale.norm, LogNorm):
            marks = [mark for mark in RATIOS if 0 <= float(scale.norm(mark)) <= 1]
            bar.set_ticks(marks if len(marks) < 8 else [mark for mark in marks if mark not in (0.67, 0.9, 1.1, 1.5)])
            bar.ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            bar.ax.xaxis.set_minor_locator(NullLocator())
    return Panel(figure, f"Map: {title or scale.label}")


def draw_field(
    ax: Axes, coast: Coast, field: np.ndarray, scale: ColourScale, significant: np.ndarray | None = None
) -> ScalarMappable:
    """Draw one field with its coast: cells as an image of pixels, points as dots."""
    grid, view = coast.grid, view_of(coast.grid)
    left, right, bottom, top = view.box
    if isinstance(grid, Points):
        _frame(ax, view, "none")
        ax.add_collection(LineCollection(coast.lines, colors="#808080", linewidths=0.6, rasterized=True))
        drawn = _draw_points(ax, view, grid, field, scale, significant)
    else:
        _frame(ax, view, MISSING)
        raster = raster_of(grid)
        place: dict[str, Any] = {
            "extent": (left, right, bottom, top), "origin": "lower", "aspect": "auto", "interpolation": "none"
        }  # fmt: skip
        drawn = ax.imshow(raster.picture(field), norm=scale.norm, cmap=scale.cmap, **place)
        if significant is not None:
            hatched = raster.picture(np.where(significant | ~np.isfinite(field), np.nan, 1.0))
            ax.imshow(
                np.ma.masked_where(np.ma.getmaskarray(hatched) | ~raster.stripes, hatched),
                cmap=ListedColormap(["#22272e"]), alpha=0.5, **place,
            )  # fmt: skip
        ax.add_collection(LineCollection(coast.lines, colors=COAST, linewidths=0.7, rasterized=True))
    ax.set(xlim=(left, right), ylim=(bottom, top))
    return drawn


def map_numbers(grid: Grid, fields: Mapping[str, np.ndarray]) -> dict[str, Sequence | np.ndarray]:
    """Return fields as columns: a row for each latitude and a column for each longitude, or a row for each point."""
    if isinstance(grid, Points):
        place: dict[str, Sequence | np.ndarray] = {"id": grid.ids} if grid.ids else {}
        place |= {"latitude": np.array(grid.latitudes), "longitude": np.array(grid.longitudes)}
        return place | {name: np.asarray(field, float).ravel() for name, field in fields.items()}
    values = np.concatenate([np.asarray(field, float) for field in fields.values()])
    return {
        "field": np.repeat(list(fields), len(grid.latitudes)),
        "latitude": np.tile(np.array(grid.latitudes), len(fields)),
    } | {f"{longitude:g}": column for longitude, column in zip(grid.longitudes, values.T, strict=True)}


def _draw_points(
    ax: Axes, view: MapView, points: Points, field: np.ndarray, scale: ColourScale, significant: np.ndarray | None
) -> ScalarMappable:
    """Draw each point as a dot; the fewer points, the larger. Points without a value are empty circles."""
    values = field.ravel()
    known, size = np.isfinite(values), float(np.clip(4000 / len(values), 0.5, 60))
    x, y = view.project(centred_longitudes(points), np.array(points.latitudes))
    ax.scatter(x[~known], y[~known], size, facecolors="none", edgecolors=FAINT, linewidths=0.7, rasterized=True)
    edge = {"linewidths": 0.3, "edgecolors": FAINT} if len(values) < 2000 else {"linewidths": 0}
    dots = ax.scatter(
        x[known], y[known], size, values[known], norm=scale.norm, cmap=scale.cmap, rasterized=True, **edge
    )
    if significant is not None:
        crossed = known & ~significant.ravel()
        ax.scatter(x[crossed], y[crossed], size, c="#22272e", marker="x", linewidths=0.7, rasterized=True)
    return dots


def _frame(ax: Axes, view: MapView, background: str) -> None:
    """Draw the edge of a map, and nothing else of the axes."""
    ax.set_axis_off()
    left, right, bottom, top = view.box
    shape, place = (Ellipse, (0, 0)) if view.globe else (Rectangle, (left, bottom))
    edge = shape(place, right - left, top - bottom, facecolor=background, edgecolor=FAINT, linewidth=0.7)
    edge.set(zorder=-1, clip_on=False)
    ax.add_patch(edge)


def _contour(grid: Grid, land: np.ndarray) -> list[np.ndarray]:
    """Return the lines in degrees where the share of land is one half."""
    longitudes, columns = np.array(grid.longitudes), np.arange(grid.shape[1])
    if grid.periodic:
        # From date line to date line, with a column more on each side.
        centred = (longitudes + 180) % 360 - 180
        order = np.argsort(centred)
        first, last = order[0], order[-1]
        longitudes = np.concatenate([[centred[last] - 360], centred[order], [centred[first] + 360]])
        columns = np.concatenate([[last], order, [first]])
    if min(land.shape) < 2:
        return []
    contour = Figure().add_subplot().contour(longitudes, np.array(grid.latitudes), land[:, columns], [0.5])
    paths = [np.asarray(line) for path in contour.get_paths() for line in path.to_polygons(closed_only=False)]
    if grid.periodic:
        paths = [np.stack([np.clip(line[:, 0], -180, 180), line[:, 1]], 1) for line in paths]
    return [line for line in paths if len(line) > 1]


def expert_drawing(coast: Coast, experts: ExpertMap, best: str, case: str = "the median case") -> Drawing:
    """Draw the expert that the gate of `best` chooses first in every cell, in colours of increasing lightness."""
    colours = colormaps["viridis"](np.linspace(0, 1, experts.count))
    norm = BoundaryNorm(np.arange(experts.count + 1) + 0.5, experts.count)
    scale = ColourScale(norm, ListedColormap(colours), "expert", "neither")
    chosen = np.asarray(experts.chosen, float) + 1
    used = np.unique(chosen[np.isfinite(chosen)])
    note = (
        f"The expert that the gate of {best} puts first in each cell of {case}, in the layer {experts.layer}; "
        f"{len(used)} of {experts.count} experts are first somewhere. The order of their numbers has no meaning."
    )
    panel = map_panel(coast, chosen, scale, "")
    step = -(-experts.count // 10)
    panel.figure.axes[1].set_xticks(range(1, experts.count + 1, step))
    panel.figure.axes[1].set_xticks([], minor=True)
    return Drawing(
        "experts", "experts", "Experts of the mixture", note, (panel,), map_numbers(coast.grid, {"expert": chosen})
    )
