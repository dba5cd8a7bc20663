"""The wheel contains exactly the program and finds its configuration where it is installed."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("data_pipeline", "models", "training", "evaluation", "conf")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder], cwd=ROOT, check=True)
    return next(folder.glob("*.whl"))


def test_the_wheel_holds_the_packages_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
    tracked = subprocess.run(
        ["git", "ls-files", *PACKAGES], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert found == {"deepweather.py", *tracked.split()}
    assert {f"{package}/py.typed" for package in PACKAGES} <= found


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


EVERY_VERB = """
import sys
import deepweather
assert deepweather.__file__.startswith(sys.argv[1]), deepweather.__file__
for verb in sys.argv[2:]:
    print(f"== verb {verb}")
    sys.argv = ["deepweather", verb, "--help", "all"]
    deepweather.main()
"""


def test_every_verb_finds_its_configuration_when_installed(installed, tmp_path):
    shown = {
        "prepare": "data.generator.", "train": "trainer.epochs:", "combine": "output:", "evaluate": "split:",
        "compare": "run_dir:", "correct": "output:", "export": "output:", "monitor": "false_alarm_days:",
        "submit": "account:",
    }  # fmt: skip
    environment = os.environ | {"PYTHONPATH": str(installed), "PYTHONSAFEPATH": "1"}
    process = subprocess.run(
        [sys.executable, "-c", EVERY_VERB, installed, *shown],
        cwd=tmp_path, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    assert "Traceback" not in process.stderr
    outputs = dict(output.split("\n", 1) for output in process.stdout.split("== verb ")[1:])
    assert all(text in outputs[verb] for verb, text in shown.items()), outputs


def test_the_command_lists_its_verbs_and_refuses_others(command, tmp_path):
    verbs = ["prepare", "train", "combine", "evaluate", "compare", "correct", "export", "monitor", "submit"]
    shown = command(tmp_path)
    assert (shown.code, re.findall(r"^  (\w+) ", shown.stdout, re.MULTILINE)) == (0, verbs)
    refused = command(tmp_path, "trian")
    assert refused.code == 2
    assert refused.stderr == f"error: there is no verb 'trian'; choose one of {', '.join(verbs)}\n"
