"""Provenance: every fingerprint, and the energy of machines that tell it."""

import re

import numpy
import pytest
from report_parts import make_scores

from data_pipeline.common.cost_meter import Usage
from evaluation.report.provenance import provenance_list, run_facts


@pytest.mark.parametrize(
    ("seconds", "joules", "duration", "energy"),
    [(59.6, 2_500, "60 s", "2,500 J"), (3600, 720_000, "60 min", "0.20 kWh")],
)
def test_facts_of_a_run(seconds, joules, duration, energy):
    facts = run_facts(Usage(seconds, 1, joules={"RAPL node 0": joules / 2, "NVML 1": joules / 2}))
    assert facts["Duration"] == duration
    assert facts["Energy"].startswith(f"{energy}, counted by NVML, RAPL ")
    assert re.fullmatch(r"\d{1,2} \w+ \d{4}, \d\d:\d\d UTC", facts["Written"])


def test_a_machine_without_readable_counters_has_no_energy():
    assert "Energy" not in run_facts(Usage(3.0, 1, unmeasured=("no counters",)))


def test_the_list_has_every_fingerprint():
    scores = make_scores()
    html = provenance_list(scores, {"Written": "today"})
    terms = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", html))
    inputs = scores["inputs"]
    assert terms["Options"] == f"<code>{inputs['options']}</code>"
    assert terms["Data"] == f"<code>{inputs['data']}</code>"
    assert terms["Corrector emos"] == "<code>45ef</code>"
    assert terms["Corrector net &lt;1&gt;"] == "<code>67</code>"
    assert terms["Deepweather"] == "1.0, scores.json format 4"
    assert f"numpy {numpy.__version__}" in terms["Software"]
    assert terms["Written"] == "today"
    assert set(inputs) == {"options", "data", "deepweather", "correctors"}
