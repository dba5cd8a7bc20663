"""The pages in docs/extending are correct: a test follows each page, one after the other, in a copy of the project."""

import contextlib
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
from followed_page import blocks_of, lines_of

pytestmark = pytest.mark.long

COMMANDS = """
import json, runpy, sys
import deepweather
from data_pipeline.common import interruption
from quick_report import blank_figures, few_parts

interruption.end_soon = sys.exit

def run(program, *words):
    sys.argv = [program, *words]
    if program == "deepweather":
        deepweather.main()
    elif words[0] == "-m":
        sys.argv = list(words[1:])
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(words)
        runpy.run_path(words[0], run_name="__main__")

with blank_figures(), few_parts():
    for words in json.loads(sys.argv[1]):
        try:
            run(*words)
        except SystemExit as end:
            if end.code:
                raise
"""
"""A program that runs command lines of `deepweather` and `python`: a process that imports PyTorch starts in seconds.
Figures are blank, and tables have few parts."""
PROGRAMS = ("deepweather ", "python ")
"""Commands that `COMMANDS` runs; a shell runs all others."""


class Project:
    """A copy of the tracked files and of the small twin, in which a page is followed.

    The copy has the times of the files and the caches of Python and numba, which are valid as long as a file does not
    change. Compiling the kernels again takes half of the processor time of a page.
    """

    def __init__(self, folder: Path, twin: Path) -> None:
        self.folder = folder
        tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for name in tracked.rstrip("\0").split("\0"):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)
        # Files with these names are whole: the caches write other names first. Another worker may replace a file.
        for kept in itertools.chain(*(ROOT.glob(f"[!.]*/**/__pycache__/*.{kind}") for kind in ("pyc", "nbi", "nbc"))):
            copy = folder / kept.relative_to(ROOT)
            if copy.parent.parent.is_dir():
                copy.parent.mkdir(exist_ok=True)
                with contextlib.suppress(FileNotFoundError):
                    shutil.copy(kept, copy)
        shutil.copytree(twin, folder / "data/small")
        paths = os.pathsep.join(str(folder / name) for name in ("", "scripts", "tests"))
        programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        self.environment = os.environ | {"PYTHONPATH": paths, "PATH": programs, "PYTHONSAFEPATH": "1"}

    def follow(self, page: str) -> list[str]:
        """Write each file, apply each diff and run each command of a page, in order; return what commands printed.

        Commands that follow each other run in one process.
        """
        printed: list[str] = []
        for is_sh, group in itertools.groupby(blocks_of(f"extending/{page}"), lambda block: block[0] == "sh"):
            if is_sh:
                printed += self.run_lines(lines_of("".join(text for *_, text in group)))
                continue
            for language, name, text in group:
                if language == "diff":
                    self.run(f"patch -p1 {name}", text)
                elif name:
                    (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                    (self.folder / name).write_text(text)
        return printed

    def run_lines(self, lines: list[str]) -> list[str]:
        """Run command lines; all must succeed. Return what they printed."""
        printed = []
        for is_program, group in itertools.groupby(lines, lambda line: line.startswith(PROGRAMS)):
            commands = list(group)
            words = [sys.executable, "-c", COMMANDS, json.dumps([shlex.split(line) for line in commands])]
            printed.append(self.run(shlex.join(words) if is_program else " && ".join(commands)))
        return printed

    def run(self, command: str, text: str | None = None) -> str:
        """Run one command line of the page; it must succeed."""
        ended = subprocess.run(
            command, shell=True, cwd=self.folder, env=self.environment, input=text, capture_output=True, text=True
        )
        assert ended.returncode == 0, f"{command}\n{ended.stdout}\n{ended.stderr}"
        return ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def copy(first_project, tmp_path_factory):
    """One copy for all pages: a page works as well where the steps of another page have been followed."""
    return Project(tmp_path_factory.mktemp("project"), first_project / "data/twin")


def test_a_model_is_added(copy):
    contract, *_ = copy.follow("model.md")
    assert int(re.search(r"(\d+) passed", contract)[1]) >= 10
    models = json.loads((copy.folder / "runs/scores/scores.json").read_text())["models"]
    assert set(models) == {"raw", "bias_map"}
    assert models["bias_map"]["crps"] < models["raw"]["crps"], "three epochs remove part of the bias"


def test_a_loss_is_added(copy):
    copy.follow("loss.md")
    assert (copy.folder / "runs/log_score/corrector.safetensors").is_file()


def test_a_family_is_added(copy):
    laws, *_ = copy.follow("family.md")
    assert int(re.search(r"(\d+) passed", laws)[1]) >= 40
    models = json.loads((copy.folder / "runs/laplace-scores/scores.json").read_text())["models"]
    assert models["laplace"]["crps"] < models["raw"]["crps"]


def test_a_score_is_added(copy):
    copy.follow("score.md")
    raw = json.loads((copy.folder / "runs/scores/scores.json").read_text())["models"]["raw"]
    assert 0 < raw["mae_of_mean"] < raw["rmse"], "a mean absolute error is below the root of the mean squared error"


def test_a_data_format_is_added(copy):
    """The members are 2 K too warm, which EMOS learns."""
    copy.follow("format.md")
    models = json.loads((copy.folder / "runs/npz-scores/scores.json").read_text())["models"]
    assert models["raw"]["bias"] == pytest.approx(2, abs=0.1)
    assert abs(models["emos"]["bias"]) < 0.3
