"""Series: every number of an entry, with the units, decimals and interval in which the page shows it."""

import json
import re

import pytest
from report_parts import COMPARED, MODELS, SCORES, SLICES, cells_of, make_fields, make_scores

from evaluation.report.explorer import definition_of, explorer_data, explorer_json
from evaluation.report.score_tables import sample_table, slice_tables
from evaluation.report.series import Series, default_series, list_series, list_slices, sample_text


@pytest.fixture(scope="module")
def scores():
    return make_scores()


def test_every_score_and_comparison_is_a_series(scores):
    keys = [one.key for one in list_series(scores)]
    labelled = [
        f"{kind}:{name}" + (f":{label}" if label else "")
        for kind in ("scores", "skill")
        for name, (_, best, labels) in SCORES.items()
        if kind == "scores" or (best == "low" and name not in ("crps", "crps_fair"))
        for label in labels or ("",)
    ]
    assert sorted(keys) == sorted([*COMPARED, *labelled])


def test_numbers_are_in_the_units_that_people_read(scores):
    rain = scores | {"target": "tp:24h", "units": "m"}
    for one in list_series(rain):
        entry = rain["models"]["emos"]["by"]["region"]["tropics"]
        value, interval = one.of(entry)
        found, ends = entry, entry["ci95"].get(one.key)
        if one.place[0] in ("scores", "skill"):
            found, ends = entry, entry[f"ci95_{one.place[0]}"]
            for name in one.place[1:]:
                ends = ends[name]
        for name in one.place:
            found = found[name]
        amount = one.place[0] == "scores" and one.place[1] in ("crps", "crps_fair", "rmse", "bias", "spread")
        factor = 1000 if amount else 1 if one.place[0] == "scores" else 100
        assert one.units == ("mm" if amount else "" if one.place[0] == "scores" else "%")
        assert value == pytest.approx(factor * found)
        assert interval == pytest.approx([factor * end for end in ends])


def test_the_explorer_has_every_number_in_its_place(scores):
    text = explorer_json(scores, make_fields())
    assert "<" not in text, "no text can end the script"
    data = json.loads(text)
    assert data["models"] == list(MODELS)
    slices = list_slices(scores)
    assert {kind: one["labels"] for kind, one in data["slices"].items()} == slices
    assert "hour" not in slices  # a single hour repeats the whole
    for one, found in zip(list_series(scores), data["series"], strict=True):
        assert found["key"] == one.key
        for kind, labels in slices.items():
            for label, row in zip(labels, found["values"][kind], strict=True):
                for model, number in zip(MODELS, row, strict=True):
                    whole = scores["models"][model]
                    value, interval = one.of(whole if kind == "all" else whole["by"][kind][label])
                    if value is None or one.leaves_out(model):
                        assert number is None
                    else:
                        assert number == pytest.approx([value, *interval], rel=1e-8)
    for kind, one in data["slices"].items():
        if kind != "all":
            assert one["sizes"] == [scores["slices"][kind][label] for label in SLICES[kind]]
    assert data["slices"]["all"]["sizes"] == [scores["slices"]["region"]["global"]]


def test_tables_of_slices_show_skills_and_sample_sizes(scores):
    tables = list(slice_tables(scores))
    kinds = [kind for kind in SLICES if kind != "hour"]
    assert len(tables) == len(kinds)
    for kind, table in zip(kinds, tables, strict=True):
        head, *rows = cells_of(table)
        assert head[1:] == [*MODELS, "starts"]
        for label, row in zip(SLICES[kind], rows, strict=True):
            entry = scores["models"]["emos"]["by"][kind][label]
            low, high = entry["ci95"]["skill_vs_raw_fair"]
            numbers = [float(text) for text in re.findall(r"[+-]?\d+\.?\d*", row[3].replace("−", "-").replace("+", ""))]
            expected = [100 * number for number in (entry["skill_vs_raw_fair"], low, high)]
            assert numbers == pytest.approx(expected, abs=0.51)
            assert row[1] == "–"
            assert row[-1] == f"{scores['slices'][kind][label]['n_dates']:,}"
    rows = cells_of(sample_table(scores))[1:]
    sizes = [size for labels in scores["slices"].values() for size in labels.values()]
    assert [row[-3:] for row in rows] == [
        [f"{size[key]:,}" for key in ("n_dates", "n_forecasts", "cells")] for size in sizes
    ]


def test_a_reference_is_not_compared_with_itself(scores):
    for one in list_series(scores):
        against = {name for name in MODELS if name in one.key.split("_")}
        if one.key.startswith("skill_vs") or one.place[0] == "skill":
            assert set(one.without) == (against or {"raw"})
        elif one.key.startswith("captured"):
            assert set(one.without) == {"raw", "climatology"}
        else:
            assert one.without == ()


def test_the_first_score_is_that_of_the_headline(scores):
    assert default_series(scores).key == "skill_vs_raw_fair"
    other = make_scores()
    other["models"]["net <1>"]["crps_fair_valid"] = False
    assert default_series(other).key == "skill_vs_raw"
    other["models"]["net <1>"]["skill_vs_raw"] = None
    assert default_series(other).key == "scores:crps"
    assert explorer_data(other)["default"] == "scores:crps"


def test_definitions_say_what_is_best(scores):
    texts = {one.key: definition_of(scores, one) for one in list_series(scores)}
    assert texts["scores:crps"] == "Text of CRPS < 1. Lower is better."
    assert texts["scores:bias"].endswith("0 is best.")
    assert texts["scores:spread_skill"].endswith("1 is best.")
    assert texts["scores:spread"] == "Text of spread < 1."
    assert "fair CRPS relative to emos" in texts["skill_vs_emos_fair"]
    assert "plain CRPS relative to climatology" in texts["skill_vs_climatology"]
    assert "by the fair CRPS" in texts["captured_fair"]
    assert texts["skill:brier:> 0 °C"].startswith("The reduction of this score relative to raw.")


@pytest.mark.parametrize(
    ("units", "decimals", "best", "value", "text"),
    [
        ("K", 2, "zero", 0.128, "+0.13"), ("K", 2, "zero", -0.004, "0.00"), ("K", 2, "low", 0.128, "0.13"),
        ("%", 1, "high", 99.94, "99.9 %"), ("%", 1, "high", -99.96, "−100 %"), ("", 2, "one", 1.005, "1.00"),
    ],
)  # fmt: skip
def test_numbers_as_text(units, decimals, best, value, text):
    one = Series("x", "X", ("x",), units, decimals=decimals, best=best)
    assert one.cell({"x": value, "ci95": {"x": None}}) == text
    low, high = one.text(value - 1), one.text(value + 1)
    found = one.cell({"x": value, "ci95": {"x": [value - 1, value + 1]}})
    assert found == f"{text} <span class='ci'>[{low}, {high}]</span>"
    assert one.cell({"x": None, "ci95": {"x": None}}) == "–"


def test_sample_sizes_as_text():
    assert sample_text({"n_dates": 1, "n_forecasts": 1600, "cells": 2}) == "1 start, 1,600 forecasts, 2 cells"
    assert sample_text(None) == ""
