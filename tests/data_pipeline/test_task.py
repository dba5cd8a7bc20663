import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.common.errors import InputError
from data_pipeline.task import Task, Variable

T850 = {"name": "t850", "inputs": ["z@850", "t@850"], "targets": ["t@850"], "lead_times": [24, 48]}


PROCESSES = st.sampled_from(["mean", "accumulation", "maximum", "minimum"])


@given(
    st.builds(Variable, st.sampled_from(["2t", "t", "10u", "tp"]), st.integers(0, 1100))
    | st.builds(Variable, st.sampled_from(["2t", "tp", "mx2t"]), st.just(0), st.integers(0, 240), PROCESSES)
)
def test_parsing_the_text_of_a_variable(variable):
    assert Variable.parse(str(variable)) == variable


def test_a_task_survives_json():
    task = Task(**T850, static=["lsm"])
    assert Task(**task.to_json()) == task
    assert task.target_channels == (1,)
    assert task.static_names[-1] == "lsm"


def test_wrong_options_are_refused():
    for change, sentence in (
        ({"targets": ["q@850"]}, "add the target q@850 to the inputs"),
        ({"inputs": ["t@850", "t@850"]}, "different variables"),
        ({"inputs": "t@850"}, "must be a list"),
        ({"inputs": ["t@high", "t@850"]}, "cannot read the variable 't@high'"),
        ({"inputs": ["t@5000", "t@850"]}, "between 1 and 1100 hPa"),
        ({"inputs": ["", "t@850"]}, "cannot read the variable ''"),
        ({"inputs": ["2 t", "t@850"]}, "not a GRIB shortName"),
        ({"inputs": ["2t:24h", "t@850"]}, "2t:24h is instantaneous and has no period"),
        ({"inputs": ["tp:24", "t@850"]}, "cannot read the variable 'tp:24'"),
        ({"inputs": ["2t:24h-sum", "t@850"]}, "the processing of 2t:24h-sum must be one of"),
        ({"lead_times": [48, 24]}, "increasing whole hours"),
        ({"lead_times": ["two"]}, "increasing whole hours"),
        ({"lead_times": []}, "increasing whole hours"),
        ({"other_leads": ["t@850"]}, r"cannot read 't@850' in other_leads; write t@850\+24h"),
        ({"other_leads": ["t@850+0h", "t@850+0h"]}, "other_leads must be different variables"),
        ({"other_leads": ["t@850-72h"]}, "t@850-72h is before the start of a forecast of 48 h; remove it"),
        ({"formulas": ["change(t@850, 72)"]}, "t@850-72h, which a formula needs, is before the start of every"),
        ({"formulas": ["t@850"]}, "'t@850' in formulas is no formula; write it in inputs or other_leads"),
        ({"other_leads": "t@850+0h"}, "other_leads must be a list"),
        ({"analysis": ["t@850", "t@850"]}, "analysis must be different variables"),
    ):
        with pytest.raises(InputError, match=sentence):
            Task(**(T850 | change))
