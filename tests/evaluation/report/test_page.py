"""The report: one complete page, whose text and figures agree with the scores."""

import csv
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from data_pipeline.grid import Grid
from data_pipeline.ledger import Ledger, Omission
from evaluation.report.charts import gain_chart
from evaluation.report.figure_style import INK, inline_svg, model_colours
from evaluation.report.figures import draw_figures
from evaluation.report.headline import headline
from evaluation.report.page import page, write_report
from evaluation.report.score_tables import html_table
from evaluation.report.shown_data import ExampleForecast, MapData, Plume
from evaluation.report.tables import (
    forecast_title,
    format_amount,
    format_percent,
    members_table,
    plain_table,
)
from evaluation.shown_corrector import lowest_crps

GRID = Grid.regular(9, 12)
FAIR = ("skill_vs_raw", "skill_vs_emos", "skill_vs_climatology", "captured")
COMPARED = (*FAIR, *(f"{key}_fair" for key in FAIR), "crps_minus_raw")


SCORES = {
    "crps": ("CRPS", "low"), "crps_fair": ("fair CRPS", "low"), "rmse": ("RMSE", "low"), "bias": ("bias", "zero"),
    "spread": ("spread", None), "spread_skill": ("spread / error", "one"),
}  # fmt: skip


def definition(title, best):
    words = {"title": title, "text": f"Definition of {title}.", "reference": "A & B 2000"}
    return words | {"best": best, "labels": None, "units": "" if best == "one" else "target"}


def entry(crps, **values):
    scores = {
        "crps": crps,
        "crps_fair": crps,
        "rmse": 2 * crps,
        "bias": -0.02,
        "spread": crps,
        "spread_skill": 0.87,
    }
    own = dict(scores)
    skills = {"rmse": 0.1, "crps": values.get("skill_vs_raw", 0.0)}
    scores |= dict.fromkeys(COMPARED, 0.0) | values | {f"{key}_fair": values[key] for key in FAIR if key in values}
    scores |= {"ci95": {key: [scores[key] - 0.01, scores[key] + 0.01] for key in ("crps", *COMPARED)}}
    for key, numbers in (("scores", own), ("skill", skills)):
        scores[key] = numbers
        scores[f"ci95_{key}"] = {name: [value - 0.01, value + 0.01] for name, value in numbers.items()}
    return scores


def model(crps, **values):
    one = entry(crps, **values)
    regions = {name: entry(crps, **values) for name in ("global", "unweighted", "north", "tropics", "south")}
    by = {"lead": {"48": one}, "region": regions, "season": dict.fromkeys(("DJF", "JJA"), one)}
    beside = {"crps_unweighted": crps, "rank_histogram": [0.2] * 5, "crps_fair_valid": True, "members": None}
    return one | beside | {"by": by}


def as_written(crps):
    """Scores of the members as written."""
    own = {
        "crps": crps,
        "rmse": 2 * crps,
        "bias": -0.02,
        "spread": crps,
        "crps_minus_distribution": 0.004,
        "skill_vs_raw": 0.25,
        "spread_skill": 0.83,
    }
    return own | {"ci95": {key: [value - 0.002, value + 0.002] for key, value in own.items()}}


def make_scores():
    scores = {
        "task": "t850", "target": "t@850", "units": "K", "lead_times": [48], "grid": str(GRID),
        "split": "test", "dates": [["2016-01-01", "2017-12-31"]], "members": 4, "levels": "hazen",
        "n_dates": 32, "n_forecasts": 32,
        "warnings": [], "left_out": {"cells": 0, "of": 3456},
        "ledger": {"forecasts": 32, "used": 32}, "weights": "cell area", "format": 4,
        "inputs": {"options": "01", "data": "23", "deepweather": "1.0", "correctors": {"emos": "45", "unet": "67"}},
        "definitions": {name: definition(*words) for name, words in SCORES.items()},
        "best_set": {"lowest": "unet", "models": ["unet"], "level": 0.05, "text": "unet is best."},
        "power": {"level": 0.05, "power": 0.8, "models": {}, "text": ""}, "leak_audit": {"models": {}, "notes": []},
        "diagram_definitions": {"rank": {"title": "rank histogram", "text": "Ranks.", "reference": "C 2001"}},
        "best": {"model": "unet", "by": "scored years"},
        "models": {
            "raw": model(0.4),
            "climatology": model(1.6, skill_vs_raw=-3.0, captured=-6.0),
            "emos": model(0.32, skill_vs_raw=0.2, captured=0.4),
            "unet": model(0.28, skill_vs_raw=0.3, skill_vs_emos=0.125, captured=0.6),
        },
        "oracle": {
            "n_forecasts": 32, "crps": 0.2, "crps_plain": 0.22, "spread_skill": 1.0, "rank_histogram": [0.2] * 5,
        },
    }  # fmt: skip
    size = {"n_forecasts": 32, "n_dates": 16, "cells": 108}
    scores["slices"] = {kind: dict.fromkeys(labels, size) for kind, labels in scores["models"]["raw"]["by"].items()}
    names = list(scores["models"])
    crps = {name: model["crps"] for name, model in scores["models"].items()}
    scores["pairs"] = {
        name: {
            other: {
                "crps_minus": (less := crps[name] - crps[other]),
                "ci95": [less - 0.01, less + 0.01],
                "p": 0.001,
                "p_holm": 0.002,
            }
            for other in names[:number]
        }
        for number, name in enumerate(names)
    }
    for name in ("emos", "unet"):
        scores["models"][name]["members"] = as_written(scores["models"][name]["crps"] + 0.004)
    return scores


def make_fields():
    rng = np.random.default_rng(0)
    maps = {name: rng.random(GRID.shape) for name in ("raw", "climatology", "emos", "unet")}
    start = int(np.datetime64("2016-02-27T00", "s").astype(int))
    plume = Plume("largest gain", (2, 3), np.array([48]), *(280 + rng.random((3, 1, 5))))
    plume = replace(plume, truth=plume.truth[:, 0])
    cases = {
        name: ExampleForecast(start, 48, *(280 + rng.random((4, *GRID.shape))), plumes=(plume,), gain=12.3)
        for name in ("best", "median", "worst")
    }
    land = rng.random(GRID.shape)
    cells = {48: dict.fromkeys(("crps", "crps_fair", "error", "squared_error", "expected_squared_error"), maps)}
    return MapData(
        GRID, 48, maps, maps, maps, cases, land, squared_error=maps, expected_squared_error=maps, cells=cells
    )


FIGURES = {
    "gain", "crps_raw", "improvement", "bias", "spread_error_map", "skill", "histograms", "spread", "case_best",
    "plumes_best", "case_median", "plumes_median", "case_worst", "plumes_worst",
}  # fmt: skip


@pytest.fixture
def scores():
    return make_scores()


@pytest.fixture
def fields():
    return make_fields()


class Links(HTMLParser):
    """Collects all links, sources and ids of a page."""

    def __init__(self, text):
        super().__init__()
        self.links, self.ids, self.images = [], [], 0
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.images += tag == "svg"
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "srcset", "data", "action"):
                self.links.append(value)
            if name == "id":
                self.ids.append(value)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A report that was written once."""
    folder = tmp_path_factory.mktemp("report")
    write_report(folder, make_scores(), make_fields())
    return folder


def test_the_page_needs_no_other_files(written):
    text = (written / "report.html").read_text()
    found = Links(text)
    assert found.images == sum(len(drawing.panels) for drawing in draw_figures(make_scores(), make_fields()).values())
    beside = {f"figures/{name}.{kind}" for name in FIGURES for kind in ("png", "csv")}
    assert {link for link in found.links if not link.startswith(("data:image/png;base64,", "#"))} == beside
    assert not re.findall(r"@import|<link|<script[^>]* src|\$\w", text)
    urls = set(re.findall(r"https?://[^\s\"'<]*", text))
    # Names of XML spaces, not places.
    assert urls == {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


def test_figures_do_not_share_ids(written):
    text = (written / "report.html").read_text()
    found = Links(text)
    assert len(set(found.ids)) == len(found.ids)
    used = set(re.findall(r"url\(([^)]*)\)", text)) | {link for link in found.links if link[0] == "#"}
    assert used <= {f"#{name}" for name in found.ids}


def test_every_figure_is_written_as_png_and_csv(written):
    found = {path.name for path in (written / "figures").iterdir()}
    assert found == {f"{name}.{kind}" for name in FIGURES for kind in ("png", "csv")}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in (written / "figures").glob("*.png"))
    for name, drawing in draw_figures(make_scores(), make_fields()).items():
        header, *rows = csv.reader((written / f"figures/{name}.csv").open(encoding="utf-8"))
        assert header == list(drawing.numbers)
        for column, values in zip(zip(*rows, strict=True), drawing.numbers.values(), strict=True):
            assert len(column) == len(values)
            if isinstance(values[0], str):
                assert list(column) == list(values)
            else:
                read = [float(text) if text else np.nan for text in column]
                np.testing.assert_allclose(read, np.array(values, float), rtol=1e-5)


def test_text_follows_the_theme_of_the_page(written):
    text = (written / "report.html").read_text()
    assert "currentColor" in text
    assert INK not in text


def test_a_figure_is_reproducible(scores):
    pictures = [inline_svg(gain_chart(scores).panels[0].figure, "gain", "x") for _ in range(2)]
    assert pictures[0] == pictures[1]


def test_sections_without_oracle_land_or_correctors_are_left_out(scores, fields, tmp_path):
    scores["oracle"] = None
    scores["models"] = {name: scores["models"][name] for name in ("raw", "climatology")}
    for model in scores["models"].values():
        for one in (model, *(e for group in model["by"].values() for e in group.values())):
            for key in ("captured", "skill_vs_emos", "captured_fair", "skill_vs_emos_fair"):
                one[key] = one["ci95"][key] = None
    assert lowest_crps(scores) == "climatology"
    scores["best"]["model"] = "climatology"
    write_report(tmp_path, scores, replace(fields, land=None))
    text = (tmp_path / "report.html").read_text()
    assert 'id="figure-skill"' in text
    assert 'id="section-gain"' not in text
    assert "vs EMOS" not in text
    assert ">captured" not in text
    assert "The members that correct writes" not in text
    assert not (tmp_path / "figures/gain.png").exists()


def test_without_climatology_there_are_all_figures_but_no_column(scores, fields):
    del scores["models"]["climatology"]
    for model in scores["models"].values():
        for one in (model, *(e for group in model["by"].values() for e in group.values())):
            for key in ("skill_vs_climatology", "skill_vs_climatology_fair"):
                one[key] = one["ci95"][key] = None
    assert set(draw_figures(scores, fields)) == FIGURES
    assert "vs climatology" not in html_table(scores)
    assert "vs EMOS, fair</th>" in html_table(scores)


def with_sizes(scores):
    """Every model with 5, 10 and 20 members; the U-Net makes a false claim."""
    for name, model in scores["models"].items():
        ratios = {"5": 0.8, "10": 0.87, "20": 0.9 if name == "unet" else None}
        model["by"]["members"] = {
            size: entry(model["crps"], spread_skill=ratio, crps_fair=model["crps"] * (1 + 0.01 * (size == "20")))
            for size, ratio in ratios.items()
        }
        model["gate"] = {"claimed": name in ("raw", "unet"), "base": 10, "holds": None, "faults": []}
    unet = scores["models"]["unet"]["gate"]
    unet |= {"holds": False, "faults": ["fair CRPS is worse with 20 members than with 10", "spread / error −8.0 %"]}
    scores["models"]["climatology"]["gate"]["holds"] = True
    return scores


def test_member_counts_have_a_section(scores, fields):
    plain = page(scores, fields)
    assert "With fewer or more members" not in plain
    text = page(with_sizes(scores), fields)
    start = text.index('<section id="member-counts">')
    section = text[start : text.index("</section>", start)]
    assert text[: text.index("<nav")] == plain[: plain.index("<nav")]
    head, body = section.split("<tbody>")
    assert re.findall(r"colspan='3'>([^<]*)<", head) == ["fair CRPS with", "spread / error with"]
    assert re.findall(r"'col'>([^<]*)<", head) == ["model", "base", *2 * ["5", "10", "20"], "claims it", "holds"]
    rows = {
        cells[0]: cells[1:]
        for cells in (re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in body.split("<tr>"))
        if cells
    }
    cells = [re.sub("<[^>]*>", "", cell) for cell in rows["unet"]]
    assert cells[:4] == ["10", "0.280 +0.0 %", "0.280", "0.283 +1.0 %"]
    assert cells[4:7] == ["0.80 −8.0 %", "0.87", "0.90 +3.4 %"]
    assert cells[7:] == ["yes", "no fair CRPS is worse with 20 members than with 10 spread / error −8.0 %"]
    assert rows["raw"][-3:] == ["–", "yes", "too few starts to tell"]
    assert rows["climatology"][-2:] == ["no", "yes"]


def test_the_terminal_shows_claims_and_results(scores):
    before = plain_table(scores).splitlines()
    lines = plain_table(with_sizes(scores | {"warnings": ["last"]})).splitlines()
    assert lines[: len(before)] == before
    assert lines[-1] == "warning: last"
    assert [line.split() for line in lines[len(before) + 1 : -2]] == [
        ["model", "5", "10", "20", "5", "10", "20", "claims", "holds"],
        ["raw", "0.400", "0.400", "0.404", "0.80", "0.87", "–", "yes", *["too", "few", "starts", "to", "tell"]],
        ["climatology", "1.600", "1.600", "1.616", "0.80", "0.87", "–", "no", "yes"],
        ["emos", "0.320", "0.320", "0.323", "0.80", "0.87", "–", "no", *["too", "few", "starts", "to", "tell"]],
    ]
    assert lines[-2].endswith("yes     no, fair CRPS is worse with 20 members than with 10, spread / error −8.0 %")


def text_of(html):
    return re.sub("<[^>]*>", "", html)


def test_the_headline_agrees_with_the_table(scores):
    assert lowest_crps(scores) == "unet"
    assert text_of(headline(scores)) == (
        "unet lowers the fair CRPS of the raw ensemble by 30.0 % [29.0, 31.0 %] and that of EMOS by 12.5 % "
        "[11.5, 13.5 %]. That is 60.0 % of the gain of the oracle, which knows the state around which the members were "
        "drawn and the equations of nature. Of 2 correctors it has the lowest CRPS on these years. Scores on these "
        "years favour a model that they select: name the one that validation years chose as shown_corrector=NAME."
    )
    for name, crps, skill in (("unet", 0.5, -0.25), ("emos", 0.6, -0.5)):
        scores["models"][name] |= entry(crps, skill_vs_raw=skill, skill_vs_emos=1 / 6, captured=-0.5)
    text = text_of(headline(scores))
    assert "unet raises the fair CRPS of the raw ensemble by 25.0 % [24.0, 26.0 %]" in text
    assert "and lowers that of EMOS by 16.7 %" in text


def test_a_model_chosen_by_the_option_is_shown_without_explanation(scores, fields):
    scores["best"] = {"model": "emos", "by": "option"}
    text = text_of(headline(scores))
    assert text.startswith("emos lowers the fair CRPS of the raw ensemble by 20.0 % [19.0, 21.0 %]. That is 40.0 %")
    assert "lowest" not in text
    assert "<tr class='best'><th scope='row'>emos</th>" in html_table(scores)
    assert draw_figures(scores, fields)["improvement"].title == "Improvement by emos"


def test_a_choice_by_validation_years_is_stated(scores):
    scores["best"]["by"] = "validation years"
    assert text_of(headline(scores)).endswith("Of 2 correctors it had the lowest CRPS on the validation years.")


def test_dependent_members_are_compared_by_plain_scores(scores, fields):
    """The fair CRPS of the U-Net is the lowest but not valid: it is used neither for comparison nor for the choice."""
    unet = scores["models"]["unet"]
    unet |= {"crps": 0.33, "crps_fair": 0.1, "crps_fair_valid": False, "skill_vs_raw": 0.175, "captured": 0.35}
    unet["ci95"]["skill_vs_raw"] = [0.165, 0.185]
    for one in (unet, *unet["by"]["region"].values(), *unet["by"]["season"].values()):
        for key in FAIR:
            one[f"{key}_fair"] = one["ci95"][f"{key}_fair"] = None
    assert lowest_crps(scores) == "emos"
    scores["best"]["model"] = "unet"
    text = text_of(headline(scores))
    assert text.startswith("unet lowers the plain CRPS of the raw ensemble by 17.5 %")
    assert "That is 35.0 % of the gain" in text
    note = "† the members of unet depend on each other: their fair CRPS can be lower than the CRPS of any"
    assert note in plain_table(scores)
    assert note in page(scores, fields)
    (row,) = [line.split() for line in plain_table(scores).splitlines() if line.startswith("unet")]
    assert row[1:7] == ["0.330", "0.100†", "+17.5", "%†", "[16.5,", "18.5]"]
    assert row[-6:-2] == ["35.0", "%†", "35.0", "%"]
    pictures = draw_figures(scores, fields)
    assert pictures["improvement"].panels[0].figure.axes[1].get_xlabel() == "unet: CRPS below raw (%)"
    assert [text.get_text() for text in pictures["gain"].panels[0].figure.axes[0].texts] == ["40 %", "35 %"]


def test_cells_and_forecasts_left_out_are_counted(scores, fields):
    assert "left out" not in plain_table(scores)
    whole = page(scores, fields)
    assert "left out:" not in whole
    assert "<li>32 of 32 forecasts that are valid on the scored dates are used.</li>" in whole
    assert "<li>No cell of these forecasts is left out.</li>" in whole
    scores["left_out"] = {"cells": 1234, "of": 3456}
    omissions = (Omission(0, 48, "no_analysis"), Omission(0, 24, "masked", ("2t truth",), "an.grib"))
    scores["ledger"] = Ledger(34, omissions).to_json()
    scores["oracle"]["n_forecasts"] = 16
    sentence = (
        "left out: 1,234 of 3,456 cells have no analysis or lack a member; "
        "16 of 32 forecasts have no oracle and do not count for captured. "
        "forecasts: 1 left out with no analysis at their valid time, first 1970-01-01T00:00 + 48 h; "
        "1 used with a missing field, which models see as masked, first 1970-01-01T00:00 + 24 h (2t truth; an.grib)"
    )
    assert sentence in plain_table(scores)
    counted = page(scores, fields)
    assert sentence in counted
    assert "<li>1,234 of 3,456 cells have no analysis or lack a member.</li>" in counted
    assert "<li>1 left out with no analysis at their valid time, first 1970-01-01T00:00 + 48 h.</li>" in counted


def test_tables_hold_every_model(scores):
    html, plain = html_table(scores), plain_table(scores)
    for name in (*scores["models"], "oracle"):
        assert f"<th scope='row'>{name}</th>" in html
        assert re.search(rf"^{name} ", plain, re.MULTILINE)
    assert html.count("<tr class='best'>") == 1
    assert "+30.0 % [29.0, 31.0]" in plain
    assert "Temperature at 850 hPa, 48 h ahead: test 2016–2017, 32 starts; CRPS in K" in plain
    assert len({row.count("<td") for row in html.split("<tr")[2:]}) == 1


def test_warnings_are_shown(scores, fields):
    scores["warnings"] = ["leak? unet captures <120 %>"]
    assert '<p class="warning">leak? unet captures &lt;120 %&gt;</p>' in page(scores, fields)
    assert plain_table(scores).endswith("warning: leak? unet captures <120 %>")


def test_precipitation_in_m_is_shown_in_mm(scores, fields):
    """Text and figures of amounts in m are those of amounts 1000 times larger, in mm."""
    rain = scaled(scores, 1e-3) | {"target": "tp:24h", "units": "m"}
    assert rain["models"]["emos"]["crps"] == pytest.approx(0.00032)
    expected = plain_table(scores).replace("Temperature at 850 hPa", "Total precipitation over 24 h")
    assert plain_table(rain) == expected.replace("CRPS in K", "CRPS in mm")
    assert html_table(rain) == html_table(scores)
    assert members_table(rain) == members_table(scores)
    assert "CRPS in mm, area-weighted" in page(rain, fields)
    maps = ("crps", "crps_fair", "bias")
    small = {name: {model: field / 1000 for model, field in getattr(fields, name).items()} for name in maps}
    ours = draw_figures(rain, replace(fields, **small, cases={k: smaller(case) for k, case in fields.cases.items()}))
    for name, drawing in draw_figures(scores, fields).items():
        for panel, again in zip(drawing.panels, ours[name].panels, strict=True):
            for one, other in zip(panel.figure.axes, again.figure.axes, strict=True):
                assert other.get_xlabel() == one.get_xlabel().replace("(K)", "(mm)").replace("K", "mm")
                for drawn, twin in zip(one.images, other.images, strict=True):
                    np.testing.assert_allclose(twin.get_array(), drawn.get_array(), rtol=1e-6)
                    assert twin.get_clim() == pytest.approx(drawn.get_clim())
        for key, values in drawing.numbers.items():
            same = ours[name].numbers[key]
            if isinstance(values[0], str):
                assert list(same) == list(values)
            else:
                np.testing.assert_allclose(np.array(same, float), np.array(values, float), rtol=1e-6)


def smaller(case):
    """A forecast with all amounts divided by 1000."""

    def shrunk(one, names):
        return replace(one, **{name: getattr(one, name) / 1000 for name in names})

    plumes = tuple(shrunk(plume, ("members", "quantiles", "truth")) for plume in case.plumes)
    return replace(shrunk(case, ("truth", "raw_mean", "mean", "std")), plumes=plumes)


def scaled(scores, factor):
    """Return scores with all amounts times a factor."""
    amounts = ("crps", "crps_fair", "crps_plain", "rmse", "bias", "spread", "crps_unweighted", "crps_fair_unweighted")

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


def test_number_formats():
    assert [format_percent(v) for v in (0.1234, -0.0001, -2.129, None)] == ["12.3 %", "0.0 %", "−213 %", "–"]
    assert format_percent(0.5, sign=True) == "+50.0 %"


@pytest.mark.parametrize(
    ("target", "leads", "text"),
    [
        ("2t", [48], "2 m temperature, 48 h ahead"),
        ("z@500", [0, 24, 48], "Geopotential at 500 hPa, 0, 24 and 48 h ahead"),
    ],
)
def test_the_title_names_variable_and_lead_times(scores, target, leads, text):
    assert forecast_title(scores | {"target": target, "lead_times": leads}) == text


def test_references_have_fixed_colours():
    with_emos, without = model_colours(["raw", "emos", "a", "b"]), model_colours(["raw", "a", "b"])
    assert with_emos == without
    assert len(set(with_emos.values())) == len(with_emos)
