"""Charts show the numbers of scores.json: curves, intervals, thresholds, diagrams, plumes and experts."""

import csv
import io

import numpy as np
import pytest
from drawn_data import GRID, HOURS, LEADS, LEVELS, MODELS, THRESHOLDS, drawn_fields, drawn_scores
from map_pixels import globe_values

from evaluation.report.drawing import Drawing, csv_text, figure_html, sections_html, write_files
from evaluation.report.figure_style import model_colours
from evaluation.report.figures import draw_figures

SCORES, FIELDS = drawn_scores(), drawn_fields()
CORRECTED = [name for name in MODELS if name not in ("raw", "climatology")]


@pytest.fixture(scope="module")
def drawings():
    return draw_figures(SCORES, FIELDS)


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
        ("spread", "Lead time", "lead", LEADS),
    ],
)  # fmt: skip
def test_curves_over_time_show_scores_and_intervals(drawings, drawing, title, kind, labels):
    ax = axes_of(drawings[drawing], title)
    names = CORRECTED if drawing == "skill" else ["raw", *CORRECTED]
    assert set(marked(ax)) == set(names)
    low, high = ax.get_ylim()
    for name in names:
        entries = [SCORES["models"][name]["by"][kind][str(label)] for label in labels]
        values = [100 * one["skill_vs_raw_fair"] if drawing == "skill" else one["spread_skill"] for one in entries]
        ends = [
            100 * np.array(one["ci95"]["skill_vs_raw_fair"])
            if drawing == "skill"
            else one["ci95_scores"]["spread_skill"]
            for one in entries
        ]
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
    raw, oracle = axes_of(drawings["histograms"], "raw"), axes_of(drawings["histograms"], "oracle")
    for ax, bins, cases in ((raw, 11, 400), (oracle, 13, 40)):
        (band,) = [patch for patch in ax.patches if patch.get_width() >= 1]
        counts = np.random.default_rng(0).binomial(cases, 1 / bins, 200_000) * bins / cases
        share = ((counts >= band.get_y()) & (counts <= band.get_y() + band.get_height())).mean()
        assert share == pytest.approx(0.95, abs=0.04)  # counts are whole numbers


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
    drawing = draw_figures(SCORES, fields)["plumes_best"]
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


def test_a_csv_holds_text_numbers_and_gaps():
    text = csv_text({"model": ["a,b", 'c"d', None], "value": np.array([1.23456789, np.nan, -1e-7]), "n": [1, 2, 3]})
    rows = list(csv.reader(io.StringIO(text)))
    assert rows == [["model", "value", "n"], ["a,b", "1.23457", "1"], ['c"d', "", "2"], ["", "-1e-07", "3"]]
    with pytest.raises(ValueError, match="different lengths"):
        Drawing("x", "maps", "", "", (), {"a": [1], "b": [1, 2]})


def test_the_page_holds_every_drawing_once(drawings):
    text = sections_html(drawings.values())
    for name, drawing in drawings.items():
        assert text.count(f'id="figure-{name}"') == 1
        assert figure_html(drawing) in text
    assert text.count("<svg") == sum(len(drawing.panels) for drawing in drawings.values())
    assert text.count('role="img" aria-label="') == text.count("<svg")


def test_a_png_shows_all_panels(drawings, tmp_path):
    from matplotlib.image import imread

    write_files(tmp_path, drawings["bias"])
    picture = imread(tmp_path / "bias.png")
    left, right = np.split(picture, 2, axis=1)
    assert (left[..., :3] != 1).any()
    assert (right[..., :3] != 1).any()
    assert (picture[..., 3] == 1).all()
