"""Charts show the numbers of scores.json, and are readable with any colour vision, light or dark, and on a phone."""

import itertools

import matplotlib
import numpy as np
import pytest
from drawn_data import GRID, HOURS, LEADS, LEVELS, MODELS, THRESHOLDS, drawn_fields, drawn_target
from map_pixels import globe_values
from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.text import Text

from evaluation.report import case_figures
from evaluation.report.diagrams import calibration_drawing
from evaluation.report.drawing import write_files
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

TARGET = drawn_target()
SCORES, FIELDS = TARGET.scores, TARGET.fields
CORRECTED = [name for name in MODELS if name not in ("raw", "climatology")]


@pytest.fixture(scope="module")
def drawings():
    return draw_figures(TARGET)


def axes_of(drawing, title):
    (found,) = [p.figure.axes[0] for p in drawing.panels if p.figure.axes[0].get_title(loc="left") == title]
    return found


def marked(ax):
    """Places of the marks of each model, by its name."""
    return {line.get_label(): line.get_xydata() for line in ax.lines if not line.get_label().startswith("_")}


def bars_of(ax, name):
    """Both ends of the intervals of a model."""
    colour = model_colours(MODELS)[name]
    return [line.get_xydata() for line in ax.lines if line.get_linewidth() == 1.8 and line.get_color() == colour]


@pytest.mark.parametrize(
    ("drawing", "title", "kind", "labels"),
    [
        ("skill", "Lead time", "lead", LEADS), ("skill", "Hour of valid time", "hour", HOURS),
        ("spread", "Lead time", "lead", LEADS), ("parts_bias", "Lead time", "lead", LEADS),
    ],
)  # fmt: skip
def test_curves_over_time_show_scores_and_intervals(drawings, drawing, title, kind, labels):
    ax = axes_of(drawings[drawing], title)
    names = CORRECTED if drawing == "skill" else ["raw", *CORRECTED]
    assert set(marked(ax)) == set(names)
    low, high = ax.get_ylim()
    for name in names:
        entries = [SCORES["models"][name]["by"][kind][str(label)] for label in labels]
        if drawing == "skill":
            values = [100 * one["skill_vs_raw_fair"] for one in entries]
            ends = [100 * np.array(one["ci95"]["skill_vs_raw_fair"]) for one in entries]
        else:
            score = {"spread": "spread_skill", "parts_bias": "bias"}[drawing]
            values, ends = [one[score] for one in entries], [one["ci95"][score] for one in entries]
        places = marked(ax)[name]
        np.testing.assert_allclose(places[:, 1], values)
        if drawing == "skill":
            np.testing.assert_allclose(places[:, 0], labels, atol=0.03 * np.ptp(labels))
        drawn = np.array([bar[:, 1] for bar in bars_of(ax, name)])
        np.testing.assert_allclose(drawn, ends)
        assert low < drawn.min() < drawn.max() < high


@pytest.mark.parametrize(
    ("name", "kind", "labels"), [("brier", "Threshold", THRESHOLDS), ("quantile_score", "Quantile level", LEVELS)]
)
def test_skill_over_thresholds(drawings, name, kind, labels):
    drawing = drawings[f"thresholds_{name}"]
    ax = axes_of(drawing, kind)
    assert [label.get_text() for label in ax.get_yticklabels()] == list(labels)
    for m, model in enumerate(CORRECTED):
        expected = [100 * SCORES["models"][model]["skill"][name][label] for label in labels]
        np.testing.assert_allclose(marked(ax)[model][:, 0], expected)
        mine = slice(m * len(labels), (m + 1) * len(labels))
        np.testing.assert_allclose(drawing.numbers["skill_percent"][mine], expected)
        for bar, label in zip(bars_of(ax, model), labels, strict=True):
            np.testing.assert_allclose(
                bar[:, 0], [100 * end for end in SCORES["models"][model]["ci95_skill"][name][label]]
            )


@pytest.mark.parametrize("name", ["reliability", "roc", "economic_value", "spread_error", "other"])
def test_diagrams_show_their_curves(drawings, name):
    drawing = drawings[name]
    labels = THRESHOLDS if name in ("reliability", "roc", "economic_value") else ("",)
    assert len(drawing.panels) == len(labels)
    written = drawing.numbers
    for label in labels:
        ax = axes_of(drawing, label or name)
        assert list(marked(ax)) == list(MODELS)
        for model in MODELS:
            data = {key: np.array(v, float) for key, v in SCORES["models"][model]["diagrams"][name][label].items()}
            np.testing.assert_allclose(marked(ax)[model], np.stack([data["x"], data["y"]], 1))
            mine = (np.array(written["label"]) == label) & (np.array(written["model"]) == model)
            for key, values in data.items():
                np.testing.assert_allclose(np.array(written[key], float)[mine], values)


def test_reliability_has_consistency_bars_and_value_as_forecast_is_a_dotted_line(drawings):
    above, below = drawings["reliability"].panels[0].figure.axes
    value = axes_of(drawings["economic_value"], THRESHOLDS[1])
    dotted = [line for line in value.lines if line.get_linewidth() == 0.9 and len(line.get_xdata()) == 99]
    for k, model in enumerate(MODELS):
        data = SCORES["models"][model]["diagrams"]["reliability"][THRESHOLDS[0]]
        segments = np.array(above.collections[k].get_segments())
        expected = np.stack([np.stack([data["x"]] * 2, 1), np.stack([data["low"], data["high"]], 1)], -1)
        np.testing.assert_allclose(segments, expected)
        np.testing.assert_allclose(below.lines[k].get_xydata(), np.stack([data["x"], data["share"]], 1))
        data = SCORES["models"][model]["diagrams"]["economic_value"][THRESHOLDS[1]]
        np.testing.assert_allclose(dotted[k].get_ydata(), data["as_forecast"])
    diagonal = [line for line in above.lines if line.get_linestyle() == "--"]
    np.testing.assert_array_equal(diagonal[0].get_xydata(), [[0, 0], [1, 1]])


def test_the_band_of_a_histogram_is_that_of_its_independent_cases(drawings):
    """The shown model has 400 cases and the oracle 40; without a number of cases there is no band."""
    shown, oracle = axes_of(drawings["calibration"], "Rank of the analysis"), axes_of(drawings["histograms"], "oracle")
    for ax, bins, cases in ((shown, 11, 400), (oracle, 13, 40)):
        (band,) = [patch for patch in ax.patches if patch.get_width() >= 1]
        counts = np.random.default_rng(0).binomial(cases, 1 / bins, 200_000) * bins / cases
        share = ((counts >= band.get_y()) & (counts <= band.get_y() + band.get_height())).mean()
        assert share == pytest.approx(0.95, abs=0.04)  # counts are whole numbers
    scores = drawn_target().scores
    scores["models"]["unet"]["diagrams"]["rank_histogram"][""]["independent_cases"] = [None]
    ax = calibration_drawing(scores, "unet").panels[0].figure.axes[0]
    assert [patch for patch in ax.patches if patch.get_width() >= 1] == []


def test_the_calibration_shows_raw_and_the_model_and_says_how_flat_they_are(drawings):
    drawing = drawings["calibration"]
    bars = [bar.get_height() for bar in axes_of(drawing, "Rank of the analysis").patches if bar.get_width() < 1]
    found = {name: SCORES["models"][name]["diagrams"]["rank_histogram"][""]["y"] for name in ("raw", "unet")}
    expected = [11 * share for shares in found.values() for share in shares]
    np.testing.assert_allclose(bars, expected)
    np.testing.assert_allclose(drawing.numbers["frequency_relative_to_flat"], expected)
    assert "raw below 0.1 % and 2.0 %; unet 25 % and 60 %" in drawing.note


def test_the_starts_show_the_crps_of_raw_and_the_model(drawings):
    drawing = drawings["starts"]
    ax = axes_of(drawing, "fair CRPS by start")
    values = {name: TARGET.starts.mean(name, "crps_fair").total / 2 for name in ("raw", "unet")}
    for name, expected in values.items():
        np.testing.assert_allclose(marked(ax)[name][:, 1], expected)
        np.testing.assert_allclose(drawing.numbers[name], expected)
    better = round(100 * (values["unet"] < values["raw"]).mean())
    assert drawing.note == f"unet is better than raw in {better} % of 40 starts."
    assert drawing.numbers["start"][1] == "2016-03-07T00:00:00"


@pytest.mark.parametrize("case", ["best", "median", "worst"])
def test_plumes_over_lead_times(drawings, case):
    drawing = drawings[f"plumes_{case}"]
    for panel, plume in zip(drawing.panels, FIELDS.cases[case].plumes, strict=True):
        ax = panel.figure.axes[0]
        grey = [line for line in ax.lines if line.get_linewidth() == 0.7]
        np.testing.assert_allclose([line.get_ydata() for line in grey], plume.members.T)
        median, truth = (line for line in ax.lines if line.get_linewidth() in (1.6, 1.4))
        np.testing.assert_allclose(median.get_xydata(), np.stack([plume.leads, plume.quantiles[:, 2]], 1))
        np.testing.assert_allclose(truth.get_xydata(), np.stack([plume.leads, plume.truth], 1))
        for band, (low, high) in zip(ax.collections, [(0, 4), (1, 3)], strict=True):
            corners = band.get_paths()[0].vertices
            for k, lead in enumerate(plume.leads):
                ends = corners[corners[:, 0] == lead, 1]
                np.testing.assert_allclose([ends.min(), ends.max()], plume.quantiles[k, [low, high]])
    check_written(drawing, FIELDS.cases[case].plumes)


def check_written(drawing, plumes):
    """The CSV has a row for each cell and lead time."""
    written = drawing.numbers
    for key, read in {
        "lead_time": lambda plume: plume.leads, "analysis": lambda plume: plume.truth,
        "raw_3": lambda plume: plume.members[:, 2], "quantile_0.95": lambda plume: plume.quantiles[:, 4],
    }.items():  # fmt: skip
        np.testing.assert_allclose(written[key], np.concatenate([read(plume) for plume in plumes]))


def test_a_plume_of_one_lead_time_has_dots_and_boxes():
    fields = drawn_fields(leads=(48,))
    drawing = case_figures.plume_drawing(fields, "best", "unet", "K", 1.0, "#123456")
    for panel, plume in zip(drawing.panels, fields.cases["best"].plumes, strict=True):
        ax = panel.figure.axes[0]
        dots, median, line = ax.lines
        np.testing.assert_allclose(dots.get_ydata(), plume.members[0])
        np.testing.assert_allclose(median.get_ydata(), plume.quantiles[0, [2, 2]])
        np.testing.assert_allclose(line.get_ydata()[0], plume.truth[0])
        boxes = [(box.get_y(), box.get_y() + box.get_height()) for box in ax.patches]
        np.testing.assert_allclose(boxes, plume.quantiles[0][[[0, 4], [1, 3]]])
    check_written(drawing, fields.cases["best"].plumes)


def test_the_map_of_experts_shows_the_first_choice(drawings):
    (panel,) = drawings["experts"].panels
    values, _, _ = globe_values(panel, GRID)
    np.testing.assert_array_equal(values, FIELDS.experts.chosen + 1)
    colours = panel.figure.axes[0].images[0].cmap(panel.figure.axes[0].images[0].norm(np.arange(1, 13)))
    assert len(np.unique(colours, axis=0)) == 12, "every expert has its own colour"


def test_the_improvement_states_the_significant_share(drawings):
    rows, columns = FIELDS.significant, np.array(GRID.weights)[:, None]
    share = (rows * columns).sum() / (columns.sum() * 12)
    assert f"{100 * share:.0f} % of the area is significant" in drawings["improvement"].note
    written = drawings["improvement"].numbers
    mine = np.array(written["field"]) == "significant"
    np.testing.assert_array_equal(written["30"][mine], FIELDS.significant[:, 1])


def test_a_png_shows_all_panels(drawings, tmp_path):
    from matplotlib.image import imread

    write_files(tmp_path, drawings["bias"])
    picture = imread(tmp_path / "bias.png")
    left, right = np.split(picture, 2, axis=1)
    assert (left[..., :3] != 1).any()
    assert (right[..., :3] != 1).any()
    assert (picture[..., 3] == 1).all()


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
    for name in (DIVERGING, BETTER, case_figures.FIELDS):
        colours = [lab(colormaps[name](values)[:, :3], vision) for values in (low, high)]
        assert np.linalg.norm(colours[0] - colours[1], axis=1).min() > 20
        for side in colours:
            assert (np.diff(side[:, 0]) < 0).all()
    for name in (SEQUENTIAL, "viridis"):
        steps = np.diff(lab(colormaps[name](np.linspace(0, 1, 64))[:, :3], vision)[:, 0])
        assert (np.sign(steps) == np.sign(steps[0])).all()


@pytest.fixture(scope="module")
def layouts(drawings):
    """A drawing of each layout: those of the median and the worst case are drawn as those of the best."""
    return {name: drawing for name, drawing in drawings.items() if not name.endswith(("_median", "_worst"))}


def texts_of(figure):
    return [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]


def test_text_has_eight_pixels_on_a_phone(layouts):
    for name, drawing in layouts.items():
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


def test_nothing_is_cut_off(layouts):
    """All text lies inside its figure, and labels of an axis do not overlap."""
    for name, drawing in layouts.items():
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
