"""Figures are readable with any colour vision, on light and dark pages, and on a phone."""

import itertools

import matplotlib
import numpy as np
import pytest
from drawn_data import drawn_fields, drawn_scores
from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.text import Text

from evaluation.report.case_figures import FIELDS
from evaluation.report.figure_style import (
    MODEL_COLOURS,
    PANEL_WIDTH,
    RC,
    REFERENCE_COLOURS,
    model_colours,
    model_marks,
)
from evaluation.report.figures import draw_figures
from evaluation.report.maps import BETTER, DIVERGING, SEQUENTIAL

VISION = {
    "normal": np.eye(3),
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
}
"""How linear red, green and blue are seen (Machado et al. 2009, doi:10.1109/TVCG.2009.113, severity 1)."""
PHONE = 390 - 2 * 16
"""Width of a figure in pixels on a page of 390 pixels, whose margins are 1 rem."""


def linear(colours):
    """Linear light of sRGB colours (..., 3)."""
    colours = np.asarray(colours, float)
    return np.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)


def luminance(colours):
    return linear(colours) @ [0.2126, 0.7152, 0.0722]


def lab(colours, vision):
    """CIELAB (D65) of sRGB colours (..., 3) as they are seen."""
    light = np.clip(linear(colours) @ np.array(VISION[vision]).T, 0, 1)
    xyz = light @ np.array([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750],
                            [0.0193339, 0.1191920, 0.9503041]]).T / [0.95047, 1, 1.08883]  # fmt: skip
    f = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    x, y, z = np.moveaxis(f, -1, 0)
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], -1)


@pytest.mark.parametrize("vision", VISION)
def test_models_have_colours_that_can_be_told_apart(vision):
    colours = [to_rgb(colour) for colour in (*REFERENCE_COLOURS.values(), *MODEL_COLOURS)]
    distances = [np.linalg.norm(one - other) for one, other in itertools.combinations(lab(colours, vision), 2)]
    assert min(distances) > 15


def test_models_stand_out_from_the_page_and_from_each_other():
    for paper in ("#fcfcfb", "#15191d"):
        for name, colour in model_colours(["a", "b", "c", "d", "e"]).items():
            dark, light = sorted([luminance(to_rgb(colour)), luminance(to_rgb(paper))])
            assert (light + 0.05) / (dark + 0.05) > 1.8, name
    names = ["raw", "climatology", "emos", "oracle", "persistence", *(f"model {k}" for k in range(30))]
    colours, marks = model_colours(names), model_marks(names)
    assert len({(colours[name], marks[name]) for name in names}) == len(names)
    without = [name for name in names if name != "emos"]
    assert model_colours(without) == colours, "references have fixed colours"


@pytest.mark.parametrize("vision", VISION)
def test_scales_can_be_read(vision):
    """Lightness falls to both ends of a scale of differences, and equally large values of both signs have different
    colours; it orders amounts."""
    low, high = np.linspace(0.25, 0.0, 6), np.linspace(0.75, 1.0, 6)
    for name in (DIVERGING, BETTER, FIELDS):
        colours = [lab(colormaps[name](values)[:, :3], vision) for values in (low, high)]
        assert np.linalg.norm(colours[0] - colours[1], axis=1).min() > 20
        for side in colours:
            assert (np.diff(side[:, 0]) < 0).all()
    for name in (SEQUENTIAL, "viridis"):
        steps = np.diff(lab(colormaps[name](np.linspace(0, 1, 64))[:, :3], vision)[:, 0])
        assert (np.sign(steps) == np.sign(steps[0])).all()


@pytest.fixture(scope="module")
def every_drawing():
    return draw_figures(drawn_scores(), drawn_fields())


def texts_of(figure):
    return [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]


def test_text_has_eight_pixels_on_a_phone(every_drawing):
    for name, drawing in every_drawing.items():
        for panel in drawing.panels:
            width = panel.figure.get_figwidth()
            assert width == PANEL_WIDTH, name
            smallest = min(text.get_fontsize() for text in texts_of(panel.figure))
            assert smallest * PHONE / (72 * width) >= 8, name


def labels_in_view(ax, axis):
    """The labels of the marks that an axis shows, in their order."""
    low, high = sorted(ax.get_xlim() if axis == "x" else ax.get_ylim())
    pairs = zip(getattr(ax, f"get_{axis}ticks")(), getattr(ax, f"get_{axis}ticklabels")(), strict=False)
    return [
        label for place, label in sorted(pairs, key=lambda pair: pair[0]) if low <= place <= high and label.get_text()
    ]


def test_nothing_is_cut_off(every_drawing):
    """All text lies inside its figure, and labels of an axis do not overlap."""
    for name, drawing in every_drawing.items():
        for panel in drawing.panels:
            figure = panel.figure
            with matplotlib.rc_context(RC):
                FigureCanvasAgg(figure).draw()
            shown = [*figure.texts, *(text for legend in figure.legends for text in legend.get_texts())]
            for ax in figure.axes:
                if not ax.axison:
                    continue
                along = {axis: labels_in_view(ax, axis) for axis in ("x", "y")}
                shown += [*along["x"], *along["y"], *ax.texts, ax.xaxis.label, ax.yaxis.label]
                for axis, labels in along.items():
                    boxes = [label.get_window_extent() for label in labels]
                    ends = sorted((box.x0, box.x1) if axis == "x" else (box.y0, box.y1) for box in boxes)
                    assert all(one[1] <= other[0] for one, other in itertools.pairwise(ends)), (name, axis, labels)
            inside = figure.bbox.padded(1.5)
            for text in shown:
                box = text.get_window_extent()
                if text.get_text():
                    assert inside.x0 <= box.x0 <= box.x1 <= inside.x1, (name, text.get_text())
                    assert inside.y0 <= box.y0 <= box.y1 <= inside.y1, (name, text.get_text())
