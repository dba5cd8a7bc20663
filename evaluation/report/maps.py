"""Maps in an equal-area projection, because scores are area-weighted averages."""

from __future__ import annotations

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from data_pipeline.grid import Grid
from data_pipeline.points import Points
from evaluation.report.figure_style import FAINT, INK, PAGE_WIDTH, RC

SEQUENTIAL, DIVERGING, BETTER = "YlGnBu", "RdBu_r", "BrBG"
"""Colour maps for amounts, for differences (red: too high) and for improvements (blue-green: better); all are readable
with colour vision deficiency."""

WIDEST_AREA = 120.0
"""Points with a gap in longitude wider than this (degrees) are drawn as an area, others on the globe."""


def map_figure(
    grid: Grid,
    fields: dict[str, np.ndarray],
    *,
    label: str,
    cmap: str,
    centred: bool,
    land: np.ndarray | None,
) -> Figure:
    """Draw maps, titled by the keys of `fields`, side by side with one colour scale.

    A `centred` scale is symmetric about 0. It ends at the 98th percentile, so that a few extreme cells do not dominate.
    """
    columns = len(fields)
    with matplotlib.rc_context(RC):
        figure = Figure(
            figsize=(4.65 if columns == 1 else PAGE_WIDTH, 3.0 if columns == 1 else 3.2), layout="constrained"
        )
        norm = colour_scale(list(fields.values()), centred)
        axes = [figure.add_subplot(1, columns, k + 1, projection=projection_of(grid)) for k in range(columns)]
        for ax, (title, field) in zip(axes, fields.items(), strict=True):
            mesh = draw_field(ax, grid, field, norm, cmap, land)
            ax.set_title(title)
        add_colour_bar(figure, mesh, axes, label, centred)
    return figure


def colour_scale(fields: list[np.ndarray], centred: bool) -> Normalize:
    """Return the common colour scale of fields; symmetric about 0 if `centred`."""
    values = np.concatenate([field[np.isfinite(field)] for field in fields])
    if not values.size:
        return Normalize(-1, 1)
    if centred:
        end = float(np.quantile(abs(values), 0.98)) or 1.0
        return Normalize(-end, end)
    low, high = (float(q) for q in np.quantile(values, [0.01, 0.99]))
    return Normalize(low, high if high > low else low + 1)


def draw_field(
    ax: Axes, grid: Grid, field: np.ndarray, norm: Normalize, cmap: str, land: np.ndarray | None
) -> matplotlib.cm.ScalarMappable:
    """Draw one field (H, W) with the coast, where `land` (share of land) is one half; points are dots without coast."""
    if isinstance(grid, Points):
        return _draw_points(ax, grid, field, norm, cmap)
    longitudes, columns = _unrolled(grid)
    latitudes = np.array(grid.latitudes)
    project = np.radians if ax.name == "mollweide" else np.asarray
    mesh = ax.pcolormesh(
        project(_edges(longitudes)), project(np.clip(_edges(latitudes), -90, 90)), field[:, columns],
        norm=norm, cmap=cmap, rasterized=True,
    )  # fmt: skip
    if land is not None:
        coast = ax.contour(
            project(longitudes), project(latitudes), land[:, columns], [0.5], colors="#333333", linewidths=0.7
        )
        # As a vector path the projected coast would be the largest part of the page.
        coast.set_rasterized(True)
    _frame(ax, latitudes.mean())
    return mesh


def _draw_points(
    ax: Axes, points: Points, field: np.ndarray, norm: Normalize, cmap: str
) -> matplotlib.cm.ScalarMappable:
    """Draw each point as a dot; the fewer points, the larger. Points without a value are empty circles."""
    longitudes, latitudes, values = _centred(points), np.array(points.latitudes), field.ravel()
    known, size = np.isfinite(values), float(np.clip(4000 / len(values), 0.5, 60))
    project = np.radians if ax.name == "mollweide" else np.asarray
    x, y = project(longitudes), project(latitudes)
    ax.scatter(x[~known], y[~known], size, facecolors="none", edgecolors=FAINT, linewidths=0.7, rasterized=True)
    edge = {"linewidths": 0.3, "edgecolors": FAINT} if len(values) < 2000 else {"linewidths": 0}
    dots = ax.scatter(x[known], y[known], size, values[known], norm=norm, cmap=cmap, rasterized=True, **edge)
    if ax.name != "mollweide":
        ax.set(xlim=_limits(longitudes), ylim=_limits(latitudes))
    _frame(ax, latitudes.mean())
    return dots


def _frame(ax: Axes, latitude: float) -> None:
    """Remove ticks, frame the map, and draw degrees of longitude as long as they are at `latitude`."""
    ax.grid(visible=False)
    ax.set(xticks=[], yticks=[])
    if ax.name != "mollweide":
        ax.set_aspect(1 / max(np.cos(np.radians(latitude)), 0.1))
    for spine in ax.spines.values():
        spine.set(visible=True, color=FAINT, linewidth=0.7)


def _centred(points: Points) -> np.ndarray:
    """Return longitudes without a jump inside the area of the points: they begin after the widest gap."""
    around = np.array(points.longitudes) % 360
    ordered = np.unique(around)
    gaps = np.diff(ordered, append=ordered[0] + 360)
    west = ordered[(int(gaps.argmax()) + 1) % len(ordered)]
    if gaps.max() < WIDEST_AREA:
        west = 180.0
    east = (around - west) % 360 + west
    return east - 360 * np.floor((east.mean() + 180) / 360)


def _limits(values: np.ndarray) -> tuple[float, float]:
    """Return the ends of an axis with a margin around values that may be equal."""
    margin = max(0.08 * float(np.ptp(values)), 0.5)
    return float(values.min()) - margin, float(values.max()) + margin


def add_colour_bar(
    figure: Figure, mesh: matplotlib.cm.ScalarMappable, axes: list[Axes], label: str, both_ends: bool
) -> None:
    """Add a horizontal colour bar with arrow heads at the ends that values exceed."""
    bar = figure.colorbar(
        mesh, ax=axes, orientation="horizontal", label=label, aspect=34, shrink=0.7 if len(axes) == 1 else
        0.45, pad=0.03, extend="both" if both_ends else "max",
    )  # fmt: skip
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=2, color=INK)


def projection_of(grid: Grid) -> str:
    """Return the projection of a map: the whole globe for a grid around it, or for points around it."""
    around = isinstance(grid, Points) and float(np.ptp(_centred(grid))) > 360 - WIDEST_AREA
    return "mollweide" if grid.periodic or around else "rectilinear"


def _unrolled(grid: Grid) -> tuple[np.ndarray, np.ndarray]:
    """Return longitudes and column indices from date line to date line; a globe overlaps by a column on each side."""
    longitudes = np.array(grid.longitudes)
    if not grid.periodic:
        return longitudes, np.arange(len(longitudes))
    centred = (longitudes + 180) % 360 - 180
    order = np.argsort(centred)
    first, last = order[0], order[-1]
    unrolled = np.concatenate([[centred[last] - 360], centred[order], [centred[first] + 360]])
    return unrolled, np.concatenate([[last], order, [first]])


def _edges(centres: np.ndarray) -> np.ndarray:
    """Return the borders of cells around `centres`."""
    if len(centres) == 1:
        return np.array([centres[0] - 0.5, centres[0] + 0.5])
    middle = (centres[1:] + centres[:-1]) / 2
    return np.concatenate([[2 * centres[0] - middle[0]], middle, [2 * centres[-1] - middle[-1]]])
