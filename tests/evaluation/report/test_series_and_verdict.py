"""Series: every number of an entry with its units, decimals and interval. The verdict says what intervals show."""

import re

import pytest
from report_parts import COMPARED, MODELS, SCORES, SLICES, make_scores

from evaluation.report.series import Series, list_series
from evaluation.report.verdict import comparison_count, comparisons_note, pairs_table, verdict, years_note


@pytest.fixture(scope="module")
def scores():
    return make_scores()


def test_every_score_and_comparison_is_a_series(scores):
    keys = [one.key for one in list_series(scores)]
    labelled = [
        f"scores:{name}" + (f":{label}" if label else "")
        for name, (_, _, labels) in SCORES.items()
        for label in labels or ("",)
    ]
    assert sorted(keys) == sorted([*COMPARED, *labelled])


def test_numbers_are_in_the_units_that_people_read(scores):
    rain = scores | {"target": "tp:24h", "units": "m"}
    for one in list_series(rain):
        entry = rain["models"]["emos"]["by"]["region"]["tropics"]
        value, interval = one.of(entry)
        found, ends = entry, entry["ci95"]
        for name in one.place[one.place[0] == "scores" :]:
            found, ends = found[name], ends[name]
        amount = one.place[0] == "scores" and one.place[1] in ("crps", "crps_fair", "rmse", "bias", "spread")
        factor = 1000 if amount else 1 if one.place[0] == "scores" else 100
        assert one.units == ("mm" if amount else "" if one.place[0] == "scores" else "%")
        assert value == pytest.approx(factor * found)
        assert interval == pytest.approx([factor * end for end in ends])


def test_a_reference_is_not_compared_with_itself(scores):
    for one in list_series(scores):
        against = {name for name in MODELS if name in one.key.split("_")}
        if one.key.startswith("skill_vs"):
            assert set(one.without) == against
        elif one.key.startswith("captured"):
            assert set(one.without) == {"raw", "climatology"}
        else:
            assert one.without == ()


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
    assert found == f"{text} [{low}, {high}]"
    assert one.cell({"x": None, "ci95": {"x": None}}) == "–"


BEST = "net <1>"
ABOVE, AROUND, BELOW = [0.01, 0.2], [-0.1, 0.1], [-0.2, -0.01]
RAW = {tuple(ABOVE): (-1, 0.01), tuple(AROUND): (-1, 0.5), tuple(BELOW): (1, 0.01)}
"""Difference of the CRPS to raw and its p-value, by the interval of the skill."""


def scores_with(against, parts, best=BEST):
    """Scores in which the best model has these differences and p-values to others, and these skills in parts."""
    scores = make_scores()
    scores["best"]["model"] = best
    raw = RAW[tuple(parts.get("all", AROUND))]
    for other, (difference, p) in {"raw": raw, **against}.items():
        later, earlier = sorted((best, other), key=MODELS.index, reverse=True)
        sign = 1 if later == best else -1
        scores["pairs"][later][earlier] |= {"crps_minus": sign * difference, "p_holm": p}
    model = scores["models"][best]
    model["ci95"]["skill_vs_raw_fair"] = parts.get("all", AROUND)
    for kind, labels in SLICES.items():
        for label in labels:
            if label != "global":
                model["by"][kind][label]["ci95"]["skill_vs_raw_fair"] = parts.get(label, parts.get(kind, AROUND))
    return scores


BETTER = {"climatology": (-1, 0.01), "emos": (-0.1, 0.049)}
OPEN = {"climatology": (-1, 0.01), "emos": (-0.1, 0.051)}
WORSE = {"climatology": (1, 0.01), "emos": (0.1, 0.01)}
NOTHING = {"climatology": (-1, None), "emos": (-0.1, 0.3)}
EVERY = ("all", "lead", "region", "season")


@pytest.mark.parametrize(
    ("against", "parts", "best", "found"),
    [
        (
            BETTER, dict.fromkeys(EVERY, ABOVE), BEST,
            "Shown: net <1> has a lower CRPS than raw, climatology and emos; it has a lower CRPS than "
            "raw at all 3 lead times, in all 3 regions and in both seasons.",
        ),
        (
            OPEN, dict.fromkeys(("all", "24", "DJF"), ABOVE), BEST,
            "Shown: net <1> has a lower CRPS than raw and climatology; it has a lower CRPS than raw at 1 "
            "of 3 lead times (+24 h) and in 1 of 2 seasons (DJF); not shown: a difference between net <1> and emos; "
            "nor a difference to raw at 2 of 3 lead times (+48 h, +72 h), in all 3 regions and in 1 of 2 seasons (JJA)",
        ),
        (
            WORSE, {"all": BELOW, "tropics": BELOW, "JJA": ABOVE}, BEST,
            "Shown: net <1> has a higher CRPS than raw, climatology and emos; it has a lower CRPS than "
            "raw in 1 of 2 seasons (JJA); it has a higher CRPS than raw in 1 of 3 regions (tropics); not shown: a "
            "difference to raw at all 3 lead times, ",
        ),
        (  # the pair of emos and the later network is stored with the network
            {"climatology": (-1, 0.01), BEST: (0.1, 0.01)}, {"all": ABOVE}, "emos",
            "Shown: emos has a lower CRPS than raw and climatology; a higher CRPS than net <1>; not shown",
        ),
        (NOTHING, {}, BEST, "Nothing is shown: every difference to net <1> may be chance."),
        (NOTHING, dict.fromkeys(EVERY[1:]), BEST, "Nothing is shown"),
    ],
)  # fmt: skip
def test_the_verdict_names_what_is_shown_and_what_is_not(against, parts, best, found):
    assert plain_verdict(scores_with(against, parts, best)).startswith(found)


def plain_verdict(scores):
    return verdict(scores).replace("**", "")


def test_dependent_members_are_judged_by_the_plain_score():
    scores = scores_with(NOTHING, {"lead": ABOVE})
    model = scores["models"][BEST]
    model["crps_fair_valid"] = False
    for entry in (model, *(entry for labels in model["by"].values() for entry in labels.values())):
        entry["ci95"]["skill_vs_raw"] = AROUND
    assert plain_verdict(scores).startswith("Nothing is shown")


def test_few_years_are_said_with_the_variance_that_would_overturn_the_verdict():
    scores = scores_with(BETTER, {"all": ABOVE})
    assert "year" not in years_note(scores)
    scores["pairs"][BEST]["raw"]["year_share"], scores["pairs"][BEST]["emos"]["year_share"] = 0.123, 0.034
    text = years_note(scores).replace("**", "")
    assert text.startswith("The starts are in 2 years, too few to show how much years differ. A difference to net <1>")
    assert "12.3 % (raw) and 3.4 % (emos)." in text
    assert "year" not in years_note(scores | {"n_years": 5})


def test_comparisons_and_training_runs_are_counted():
    scores = make_scores()
    # Three models, three lead times, three regions beside the globe, two seasons; a single hour repeats the whole.
    assert comparison_count(scores) == 3 + 3 + 3 + 2
    assert "rests on 11 comparisons" in comparisons_note(scores)
    assert "training runs" not in comparisons_note(scores)
    scores["models"][BEST]["runs"] = [0.5, 0.6, 0.7]
    assert "Scores of **net <1>** (3 runs) are means over training runs" in comparisons_note(scores)


def test_the_table_of_pairs_shows_every_difference():
    scores = scores_with({"climatology": (-1.25, 0.01), "emos": (0.5, 0.01)}, {})
    rows = {name: cells for name, *cells in pairs_table(scores).rows}
    assert list(rows) == ["emos", BEST]
    first, second, *_ = rows[BEST]
    assert re.fullmatch(r"−1\.250? \[.*\]\nbetter", first)
    assert re.fullmatch(r"\+0\.500? \[.*\]\nworse", second)
    scores["models"] = {name: scores["models"][name] for name in ("raw", "emos")}
    assert pairs_table(scores) is None
