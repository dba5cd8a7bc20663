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
    ("title", "kind", "labels"), [("Lead time", "lead", LEADS), ("Hour of valid time", "hour", HOURS)]
)
def test_curves_over_time_show_skills_and_intervals(drawings, title, kind, labels):
    ax = axes_of(drawings["skill"], title)
    for name in CORRECTED:
        entries = [SCORES["models"][name]["by"][kind][str(label)] for label in labels]
        places = marked(ax)[name]
        np.testing.assert_allclose(places[:, 1], [100 * one["skill_vs_raw_fair"] for one in entries])
        np.testing.assert_allclose(places[:, 0], labels, atol=0.03 * np.ptp(labels))
        for bar, one in zip(bars_of(ax, name), entries, strict=True):
            np.testing.assert_allclose(bar[:, 1], [100 * end for end in one["ci95"]["skill_vs_raw_fair"]])
        low, high = ax.get_ylim()
        assert low < min(bar[:, 1].min() for bar in bars_of(ax, name))
        assert high > max(bar[:, 1].max() for bar in bars_of(ax, name))
    assert set(marked(ax)) == set(CORRECTED)


def test_intervals_of_spread_over_error_are_drawn(drawings):
    ax = axes_of(drawings["spread"], "Lead time")
    for name in ("raw", *CORRECTED):
        entries = [SCORES["models"][name]["by"]["lead"][str(label)] for label in LEADS]
        np.testing.assert_allclose(marked(ax)[name][:, 1], [one["spread_skill"] for one in entries])
        for bar, one in zip(bars_of(ax, name), entries, strict=True):
            np.testing.assert_allclose(bar[:, 1], one["ci95_scores"]["spread_skill"])
    assert "climatology" not in marked(ax)


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


def curves_of(ax):
    return {line.get_label(): line.get_xydata() for line in ax.lines if not line.get_label().startswith("_")}


@pytest.mark.parametrize("name", ["reliability", "roc", "economic_value", "spread_error", "other"])
def test_diagrams_show_their_curves(drawings, name):
    drawing = drawings[name]
    labels = THRESHOLDS if name in ("reliability", "roc", "economic_value") else ("",)
    assert len(drawing.panels) == len(labels)
    written = drawing.numbers
    for label in labels:
        ax = axes_of(drawing, label or name)
        assert list(curves_of(ax)) == list(MODELS)
        for model in MODELS:
            data = {key: np.array(v, float) for key, v in SCORES["models"][model]["diagrams"][name][label].items()}
            np.testing.assert_allclose(curves_of(ax)[model], np.stack([data["x"], data["y"]], 1))
            mine = [
                k for k, key in enumerate(zip(written["label"], written["model"], strict=True)) if key == (label, model)
            ]
            for key, values in data.items():
                np.testing.assert_allclose(np.array(written[key], float)[mine], values)


def test_reliability_has_consistency_bars_and_shares(drawings):
    panel = drawings["reliability"].panels[0]
    above, below = panel.figure.axes
    for k, model in enumerate(MODELS):
        data = SCORES["models"][model]["diagrams"]["reliability"][THRESHOLDS[0]]
        segments = np.array(above.collections[k].get_segments())
        expected = np.stack([np.stack([data["x"]] * 2, 1), np.stack([data["low"], data["high"]], 1)], -1)
        np.testing.assert_allclose(segments, expected)
        np.testing.assert_allclose(below.lines[k].get_xydata(), np.stack([data["x"], data["share"]], 1))
    diagonal = [line for line in above.lines if line.get_linestyle() == "--"]
    np.testing.assert_array_equal(diagonal[0].get_xydata(), [[0, 0], [1, 1]])


def test_value_as_forecast_is_a_dotted_line(drawings):
    ax = axes_of(drawings["economic_value"], THRESHOLDS[1])
    dotted = [line for line in ax.lines if line.get_linewidth() == 0.9 and len(line.get_xdata()) == 99]
    for line, model in zip(dotted, MODELS, strict=True):
        data = SCORES["models"][model]["diagrams"]["economic_value"][THRESHOLDS[1]]
        np.testing.assert_allclose(line.get_ydata(), data["as_forecast"])


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
    rows = sum(len(plume.leads) for plume in FIELDS.cases[case].plumes)
    np.testing.assert_array_equal(drawing.numbers["lead_time"], LEADS * 2)
    np.testing.assert_allclose(
        drawing.numbers["raw_3"], np.concatenate([p.members[:, 2] for p in FIELDS.cases[case].plumes])
    )
    assert len(drawing.numbers["quantile_0.95"]) == rows


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
