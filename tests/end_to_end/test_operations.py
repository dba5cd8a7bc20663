"""The commands of docs/operations.md are run as they stand there."""

import json
import os
import re
import subprocess
import sys

import forks
import numpy as np
import pytest
import torch
from conftest import ROOT
from correction_runs import write_members
from grib_parts import GRID, KEYS

from data_pipeline.common.identity import sha256_of
from data_pipeline.task import Task
from data_pipeline.writing import Encoder
from models.corrected_files.conformal_option import recorded_correctors
from models.corrector import Corrector

MEMBERS, CYCLE = 3, "2020010112"
COMMAND = """
import sys
sys.path.insert(0, {tests!r})
import forks
forks._server["address"] = {address!r}
sys.exit(forks.Program([forks.ROOT / "scripts/deepweather.py", *sys.argv[1:]]).wait())
"""
"""The program `deepweather`, as a fork of the server of `forks.py`."""
TARGETS = {"t2m": "2t", "pressure": "msl"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders of correctors, of incoming and of outgoing files."""
    base = tmp_path_factory.mktemp("suite")
    found = {name: base / name.lower() for name in ("CORRECTORS", "INCOMING", "OUTGOING", "MONITOR")}
    found["bin"] = base / "bin"
    for folder in found.values():
        folder.mkdir()
    command = found["bin"] / "deepweather"
    command.write_text(f"#!{sys.executable}\n{COMMAND.format(tests=str(ROOT / 'tests'), address=forks._address())}")
    command.chmod(0o755)
    draw = np.random.default_rng(0)
    for (name, target), ending in zip(TARGETS.items(), ("sfc", "pl"), strict=True):
        task = Task(name, [target], [target], [24])
        corrector = Corrector(task, GRID, {"_target_": "models.statistical.emos.EMOS"}, torch.rand(3, *GRID.shape))
        corrector.save(found["CORRECTORS"] / f"{name}.safetensors")
        fields = {(target, 20200101, 24, n): 280 + draw.standard_normal(GRID.shape) for n in range(1, MEMBERS + 1)}
        write_members(found["INCOMING"] / f"{CYCLE}.{ending}.grib", fields)
        analysis = Encoder(GRID, **KEYS, type="an", stream="oper", shortName=target)
        with (found["INCOMING"] / f"2020010212.{ending}.an.grib").open("wb") as file:
            file.write(analysis.encode(280 + draw.standard_normal(GRID.shape), dataDate=20200102, step=0))
    return found


def run(folders, cycle, script="correct-cycle"):
    """Run a script of the page."""
    scripts = re.findall(r"```bash\n(.*?)```", (ROOT / "docs/operations.md").read_text(), re.DOTALL)
    (text,) = (one for one in scripts if f"# {script} CYCLE" in one)
    return bash(folders, text, script, cycle)


def bash(folders, text, *arguments):
    """Run commands with the folders of the suite."""
    environment = os.environ | {name: str(folder) for name, folder in folders.items()}
    environment["PATH"] = f"{folders['bin']}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(["bash", "-c", text, *arguments], env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def corrected(folders):
    """The first script, after it has run."""
    return run(folders, CYCLE)


def test_the_script_corrects_a_cycle(folders, corrected):
    found = corrected
    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stdout.endswith(f"{CYCLE}: corrected\n")
    assert {path.name for path in folders["OUTGOING"].iterdir()} >= {f"{CYCLE}.grib", f"{CYCLE}.grib.explain.html"}


def test_the_script_tells_the_scheduler_that_a_cycle_is_missing(folders):
    found = run(folders, "2020010200")
    assert found.returncode == 2
    assert "2020010200: not corrected, code 2" in found.stdout
    assert "2020010200.sfc.grib" in found.stderr
    assert not (folders["OUTGOING"] / "2020010200.grib").exists()


def test_the_second_script_scores_the_cycle(folders, corrected):
    found = run(folders, CYCLE, "verify-cycle")
    assert found.returncode == 0, found.stdout + found.stderr
    for name in TARGETS:
        assert json.loads((folders["MONITOR"] / name / "conformal.json").read_text())
    assert found.stdout.count("1 forecasts verified now, 1 in all") == 2
    layers = re.search(r'"conformal=\[.*?\]"', (ROOT / "docs/operations.md").read_text())[0]
    correctors = re.search(r'"corrector=\{.*?\}"', (ROOT / "docs/operations.md").read_text())[0]
    files = f'"input=[$INCOMING/{CYCLE}.sfc.grib, $INCOMING/{CYCLE}.pl.grib]" output=$OUTGOING/moved.grib'
    ended = bash(folders, f"deepweather correct {correctors} {files} {layers}")
    assert ended.returncode == 0, ended.stderr
    moved, plain = (folders["OUTGOING"] / f"{name}.grib" for name in ("moved", CYCLE))
    assert moved.read_bytes() != plain.read_bytes()
    for name in TARGETS:
        corrector = sha256_of(folders["CORRECTORS"] / f"{name}.safetensors")
        assert [corrector in recorded_correctors(path) for path in (moved, plain)] == [True, False]
