"""Meanings of channels: what may be compared, and what is refused."""

import pytest

from data_pipeline.common.errors import InputError
from data_pipeline.task import Variable
from data_pipeline.variables.meaning import UNKNOWN, Meaning, check_targets, differences, list_unknown


def meaning(text, units="m", *intervals):
    return Meaning(Variable.parse(text), units, intervals)


def test_targets_that_mean_something_else_are_refused():
    for ensemble, truth, sentence in (
        (("tp", "m", 1440, 2880), ("tp", "m", 60), r"tp covers 24 h in the ensemble at lead time 24 h and 1 h in the"),
        (("tp", "m", 1440, 2880), ("tp", "m", 1440), r"covers 48 h .* lead time 48 h and 24 h .* such as tp:24h$"),
        (("tp", "m", UNKNOWN, 360), ("tp", "m", 360), r"in the ensemble at lead time 24 h is unknown.*{ensemble: {tp"),
        (("tp", "m", 360, 360), ("tp", "m", UNKNOWN), r"in the analysis is unknown.*intervals={analysis: {tp: 6h}}"),
        (("2t:mean", "K", 60, 60), ("2t:mean", "K", 1440), "give the task one period for both, such as 2t:24h-mean"),
        (("smoke", "kg", 0, 0), ("smoke", "g", 0), "smoke is in kg in the ensemble and in g in the analysis; convert"),
        (("smoke", "kg", 0, 0), ("smoke", "", 0), "in kg in the ensemble and in unknown units in the analysis"),
    ):
        same = meaning("2t", "K", 0, 0), meaning("2t", "K", 0)
        with pytest.raises(InputError, match=sentence):
            check_targets([same[0], meaning(*ensemble)], [same[1], meaning(*truth)], [24, 48])


def test_differences_count_shared_lead_times_and_known_intervals():
    own = [meaning("2t", "K", 0, 0), meaning("tp", "m", 360, 720), meaning("cp", "m", UNKNOWN, 720)]
    other = [meaning("2t", "K", 0), meaning("tp", "m", 720), meaning("cp", "m", 720)]
    assert differences(own, [6, 12], other, [12]) == []
    assert differences(own, [6, 12], other, [6]) == ["tp at lead time 6 h over 6 h, not 12 h"]
    celsius = [meaning("2t", "degC", 0)]
    assert differences(celsius, [6], other[:1], [6]) == ["2t in degC, not K"]


def test_unknown_intervals_are_counted_and_named():
    inputs = [meaning("tp", "m", UNKNOWN), meaning("2t", "K", 0), meaning("cp", "m", UNKNOWN)]
    assert list_unknown(inputs).startswith("2 inputs cover intervals of unknown or varying length: tp, cp;")
    assert list_unknown(inputs).endswith("data.archive.intervals can, for instance {tp: 6h}")
    assert list_unknown(inputs[1:2]) == ""
