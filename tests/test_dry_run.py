"""`--dry-run`: every verb checks its options and prints them, without data."""

import pytest
import yaml
from deepweather import VERBS

CASES = {
    "prepare": (["data=netcdf", "path=nowhere"], "statistics=[mean]"),
    "train": (["data=netcdf", "path=nowhere", "data.split.train=[2010,2014]", "run_dir=r"], "teacher_weight=0.5"),
    "combine": (["correctors=[a, b]", "output=c"], "weights=[1]"),
    "evaluate": (["data=twin", "path=nowhere", "correctors={a: b}"], "members=[ecc-q,ecc-q]"),
    "compare": (["a", "b"], "run_dir=3"),
    "correct": (["corrector=a", "input=b", "output=c"], "members=none"),
    "export": (["corrector=a"], "output=c.nc"),
    "monitor": (["corrector=a", "forecasts=b"], "false_alarm_days=0"),
}
"""Right words of each verb, and one with a name that is right and a value that is wrong."""


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "submit"])
def test_a_dry_run_checks_all_options_and_prints_them(command, tmp_path, verb):
    right, wrong = CASES[verb]
    given = [*right, *["output=c.onnx"] * (verb == "export")]
    ended = command(tmp_path, verb, "--dry-run", *given)
    assert ended.code == 0, ended.stderr
    printed = yaml.safe_load(ended.stdout)
    for name, value in (word.split("=") for word in given if "=" in word and not word.startswith("data")):
        place = printed["data"] if name in ("path", "store") else printed
        assert place[name] == yaml.safe_load(value)
    refused = command(tmp_path, verb, *right, wrong, "--dry-run")
    assert refused.code == 2
    assert wrong.partition("=")[0] in refused.stderr
    assert not refused.stdout
    assert not list(tmp_path.iterdir())
