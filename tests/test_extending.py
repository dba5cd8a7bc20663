"""The pages in docs/extending are correct: a test follows each page, one after the other, in a copy of the project."""

import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```", re.MULTILINE | re.DOTALL)
VERBS = """
import sys
import deepweather
from data_pipeline.common import interruption
interruption.end_soon = sys.exit
for sys.argv in __import__("json").loads(sys.argv[1]):
    try:
        deepweather.main()
    except SystemExit as end:
        if end.code:
            raise
"""
"""A program that runs several command lines: a process that imports PyTorch takes seconds to start."""


def is_verb(line: str) -> bool:
    """Return whether a command line is one of `deepweather`."""
    return line.startswith("deepweather ")


class Project:
    """A copy of the tracked files, in which a page is followed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for name in tracked.rstrip("\0").split("\0"):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, folder / name)
        paths = os.pathsep.join(str(folder / name) for name in ("", "scripts"))
        programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        self.environment = os.environ | {"PYTHONPATH": paths, "PATH": programs, "PYTHONSAFEPATH": "1"}

    def follow(self, page: str) -> list[str]:
        """Write each file, apply each diff and run each command of a page, in order; return what commands printed."""
        printed = []
        for language, name, text in BLOCK.findall((ROOT / "docs/extending" / page).read_text()):
            if language == "sh":
                lines = [line for line in text.replace("\\\n", " ").splitlines() if line]
                groups = [list(group) for _, group in itertools.groupby(lines, is_verb)]
                printed += [
                    self.run_verbs(group) if is_verb(group[0]) else self.run(" && ".join(group)) for group in groups
                ]
            elif language == "diff":
                printed.append(self.run(f"patch -p1 {name}", text))
            elif name:
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                (self.folder / name).write_text(text)
        return printed

    def run_verbs(self, lines: list[str]) -> str:
        """Run command lines of `deepweather` in one process; all must succeed."""
        words = shlex.join([sys.executable, "-c", VERBS, json.dumps([shlex.split(line) for line in lines])])
        return self.run(words)

    def run(self, command: str, text: str | None = None) -> str:
        """Run one command line of the page; it must succeed."""
        ended = subprocess.run(
            command, shell=True, cwd=self.folder, env=self.environment, input=text, capture_output=True, text=True
        )
        assert ended.returncode == 0, f"{command}\n{ended.stdout}\n{ended.stderr}"
        return ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """One copy for all pages: a page works as well where the steps of another page have been followed."""
    return Project(tmp_path_factory.mktemp("project"))


def test_a_model_is_added(project):
    contract, *_ = project.follow("model.md")
    assert int(re.search(r"(\d+) passed", contract)[1]) >= 10
    models = json.loads((project.folder / "runs/scores/scores.json").read_text())["models"]
    assert set(models) == {"raw", "bias_map"}
    assert models["bias_map"]["crps"] < models["raw"]["crps"], "three epochs remove part of the bias"


def test_a_score_is_added(project):
    project.follow("score.md")
    raw = json.loads((project.folder / "runs/scores/scores.json").read_text())["models"]["raw"]
    assert 0 < raw["scores"]["mae"] < raw["rmse"], (
        "the median's absolute error is below the root of the mean's squared error"
    )


def test_a_data_format_is_added(project):
    """The members are 2 K too warm, which EMOS learns."""
    project.follow("format.md")
    models = json.loads((project.folder / "runs/npz-scores/scores.json").read_text())["models"]
    assert models["raw"]["bias"] == pytest.approx(2, abs=0.1)
    assert abs(models["emos"]["bias"]) < 0.3
