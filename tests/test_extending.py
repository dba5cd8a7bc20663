"""The pages in docs/extending are correct: a test follows each page in a copy of the project."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```", re.MULTILINE | re.DOTALL)


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
                printed += [self.run(line) for line in text.replace("\\\n", " ").splitlines() if line]
            elif language == "diff":
                printed.append(self.run(f"patch -p1 {name}", text))
            elif name:
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                (self.folder / name).write_text(text)
        return printed

    def run(self, command: str, text: str | None = None) -> str:
        """Run one command line of the page; it must succeed."""
        ended = subprocess.run(
            command, shell=True, cwd=self.folder, env=self.environment, input=text, capture_output=True, text=True
        )
        assert ended.returncode == 0, f"{command}\n{ended.stdout}\n{ended.stderr}"
        return ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The folder of the twin's files, which only the first page makes."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture
def project(tmp_path, data):
    project = Project(tmp_path)
    (tmp_path / "data").symlink_to(data)
    return project


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
