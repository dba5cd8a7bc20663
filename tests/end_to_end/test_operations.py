"""The script of docs/operations.md is run as it stands there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ROOT
from grib_parts import GRID, KEYS

from data_pipeline.formats.grib import Encoder
from data_pipeline.task import Task
from models.corrector import Corrector

MEMBERS, CYCLE = 3, "2020010112"
TARGETS = {"t2m": "2t", "pressure": "msl"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders of correctors, of incoming and of outgoing files."""
    base = tmp_path_factory.mktemp("suite")
    found = {name: base / name.lower() for name in ("CORRECTORS", "INCOMING", "OUTGOING")}
    for folder in found.values():
        folder.mkdir()
    draw = np.random.default_rng(0)
    for (name, target), ending in zip(TARGETS.items(), ("sfc", "pl"), strict=True):
        task = Task(name, [target], [target], [24])
        corrector = Corrector(task, GRID, {"_target_": "models.statistical.emos.EMOS"}, torch.rand(3, *GRID.shape))
        corrector.save(found["CORRECTORS"] / f"{name}.safetensors")
        encoder = Encoder(GRID, **KEYS, type="pf", stream="enfo", numberOfForecastsInEnsemble=MEMBERS, shortName=target)
        with (found["INCOMING"] / f"{CYCLE}.{ending}.grib").open("wb") as file:
            for number in range(1, MEMBERS + 1):
                field = 280 + draw.standard_normal(GRID.shape)
                file.write(encoder.encode(field, dataDate=20200101, endStep=24, perturbationNumber=number))
    return found


def run(folders, cycle):
    """Run the script of the page."""
    (script,) = re.findall(r"```bash\n(.*?)```", (ROOT / "docs/operations.md").read_text(), re.DOTALL)
    path = Path(sys.executable).parent
    environment = os.environ | {name: str(folder) for name, folder in folders.items()}
    environment["PATH"] = f"{path}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-c", script, "correct-cycle", cycle], env=environment, capture_output=True, text=True
    )


def test_the_script_corrects_a_cycle(folders):
    found = run(folders, CYCLE)
    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stdout.endswith(f"{CYCLE}: corrected\n")
    assert {path.name for path in folders["OUTGOING"].iterdir()} >= {f"{CYCLE}.grib", f"{CYCLE}.grib.explain.html"}


def test_the_script_tells_the_scheduler_that_a_cycle_is_missing(folders):
    found = run(folders, "2020010200")
    assert found.returncode == 2
    assert "2020010200: not corrected, code 2" in found.stdout
    assert "2020010200.sfc.grib" in found.stderr
    assert not (folders["OUTGOING"] / "2020010200.grib").exists()
