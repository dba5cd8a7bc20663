"""The verdict in words says what the intervals show, no more and no less."""

import re

import pytest
from report_parts import MODELS, SLICES, cells_of, make_scores, text_of

from evaluation.report.verdict import comparison_count, comparisons_note, pairs_table, power_note, verdict

BEST = "net <1>"
ABOVE, AROUND, BELOW = [0.01, 0.2], [-0.1, 0.1], [-0.2, -0.01]


def scores_with(against, parts, best=BEST):
    """Scores in which the best model has these differences and p-values to others, and these skills in parts."""
    scores = make_scores()
    scores["best"]["model"] = best
    for other, (difference, p) in against.items():
        later, earlier = sorted((best, other), key=MODELS.index, reverse=True)
        sign = 1 if later == best else -1
        scores["pairs"][later][earlier] |= {"crps_minus": sign * difference, "p_holm": p}
    model = scores["models"][best]
    model["ci95"]["skill_vs_raw_fair"] = parts.get("all", AROUND)
    for kind, labels in SLICES.items():
        for label in labels:
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
            "Shown beyond doubt: net <1> has a lower CRPS than raw, climatology and emos; it has a lower CRPS than "
            "raw at all 3 lead times, in all 3 regions and in both seasons.",
        ),
        (
            OPEN, dict.fromkeys(("all", "24", "DJF"), ABOVE), BEST,
            "Shown beyond doubt: net <1> has a lower CRPS than raw and climatology; it has a lower CRPS than raw at 1 "
            "of 3 lead times (+24 h) and in 1 of 2 seasons (DJF); not shown: a difference between net <1> and emos; "
            "nor a difference to raw at 2 of 3 lead times (+48 h, +72 h), in all 3 regions and in 1 of 2 seasons (JJA)",
        ),
        (
            WORSE, {"all": BELOW, "tropics": BELOW, "JJA": ABOVE}, BEST,
            "Shown beyond doubt: net <1> has a higher CRPS than raw, climatology and emos; it has a lower CRPS than "
            "raw in 1 of 2 seasons (JJA); it has a higher CRPS than raw in 1 of 3 regions (tropics); not shown: a "
            "difference to raw at all 3 lead times, ",
        ),
        (  # the pair of emos and the later network is stored with the network
            {"climatology": (-1, 0.01), BEST: (0.1, 0.01)}, {"all": ABOVE}, "emos",
            "Shown beyond doubt: emos has a lower CRPS than raw and climatology; a higher CRPS than net <1>; not shown",
        ),
        (NOTHING, {}, BEST, "Nothing is shown beyond doubt: every difference to net <1> may be chance."),
        (NOTHING, dict.fromkeys(EVERY), BEST, "Nothing is shown beyond doubt"),
    ],
)  # fmt: skip
def test_the_verdict_names_what_is_shown_and_what_is_not(against, parts, best, found):
    assert text_of(verdict(scores_with(against, parts, best))).startswith(found)


def test_dependent_members_are_judged_by_the_plain_score():
    scores = scores_with(NOTHING, {"all": ABOVE, "lead": ABOVE})
    model = scores["models"][BEST]
    model["crps_fair_valid"] = False
    for entry in (model, *(entry for labels in model["by"].values() for entry in labels.values())):
        entry["ci95"]["skill_vs_raw"] = AROUND
    assert text_of(verdict(scores)).startswith("Nothing is shown")


def test_comparisons_and_training_runs_are_counted():
    scores = make_scores()
    # Three models, three lead times, three regions beside the globe, two seasons; a single hour repeats the whole.
    assert comparison_count(scores) == 3 + 3 + 3 + 2
    assert "rests on 11 comparisons" in comparisons_note(scores)
    assert "training runs" not in comparisons_note(scores)
    scores["models"][BEST]["runs"] = [0.5, 0.6, 0.7]
    assert "Scores of <b>net &lt;1&gt;</b> (3 runs) are means over training runs" in comparisons_note(scores)
    assert power_note(scores) == scores["power"]["text"]


def test_the_table_of_pairs_shows_every_difference():
    scores = scores_with({"climatology": (-1.25, 0.01), "emos": (0.5, 0.01)}, {})
    rows = {name: cells for name, *cells in cells_of(pairs_table(scores))[1:]}
    assert list(rows) == ["emos", BEST]
    first, second, *_ = rows[BEST]
    assert re.match(r"−1\.250? .*better", first)
    assert re.match(r"\+0\.500? .*worse", second)
    scores["models"] = {name: scores["models"][name] for name in ("raw", "emos")}
    assert pairs_table(scores) == ""
