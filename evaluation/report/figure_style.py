"""Style of the figures, and their output as SVG for the page (light and dark theme)."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from typing import Any

import matplotlib
from markupsafe import Markup
from matplotlib.figure import Figure

PANEL_WIDTH = 4.6
"""Width of every panel in inches. Text of 8 points then has 8 pixels and more on a page that is 390 pixels wide."""
INK, FAINT = "#22272e", "#8b949e"
"""Colours of text and of rules; the page replaces them by the colours of its theme."""
THEMED = {INK: "currentColor", FAINT: "var(--faint)"}

REFERENCE_COLOURS = {
    "raw": "#7d8590", "climatology": "#b9b382", "emos": "#56b4e9", "persistence": "#823740", "oracle": "#e69f00",
}  # fmt: skip
MODEL_COLOURS = ("#d55e00", "#0072b2", "#912a0f", "#486efc", "#3203fa")
"""With the references, colours whose least distance in CIELAB is 18 with normal, deuteranopic and protanopic vision;
the first two are of Okabe & Ito. More models than colours differ by their marks."""
REFERENCE_MARKS = {"raw": "o", "climatology": "s", "emos": "D", "persistence": "X", "oracle": "*"}
MODEL_MARKS = ("o", "^", "v", "P", "s", "D", "X")
"""Marks on charts. Seven marks and five colours together repeat after 35 models."""

RC: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "svg.fonttype": "none",
    "axes.formatter.useoffset": False,
}


def model_colours(names: Iterable[str]) -> dict[str, str]:
    """Return a colour for each model; the references have the same colour in every report."""
    others = [name for name in names if name not in REFERENCE_COLOURS]
    return REFERENCE_COLOURS | {name: MODEL_COLOURS[k % len(MODEL_COLOURS)] for k, name in enumerate(others)}


def model_marks(names: Iterable[str]) -> dict[str, str]:
    """Return a mark for each model; models of the same colour have different marks."""
    others = [name for name in names if name not in REFERENCE_MARKS]
    return REFERENCE_MARKS | {name: MODEL_MARKS[k % len(MODEL_MARKS)] for k, name in enumerate(others)}


def inline_svg(figure: Figure, name: str, alt: str) -> Markup:
    """Return an `<svg>` element with the font and text colour of the page.

    Its ids begin with `name`, because all figures of a page share one name space.
    """
    buffer = io.StringIO()
    with matplotlib.rc_context(RC | {"svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", dpi=150, metadata={"Date": None})
    svg = buffer.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    # Two equal images in a figure would have the same id; nothing refers to it.
    svg = re.sub(r'(<image[^>]*?) id="[^"]*"', r"\1", svg)
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    svg = svg.replace("'DejaVu Sans'", "inherit")
    for colour, themed in THEMED.items():
        svg = svg.replace(colour, themed)
    # The viewBox keeps the proportions; the page sets the width.
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    return Markup('<svg role="img" aria-label="{}"').format(alt) + Markup(svg.removeprefix("<svg"))
