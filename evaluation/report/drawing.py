"""Drawings: the figures of the report with their words, their numbers, and their files.

A drawing has one or more panels. Each panel is an SVG of its own, so that the page arranges panels by its width.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import imsave

from data_pipeline.common.files import atomic_path
from evaluation.report.figure_style import RC, inline_svg

FIRST_SCREEN = "first"
"""The section of the figures on the first screen."""
SECTIONS = {
    "curves": "Parts of the forecasts", "maps": "Maps", "calibration": "Calibration",
    "decisions": "Events and decisions", "experts": "Experts", "cases": "Single forecasts",
}  # fmt: skip
"""Headings of the other sections of the page with figures, in their order."""
PNG_DPI, PNG_COLUMNS = 160, 2
"""Resolution of the PNG files, and how many panels stand beside each other there."""


@dataclass(frozen=True)
class Panel:
    """One picture, at most `figure_style.PANEL_WIDTH` wide; `alt` says in words what it shows."""

    figure: Figure
    alt: str


@dataclass(frozen=True)
class Drawing:
    """A figure of the report, whose files are `figures/NAME.png` and `figures/NAME.csv`.

    `section` is the part of the page, `title` the heading, and `note` explains the figure. `numbers` are the columns of
    the CSV, all of one length: every number that the panels show.
    """

    name: str
    section: str
    title: str
    note: str
    panels: tuple[Panel, ...]
    numbers: Mapping[str, Sequence[Any] | np.ndarray]

    def __post_init__(self) -> None:
        lengths = {key: len(column) for key, column in self.numbers.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"{self.name}: the columns of numbers have different lengths, {lengths}")

    def pictures(self, before: str = "") -> Iterator[Markup]:
        """Yield the panels as SVG elements for a page, with ids that begin with `before`."""
        for number, panel in enumerate(self.panels):
            yield inline_svg(panel.figure, f"{before}{self.name}-{number}", panel.alt)


def write_files(folder: Path, drawing: Drawing) -> None:
    """Write `NAME.png`, all panels on a white background, and `NAME.csv` into `folder`."""
    pictures = [_pixels(panel.figure) for panel in drawing.panels]
    height, width = (max(picture.shape[axis] for picture in pictures) for axis in (0, 1))
    across = min(PNG_COLUMNS, len(pictures))
    rows = -(-len(pictures) // across)
    sheet = np.full((rows * height, across * width, 4), 255, np.uint8)
    for number, picture in enumerate(pictures):
        top, left = number // across * height, number % across * width
        sheet[top : top + picture.shape[0], left : left + picture.shape[1]] = picture
    with atomic_path(folder / f"{drawing.name}.png") as partial:
        imsave(partial, sheet, format="png", dpi=PNG_DPI, pil_kwargs={"compress_level": 2})
    columns = [_texts(np.asarray(column)) for column in drawing.numbers.values()]
    with (
        atomic_path(folder / f"{drawing.name}.csv") as partial,
        partial.open("w", newline="", encoding="utf-8") as file,
    ):
        csv.writer(file, lineterminator="\n").writerows([tuple(drawing.numbers), *zip(*columns, strict=True)])


def sections_of(drawings: Iterable[Drawing]) -> list[tuple[str, str, list[Drawing]]]:
    """Return id, heading and drawings of each of SECTIONS that has drawings."""
    everything = list(drawings)
    found = [(name, heading, [one for one in everything if one.section == name]) for name, heading in SECTIONS.items()]
    return [one for one in found if one[2]]


def _texts(column: np.ndarray) -> list[str]:
    """Return the cells of a column; numbers have six significant digits, and missing ones are empty."""
    if column.dtype.kind == "f":
        # One formatting of all numbers takes half the time of one for each.
        return ("%.6g\n" * len(column) % tuple(column.tolist())).replace("nan", "").split("\n")[:-1]
    return ["" if value is None else str(value) for value in column.tolist()]


def _pixels(figure: Figure) -> np.ndarray:
    """Return the figure as (H, W, 4) on white. Its layout is kept for the SVG, which so takes a third of the time."""
    canvas = FigureCanvasAgg(figure)
    figure.set_dpi(PNG_DPI)
    with matplotlib.rc_context(RC):
        figure.patch.set_facecolor("white")
        canvas.draw()
        figure.patch.set_facecolor("none")
    figure.set_layout_engine("none")
    return np.asarray(canvas.buffer_rgba()).copy()
