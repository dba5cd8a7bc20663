"""Series: every number of an entry with its units, decimals and interval. The verdict says what intervals show."""

import re

import pytest
from report_parts import COMPARED, MODELS, SCORES, make_scores

from evaluation.report.series import Series, list_series
from evaluation.report.verdict import comparisons_note, pairs_table, verdict, years_note


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


def scores_with(against, best=BEST):
    """Scores in which the best model has these differences to others, with these p-values."""
    scores = make_scores()
    scores["best"]["model"] = best
    for other, (difference, p) in against.items():
        later, earlier = sorted((best, other), key=MODELS.index, reverse=True)
        sign = 1 if later == best else -1
        scores["pairs"][later][earlier] |= {"crps_minus": sign * difference, "p_holm": p}
    return scores


BETTER = {"raw": (-1, 0.01), "climatology": (-1, 0.01), "emos": (-0.1, 0.049)}
OPEN = BETTER | {"emos": (-0.1, 0.051)}
WORSE = {"raw": (1, 0.01), "climatology": (-1, 0.01), "emos": (0.1, 0.01)}
NOTHING = {"raw": (-1, 0.5), "climatology": (-1, None), "emos": (-0.1, 0.3)}


@pytest.mark.parametrize(
    ("against", "best", "found"),
    [
        (BETTER, BEST, "Shown: net <1> has a lower CRPS than raw, climatology and emos."),
        (
            OPEN, BEST,
            "Shown: net <1> has a lower CRPS than raw and climatology; not shown: a difference between net <1> and "
            "emos.",
        ),
        (WORSE, BEST, "Shown: net <1> has a lower CRPS than climatology and a higher CRPS than raw and emos."),
        (  # the pair of emos and the later network is stored with the network
            {"raw": (-1, 0.01), "climatology": (-1, 0.01), BEST: (0.1, 0.01)}, "emos",
            "Shown: emos has a lower CRPS than raw and climatology and a higher CRPS than net <1>.",
        ),
        (NOTHING, BEST, "Nothing is shown: every difference to net <1> may be chance."),
    ],
)  # fmt: skip
def test_the_verdict_names_what_is_shown_and_what_is_not(against, best, found):
    assert verdict(scores_with(against, best)).replace("**", "") == found


def test_few_years_are_said_with_the_variance_that_would_overturn_the_verdict():
    scores = scores_with(BETTER)
    assert "year" not in years_note(scores)
    for other, share in {"raw": 0.123, "climatology": 1.01, "emos": 0.034}.items():
        scores["pairs"][BEST][other]["year_share"] = share
    text = years_note(scores).replace("**", "")
    assert text.startswith("The starts are in 2 years, too few to show how much years differ. A difference to net <1>")
    assert "12.3 % (raw) and 3.4 % (emos)." in text
    assert "year" not in years_note(scores | {"n_years": 5})


def test_training_runs_are_counted():
    scores = make_scores()
    assert "training runs" not in comparisons_note(scores)
    scores["models"][BEST]["runs"] = [0.5, 0.6, 0.7]
    assert "Scores of **net <1>** (3 runs) are means over training runs" in comparisons_note(scores)


def test_the_table_of_pairs_shows_every_difference():
    scores = scores_with({"climatology": (-1.25, 0.01), "emos": (0.5, 0.01)})
    rows = {name: cells for name, *cells in pairs_table(scores).rows}
    assert list(rows) == ["emos", BEST]
    first, second, *_ = rows[BEST]
    assert re.fullmatch(r"−1\.250? \[.*\]\nbetter", first)
    assert re.fullmatch(r"\+0\.500? \[.*\]\nworse", second)
    scores["models"] = {name: scores["models"][name] for name in ("raw", "emos")}
    assert pairs_table(scores) is None
