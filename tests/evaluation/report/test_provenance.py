"""Provenance: every fingerprint, and the energy of machines that tell it."""

import re

import numpy
import pytest
from report_parts import make_scores

from evaluation.report.provenance import EnergyMeter, RunClock, provenance_list


def counters(folder, *values):
    """Write the counters of processor packages in µJ, and of one part of a package, which must not count twice."""
    for number, value in enumerate(values):
        for name, found in ((f"intel-rapl:{number}", value), (f"intel-rapl:{number}:0", 10 * value)):
            (folder / name).mkdir(exist_ok=True)
            (folder / name / "energy_uj").write_text(f"{found}\n")
            (folder / name / "max_energy_range_uj").write_text("1000000000\n")


def test_energy_is_the_sum_over_packages(tmp_path):
    counters(tmp_path, 5_000_000, 1_000_000)
    meter = EnergyMeter(tmp_path)
    counters(tmp_path, 9_000_000, 1_500_000)
    assert meter.joules() == 4.5


def test_a_counter_may_begin_again(tmp_path):
    counters(tmp_path, 999_000_000)
    meter = EnergyMeter(tmp_path)
    counters(tmp_path, 2_000_000)
    assert meter.joules() == 3


def test_a_machine_without_readable_counters_has_no_energy(tmp_path):
    assert EnergyMeter(tmp_path).joules() is None
    assert "Energy" not in RunClock(EnergyMeter(tmp_path)).facts()
    counters(tmp_path, 5, 6)
    meter = EnergyMeter(tmp_path)
    (tmp_path / "intel-rapl:1/energy_uj").unlink()
    assert meter.joules() is None


@pytest.mark.parametrize(
    ("seconds", "microjoules", "duration", "energy"),
    [(59.6, 2_500_000_000, "60 s", "2,500 J"), (3600, 720_000_000_000, "60 min", "0.20 kWh")],
)
def test_facts_of_a_run(tmp_path, monkeypatch, seconds, microjoules, duration, energy):
    counters(tmp_path, 0)
    clock = RunClock(EnergyMeter(tmp_path), began=100.0)
    (tmp_path / "intel-rapl:0/energy_uj").write_text(str(microjoules))
    monkeypatch.setattr("evaluation.report.provenance.time.monotonic", lambda: 100.0 + seconds)
    facts = clock.facts()
    assert facts["Duration"] == duration
    assert facts["Energy"].startswith(f"{energy}, ")
    assert re.fullmatch(r"\d{1,2} \w+ \d{4}, \d\d:\d\d UTC", facts["Written"])


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
