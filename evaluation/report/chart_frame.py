"""Frames of charts: size, grid, legend, and dots with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure

from evaluation.report.figure_style import FAINT, PANEL_WIDTH

LEGEND_CHARACTERS, LEGEND_ROW = 54, 0.19
"""Number of characters that a row of a legend holds, five for a mark, and its height in inches."""


def chart(body: float, left: float, legend: Sequence[str] = ()) -> tuple[Figure, Axes]:
    """Return a figure of one panel and its axes, `body` inches high, with `left` inches for the labels of the y axis.

    There is room for a title above, and below for the labels of the x axis and for the names of the `legend`. Fixed
    margins take a third of the time of an automatic layout.
    """
    above, below = 0.3, 0.48 + LEGEND_ROW * -(-len(legend) // _legend_columns(legend))
    total = body + above + below
    figure = Figure(figsize=(PANEL_WIDTH, total))
    width = PANEL_WIDTH - left - 0.12
    return figure, figure.add_axes((left / PANEL_WIDTH, below / total, width / PANEL_WIDTH, body / total))


def label_width(labels: Sequence[str]) -> float:
    """Return the width in inches that labels of 9 points need beside an axis."""
    return 0.16 + 0.078 * max(map(len, labels), default=0)


def rule(ax: Axes, axis: Literal["x", "y"]) -> None:
    """Draw thin lines across an axis, and remove the ticks of the other one."""
    ax.grid(axis=axis, color=FAINT, alpha=0.3, lw=0.6)
    ax.tick_params(axis="y" if axis == "x" else "x", length=0)


def add_legend(figure: Figure, ax: Axes, names: Sequence[str]) -> None:
    """Add the legend of `names` at the bottom of a chart that has room for it."""
    if names:
        handles, labels = ax.get_legend_handles_labels()
        figure.legend(
            handles, labels, loc="lower center", ncols=_legend_columns(names), handletextpad=0.3, columnspacing=1.1,
            handlelength=1.2, borderaxespad=0.1, labelspacing=0.35,
        )  # fmt: skip


def _legend_columns(names: Sequence[str]) -> int:
    widest = max(map(len, names), default=1) + 5
    return max(1, min(len(names), 4, LEGEND_CHARACTERS // widest))


def offsets(count: int) -> np.ndarray:
    """Return the places of several models around a row, from above to below."""
    return np.zeros(1) if count == 1 else np.linspace(-0.3, 0.3, count)


def dots(
    ax: Axes,
    places: np.ndarray,
    values: np.ndarray,
    intervals: np.ndarray,
    *,
    colour: str,
    mark: str,
    name: str,
    upright: bool = False,
) -> None:
    """Draw values at rows, or at columns if `upright`, with intervals (n, 2) where they are not NaN."""
    for place, (low, high) in zip(places, intervals, strict=True):
        if np.isfinite(low):
            ends = ([place, place], [low, high]) if upright else ([low, high], [place, place])
            ax.plot(*ends, color=colour, lw=1.8, alpha=0.55, solid_capstyle="butt")
    x, y = (places, values) if upright else (values, places)
    ax.plot(x, y, ls="none", marker=mark, color=colour, ms=5, mec="none", label=name)


def set_limits(ax: Axes, axis: str, values: Sequence[float | np.ndarray], margin: float = 0.06) -> None:
    """Set the ends of an axis to the finite values with a margin."""
    every = np.concatenate([np.atleast_1d(np.asarray(value, float)).ravel() for value in values])
    every = every[np.isfinite(every)]
    if every.size:
        low, high = float(every.min()), float(every.max())
        extra = margin * (high - low) or 0.1 * (abs(high) or 1.0)
        (ax.set_xlim if axis == "x" else ax.set_ylim)(low - extra, high + extra)


def date_axis(ax: Axes, marks: int, offset: bool = True) -> None:
    """Give the x axis at most so many dates; `offset` repeats the part that all dates share at its end."""
    locator = AutoDateLocator(minticks=2, maxticks=marks)
    ax.xaxis.set_major_locator(locator)
    ax.xaxis.set_major_formatter(ConciseDateFormatter(locator, show_offset=offset))
