"""The report: one complete page, whose text and figures agree with the scores."""

import csv
import re
from dataclasses import replace

import numpy as np
import pytest
from report_parts import MODELS, SLICES, make_fields, make_scores, make_target, tables_of

from data_pipeline.common.cost_meter import Usage
from data_pipeline.ledger import Ledger, Omission
from evaluation.report.diagrams import calibration_drawing
from evaluation.report.figure_style import INK, inline_svg
from evaluation.report.figures import draw_figures
from evaluation.report.headline import cannot_say, headline, scored_on
from evaluation.report.page import page
from evaluation.report.provenance import run_facts
from evaluation.report.score_tables import headline_table, scorecard
from evaluation.report.tables import format_amount, member_count_table, plain_table
from evaluation.run.shown_corrector import lowest_crps

BEST = "net <1>"
FIGURES = {
    "crps_raw", "improvement", "improvement_others", "bias", "spread_error_map", "calibration", "starts",
    "skill", "parts_bias", "histograms", "spread", "thresholds_brier",
    *(f"{kind}_{case}" for kind in ("case", "plumes") for case in ("best", "median", "worst")),
}  # fmt: skip


@pytest.fixture
def scores():
    """Scores of which the headline states round numbers."""
    scores = make_scores()
    gains = {"skill_vs_raw_fair": 0.3, "skill_vs_emos_fair": 0.125, "captured_fair": 0.6}
    state(scores, BEST, crps=0.28, crps_fair=0.27, **gains)
    state(scores, "emos", crps=0.32, crps_fair=0.31, skill_vs_raw_fair=0.2, captured_fair=0.4)
    state(scores, "raw", crps=0.4, crps_fair=0.39)
    scores["best"]["by"] = "scored years"
    return scores


@pytest.fixture
def fields():
    return make_fields()


def state(scores, name, **values):
    """Set numbers of a model, with intervals of ± 0.01."""
    model = scores["models"][name]
    for key, value in values.items():
        model[key] = value
        model["ci95"][key] = None if value is None else [value - 0.01, value + 0.01]


def entries(scores):
    """All models and their slices."""
    for model in scores["models"].values():
        yield model
        for slices in model["by"].values():
            yield from slices.values()


def page_of(scores, **options):
    """The page of one target without figures."""
    return page([make_target(scores)], **options)


def test_the_page_needs_no_other_files_and_its_figures_share_no_ids(written):
    folder, drawings = written
    text = (folder / "report.html").read_text()
    links = set(re.findall(r"""\s(?:src|(?:xlink:)?href|srcset|data|action)=["']?([^"'> ]+)""", text))
    ids = re.findall(r"""\sid=["']?([^"'> ]+)""", text)
    assert text.count('<svg role="img" aria-label="') == sum(len(drawing.panels) for drawing in drawings.values())
    beside = {f"figures/{name}.{kind}" for name in FIGURES for kind in ("png", "csv")}
    assert {link for link in links if not link.startswith(("data:image/png;base64,", "#"))} == beside
    assert not re.findall(r"@import|<link|<script|\{[{%]", text)
    assert not re.findall("<(?:1|warning)>", text), "names and texts of users are text"
    # Names of XML spaces, not places.
    urls = set(re.findall(r"https?://[^\s\"'<]*", text))
    assert urls == {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert len(set(ids)) == len(ids)
    used = set(re.findall(r"url\(([^)]*)\)", text)) | {link for link in links if link[0] == "#"}
    assert used <= {f"#{name}" for name in ids}
    assert "currentColor" in text, "text follows the theme of the page"
    assert INK not in text


def test_every_figure_is_written_as_png_and_csv(written):
    folder, drawings = written
    found = {path.name for path in (folder / "figures").iterdir()}
    assert found == {f"{name}.{kind}" for name in FIGURES for kind in ("png", "csv")}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in (folder / "figures").glob("*.png"))
    for name, drawing in drawings.items():
        header, *rows = csv.reader((folder / f"figures/{name}.csv").open(encoding="utf-8"))
        assert header == list(drawing.numbers)
        for column, values in zip(zip(*rows, strict=True), drawing.numbers.values(), strict=True):
            assert len(column) == len(values)
            if isinstance(values[0], str):
                assert list(column) == list(values)
            else:
                read = [float(text) if text else np.nan for text in column]
                np.testing.assert_allclose(read, np.array(values, float), rtol=1e-5)


def test_a_figure_is_reproducible(scores):
    pictures = [inline_svg(calibration_drawing(scores, BEST).panels[0].figure, "x", "x") for _ in range(2)]
    assert pictures[0] == pictures[1]


def test_sections_without_oracle_land_or_correctors_are_left_out(scores, fields):
    scores["oracle"] = None
    scores["models"] = {name: scores["models"][name] for name in ("raw", "climatology")}
    for one in entries(scores):
        for key in ("captured", "skill_vs_emos", "captured_fair", "skill_vs_emos_fair"):
            one[key] = one["ci95"][key] = None
    assert lowest_crps(scores) == "climatology"
    scores["best"]["model"] = "climatology"
    found = draw_figures(make_target(scores, replace(fields, land=None)))
    assert set(found) == FIGURES - {"histograms", "improvement_others"}
    text = page_of(scores)
    for absent in ("vs EMOS", ">captured", "oracle"):
        assert absent not in text


def with_sizes(scores):
    """Every model with 5, 10 and 20 members; the shown model makes a false claim."""
    for name, model in scores["models"].items():
        ratios = {"5": 0.8, "10": 0.87, "20": 0.9 if name == BEST else None}
        model["by"]["members"] = {
            size: {"spread_skill": ratio, "crps_fair": model["crps_fair"] * (1 + 0.01 * (size == "20"))}
            for size, ratio in ratios.items()
        }
        model["gate"] = {"claimed": name in ("raw", BEST), "base": 10, "holds": None, "faults": []}
    scores["models"][BEST]["gate"] |= {"holds": False, "faults": ["fair CRPS is worse", "spread / error −8.0 %"]}
    scores["models"]["climatology"]["gate"]["holds"] = True
    return scores


def test_member_counts_have_a_section_and_lines_of_the_terminal(scores):
    before = plain_table(scores).splitlines()
    assert member_count_table(scores) is None
    (found,) = [table for table in tables_of(page_of(with_sizes(scores))) if "fair CRPS with" in table[0]]
    above, head, raw, _, _, best = found
    assert above == ["", "", "fair CRPS with", "spread / error with", "", ""]
    assert head == ["model", "base", *2 * ["5", "10", "20"], "claims it", "holds"]
    assert best[1:5] == ["10", "0.270 +0.0 %", "0.270", "0.273 +1.0 %"]
    assert best[5:] == ["0.80 −8.0 %", "0.87", "0.90 +3.4 %", "yes", "no fair CRPS is worse spread / error −8.0 %"]
    assert raw[-3:] == ["–", "yes", "too few starts to tell"]
    head, raw, _, _, best = plain_table(scores).splitlines()[len(before) : -1]
    assert head.split() == ["model", "5", "10", "20", "5", "10", "20", "claims", "holds"]
    assert raw.split()[:8] == ["raw", "0.390", "0.390", "0.394", "0.80", "0.87", "–", "yes"]
    assert best.endswith("yes     no, fair CRPS is worse, spread / error −8.0 %")


def plain_headline(scores):
    return headline(scores).replace("**", "")


def set_parts(scores, **gains):
    """Give the shown model gains with intervals of ± 0.1 in regions and seasons."""
    for kind in ("region", "season"):
        for label in SLICES[kind]:
            if label != "global":
                gain = gains.get(label, 0.15)
                entry = scores["models"][scores["best"]["model"]]["by"][kind][label]
                entry["skill_vs_raw_fair"], entry["ci95"]["skill_vs_raw_fair"] = gain, [gain - 0.1, gain + 0.1]


def test_the_sentence_answers_better_where_when_and_trust(scores):
    assert lowest_crps(scores) == BEST
    set_parts(scores, tropics=0.35, north=0.05, DJF=0.5)
    scores["models"][BEST]["by"]["region"]["Alps & north"] = scores["models"][BEST]["by"]["region"]["tropics"] | {
        "skill_vs_raw_fair": -0.2, "ci95": {"skill_vs_raw_fair": [-0.3, -0.1]}
    }  # fmt: skip
    assert plain_headline(scores) == (
        "The 2 m temperature of net <1> is as good at 3 days as the raw ensemble at 1.9 days, 26 h [24, 29 h] earlier. "
        "Its fair CRPS is 30.0 % [29.0, 31.0 %] below the raw ensemble's and 12.5 % [11.5, 13.5 %] below that of EMOS. "
        "The gain "
        "is largest over the tropics (35.0 %) and in DJF (50.0 %), smallest in JJA (15.0 %); no gain is shown over the "
        "north; it is worse than raw over Alps & north. Its intervals are honest: 80 % intervals hold 79 % [77, 81 %] "
        "of the analyses (raw: 79 %). It captures 60.0 % of the gain of an oracle with the true equations."
    )
    set_parts(scores, tropics=0.35, north=0.05, DJF=0.3)
    assert "in DJF" not in plain_headline(scores), "the intervals of the seasons overlap"
    model = scores["models"][BEST]
    model["lead_gain"] = {"24": {"hours": None, "at_least": 0}, "72": {"hours": None, "at_least": 48}}
    assert "is better at 3 days than the raw ensemble at its shortest lead time, 24 h. Its" in plain_headline(scores)
    model["lead_gain"] = None
    state(scores, BEST, skill_vs_raw_fair=-0.25, skill_vs_emos_fair=1 / 6)
    text = plain_headline(scores)
    assert "of net <1> has a fair CRPS 25.0 % [24.0, 26.0 %] above the raw ensemble's and 16.7 % [15.7, " in text


@pytest.mark.parametrize(
    ("held", "word"), [(0.795, "honest"), (0.785, "slightly too narrow"), (0.6, "too narrow"), (0.9, "too wide")]
)
def test_intervals_are_honest_if_they_hold_what_they_say(scores, held, word):
    scores["models"][BEST]["central_interval"] = {"nominal": 0.8, "held": held, "ci95": [held - 0.01, held + 0.01]}
    assert f"Its intervals are {word}: 80 % intervals hold" in plain_headline(scores)


def test_the_first_screen_says_what_was_scored_and_what_it_cannot_say(scores):
    assert list(scored_on(scores))[:2] == [
        f"test 2016–2017: 32 starts, 96 forecasts, 4 raw members; {scores['grid']}",
        f"models: raw, climatology, emos, {BEST}; shown: {BEST}, which had the lowest CRPS on the scored years",
    ]
    scores["pairs"][BEST]["raw"]["year_share"] = 0.3
    text = "; ".join(cannot_say(scores))
    for part in (
        f"a true gain of {BEST} below 2.3 % (raw) of raw's CRPS is missed",
        "The starts are in 2 years, too few",
        "chosen on the scored years", "the truth is simulated",
    ):  # fmt: skip
        assert part in text
    assert "lead time needs" not in text
    scores["best"]["by"], scores["models"][BEST]["lead_gain"] = "validation years", None
    scores["power"]["models"][BEST] = {"raw": None, "emos": None}  # a single start
    text = "; ".join(cannot_say(scores))
    assert "a true gain" not in text
    assert "a gain in lead time needs two lead times" in text
    assert "chosen on" not in text


def test_the_scorecard_has_a_row_for_each_target_and_lead_time(scores):
    """Marks follow the intervals: ▲ above 0, ▼ below 0."""
    targets = [make_target(scores), make_target(make_scores() | {"target": "msl", "units": "Pa"}, folder="msl")]
    table = scorecard(targets)
    regions, seasons = [label for label in SLICES["region"] if label != "unweighted"], SLICES["season"]
    assert list(table.columns) == ["", *regions, *seasons]
    names = [f"{title}, {lead}" for title in ("2 m temperature", "Mean sea-level pressure")
             for lead in ("all", "+24 h", "+48 h", "+72 h")]  # fmt: skip
    assert [row[0].lower() for row in table.rows] == [name.lower() for name in names]
    parts = [(label, "all") for label in regions] + [("global", label) for label in seasons]
    for lead, row in zip(("all", "24", "48", "72"), table.rows, strict=False):
        for (region, season), cell in zip(parts, row[1:], strict=True):
            (one,) = [r for r in targets[0].gains if (r.lead_time, r.region, r.season) == (lead, region, season)]
            mark = "▲ " if one.skill_low > 0 else "▼ " if one.skill_high < 0 else ""
            assert cell.startswith(f"{mark}{'+' if one.skill > 0 else '−'}{abs(100 * one.skill):.1f} % [")
    text = page(targets)
    better = sum(cell.startswith("▲") for row in table.rows for cell in row)
    assert text.count('<td class="better">') == better > 0
    assert text.count('<td class="worse">') == sum(cell.startswith("▼") for row in table.rows for cell in row) > 0


def test_two_targets_share_one_page(written, scores):
    """Each has its own figures and sections; what is common is said once."""
    targets = [
        make_target(scores, folder="2t"),
        make_target(make_scores(1) | {"target": "msl", "units": "Pa"}, folder="msl"),
    ]
    drawings = {name: written[1][name] for name in ("improvement", "bias")}
    text = page(targets, [drawings, drawings])
    ids = re.findall(r"""\sid=["']?([^"'> ]+)""", text)
    assert len(set(ids)) == len(ids)
    assert {f'href="{folder}/figures/bias.png"' in text for folder in ("2t", "msl")} == {True}
    assert text.count('<p class="warning">') == text.count("What this cannot say") == text.count("<nav") == 1
    assert text.count('<p class="headline">') == text.count(">Models</h3>") == 2


def test_the_page_is_short(written):
    """Without numbers of tables, and of what opens with a click."""
    text = (written[0] / "report.html").read_text()
    for part in ("style", "svg", "details", "table"):
        text = re.sub(rf"<{part}.*?</{part}>", " ", text, flags=re.DOTALL)
    assert len(re.sub("<[^>]*>", " ", text).split()) < 1000


def test_a_model_chosen_by_the_option_is_shown_without_explanation(scores, fields):
    scores["best"] = {"model": "emos", "by": "option"}
    text = plain_headline(scores)
    assert "fair CRPS is 20.0 % [19.0, 21.0 %] below the raw ensemble's. The gain" in text
    assert "shown: emos, as asked" in "".join(scored_on(scores))
    assert '<tr class="best"><th scope="row">emos</th>' in page_of(scores)


def test_dependent_members_are_compared_by_plain_scores(scores, fields):
    """The fair CRPS of the shown model is the lowest but not valid: neither comparisons nor the choice use it."""
    nothing = dict.fromkeys(("skill_vs_raw_fair", "skill_vs_emos_fair", "captured_fair"))
    state(scores, BEST, crps=0.33, crps_fair=0.1, skill_vs_raw=0.175, captured=0.35, **nothing)
    scores["models"][BEST]["crps_fair_valid"] = False
    assert lowest_crps(scores) == "emos"
    text = plain_headline(scores)
    assert "Its plain CRPS is 17.5 % [16.5, 18.5 %] below" in text
    assert "It captures 35.0 % of the gain" in text
    plain = plain_table(scores)
    assert f"† the members of {BEST} depend on each other: their fair CRPS can be lower" in plain
    assert "† the members of net &lt;1&gt; depend on each other" in page_of(scores)
    (row,) = [line.split() for line in plain.splitlines() if line.startswith(BEST)]
    assert row[2:8] == ["0.330", "0.100†", "+17.5", "%†", "[16.5,", "18.5]"]
    assert row[-6:-2] == ["35.0", "%†", "35.0", "%"]


def test_cells_and_forecasts_left_out_are_counted(scores, fields):
    scores["oracle"]["n_forecasts"] = 96
    assert "left out" not in plain_table(scores)
    whole = page_of(scores)
    assert "<li>96 of 96 forecasts that are valid on these dates are used</li>" in whole
    assert "<li>no cell of these forecasts is left out</li>" in whole
    assert "<li>days from the dates of fits to the nearest scored date: emos 545</li>" in whole
    scores["oracle"]["n_forecasts"] = 80
    scores["left_out"] = {"cells": 1234, "of": 3456}
    omissions = (Omission(0, 48, "no_analysis"), Omission(0, 24, "masked", ("2t truth",), "an.grib"))
    scores["ledger"] = Ledger(34, omissions).to_json()
    parts = [
        "1,234 of 3,456 cells have no analysis or lack a member",
        "16 of 96 forecasts have no oracle and do not count for captured",
        "1 left out with no analysis at their valid time, first 1970-01-01T00:00 + 48 h",
        "1 used with a missing field, which models see as masked, first 1970-01-01T00:00 + 24 h (2t truth; an.grib)",
    ]
    counted, plain = page_of(scores), plain_table(scores)
    for part in parts:
        assert part in plain
        assert f"<li>{part}</li>" in counted


def test_tables_and_warnings_are_complete(scores, fields):
    table, plain = headline_table(scores), plain_table(scores)
    for name in (*MODELS, "oracle"):
        assert name in [row[0] for row in table.rows]
        assert re.search(rf"^{name} ", plain, re.MULTILINE)
    assert list(table.marks.values()).count("best") == 1
    assert "+30.0 % [29.0, 31.0]" in plain
    assert "2 m temperature, 24, 48 and 72 h ahead: test 2016–2017, 32 starts; CRPS in K" in plain
    assert {len(row) for row in table.rows} == {len(table.columns)}
    assert '<p class="warning">a &lt;warning&gt;</p>' in page_of(scores)
    assert plain.endswith("warning: a <warning>")


def test_precipitation_in_m_is_shown_in_mm(scores, fields):
    """Text and maps of amounts in m are those of amounts 1000 times larger, in mm."""
    rain = scaled(scores, 1e-3) | {"target": "tp:24h", "units": "m"}
    expected = plain_table(scores).replace("2 m temperature", "Total precipitation over 24 h")
    assert plain_table(rain) == expected.replace("CRPS in K", "CRPS in mm")
    assert headline_table(rain) == headline_table(scores)
    assert "CRPS in mm, area-weighted" in page_of(rain)
    drawings = draw_figures(make_target(rain, fields))
    labels = {ax.get_xlabel() for one in drawings.values() for panel in one.panels for ax in panel.figure.axes}
    assert not [label for label in labels if "(K)" in label or "(m)" in label]
    bias = drawings["bias"].numbers
    mine = np.array(bias["field"]) == "raw"
    np.testing.assert_allclose(bias["0"][mine], 1000 * fields.bias["raw"][:, 0], rtol=1e-6)


def scaled(scores, factor):
    """Return scores with all amounts times a factor."""
    amounts = ("crps", "crps_fair", "crps_plain", "rmse", "bias", "spread")

    def change(key, value):
        if key in ("skill", "ci95_skill"):
            return value
        if isinstance(value, dict):
            return {name: change(name, one) for name, one in value.items()}
        if value is None or not (key in amounts or str(key).startswith("crps_minus")):
            return value
        return [factor * end for end in value] if isinstance(value, list) else factor * value

    return change("", scores)


@pytest.mark.parametrize(("raw", "value", "text"), [(0.384, 0.2634, "0.263"), (93.0, 74.26, "74.3"), (812.0, 5.4, "5")])
def test_amounts_have_three_digits_of_the_raw_score(scores, raw, value, text):
    scores["models"]["raw"]["crps"] = raw
    assert format_amount(value, scores) == text
    assert format_amount(-value, scores, sign=True) == "−" + text
    assert format_amount(None, scores) == "–"


@pytest.mark.parametrize(
    ("seconds", "joules", "duration", "energy"),
    [(59.6, 2_500, "60 s", "2,500 J"), (3600, 720_000, "60 min", "0.20 kWh")],
)
def test_facts_of_a_run(seconds, joules, duration, energy):
    facts = run_facts(Usage(seconds, 1, joules={"RAPL node 0": joules / 2, "NVML 1": joules / 2}))
    assert facts["Duration"] == duration
    assert facts["Energy"].startswith(f"{energy}, counted by NVML, RAPL ")
    assert re.fullmatch(r"\d{1,2} \w+ \d{4}, \d\d:\d\d UTC", facts["Written"])
    assert "Energy" not in run_facts(Usage(3.0, 1, unmeasured=("no counters",)))


def test_the_provenance_has_every_fingerprint():
    text = page_of(make_scores(), run={"Written": "today"})
    terms = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", text))
    assert f"numpy {np.__version__}" in terms.pop("Software")
    assert terms.items() >= {
        "Options": "<code>01ab</code>", "Data": "<code>23cd</code>", "Corrector emos": "<code>45ef</code>",
        "Corrector net &lt;1&gt;": "<code>67</code>", "Deepweather": "1.0, scores.json format 6", "Written": "today",
    }.items()  # fmt: skip
