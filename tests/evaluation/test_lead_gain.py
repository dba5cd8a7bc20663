"""Gain in lead time: raw's score rises by a known amount per hour, so that gains have a closed form."""

from types import SimpleNamespace

import numpy as np
import pytest

from data_pipeline.task import Task
from evaluation.scoring.aggregation import WeightedMean
from evaluation.significance.intervals import interval
from evaluation.tables.lead_gain import lead_gains, lead_of_equal_score

LEADS, STARTS, SLOPE = (24, 48, 72), 86_400 * 20 * np.arange(40), 0.02
EVERY = np.repeat(STARTS, 3), np.tile(LEADS, 40)


def finisher(crps):
    """Everything that `lead_gains` asks of a finisher, for CRPS of raw and a model by forecast."""
    board = SimpleNamespace(
        task=Task("t", ["2t"], ["2t"], list(LEADS)), init_times=EVERY[0], lead_times=EVERY[1],
        judging_score=lambda *_: "crps_fair", judged=lambda *names: names,
    )  # fmt: skip
    return SimpleNamespace(board=board, mean=lambda name, _: WeightedMean(crps[name], np.ones(len(crps[name]))))


def test_a_gain_is_the_difference_of_scores_by_raws_growth_per_hour():
    """Raw is the same in every start, so that the interval is that of the model's mean, divided by the slope."""
    noise = 0.05 * np.random.default_rng(0).normal(size=120)
    raw, model = SLOPE * EVERY[1] + 1, SLOPE * EVERY[1] + 0.7 + noise
    found = lead_gains(finisher({"raw": raw, "net": model}), "net")
    for lead in (48, 72):
        own = model[EVERY[1] == lead]
        assert found[str(lead)]["hours"] == pytest.approx((SLOPE * lead + 1 - own.mean()) / SLOPE)
        low, high = interval(np.asarray, [WeightedMean(own, np.ones(40))], STARTS)
        ends = [(SLOPE * lead + 1 - end) / SLOPE for end in (high, low)]
        assert found[str(lead)]["ci95"] == pytest.approx(ends)
    assert found["24"] == {"hours": None, "ci95": None, "at_least": 0, "at_most": None}


def test_beyond_the_scored_lead_times_a_gain_has_a_bound():
    raw = SLOPE * EVERY[1] + 1
    found = lead_gains(finisher({"raw": raw, "net": raw - 2}), "net")
    assert [one["at_least"] for one in found.values()] == [0, 24, 48]
    found = lead_gains(finisher({"raw": raw, "net": raw + 2}), "net")
    assert [one["at_most"] for one in found.values()] == [-48, -24, 0]
    assert {one["hours"] for one in found.values()} == {None}


def test_a_score_that_falls_with_lead_time_counts_as_the_largest_before_it():
    equal = lead_of_equal_score([6, 12, 18, 24])
    raw = [np.array([value]) for value in (1.0, 2.0, 1.5, 3.0)]
    for value, expected in ((1.5, 9), (2.5, 21), (3.0, 24), (1.0, 6), (3.1, np.nan), (0.9, np.nan)):
        np.testing.assert_allclose(equal(np.array([value]), *raw), [expected])


def test_there_is_no_gain_of_raw_or_with_one_lead_time():
    raw = SLOPE * EVERY[1] + 1
    assert lead_gains(finisher({"raw": raw, "net": raw}), "raw") is None
    one = finisher({"raw": raw, "net": raw})
    one.board.lead_times = np.full(120, 48)
    assert lead_gains(one, "net") is None
