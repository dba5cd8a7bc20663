"""`correct` with an exported corrector runs without the packages of training, and writes what PyTorch writes."""

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import numpy as np
import pytest
from correction_runs import read_values
from packaging.requirements import Requirement

from benchmarks.correct import write_forecast
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from data_pipeline.writing import Encoder, messages
from models.corrector import Corrector
from models.engines.onnx_export import export

ROOT = Path(__file__).parents[3]
GRID = Grid.regular(19, 36)
EMOS = {"_target_": "models.statistical.emos.EMOS", "seasonal": False, "shared": False}
MLP = {"_target_": "models.networks.mlp.MLP", "width": 4, "depth": 1}
TASK = Task("toy", ["2t"], ["2t"], [24, 48])
SLIM = """
import importlib.abc, runpy, sys

allowed = set(sys.argv[1].split(","))

class Hide(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in allowed:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hide())
import json
from data_pipeline.common import interruption

interruption.end_soon = sys.exit
for words in json.loads(sys.argv[2]):
    sys.argv = [sys.argv[0], *words]
    try:
        runpy.run_path("deepweather.py", run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code
    print(f"exit code {code}", file=sys.stderr)
"""
"""Runs commands one after another."""
ALLOWED_BY_OTHERS = {"gribapi", "yaml", "_yaml", "_cffi_backend"}


def slim_modules():
    """The modules of the packages that the wheel requires without extras, of Python and of this project."""
    wanted = [
        Requirement(text) for text in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    ]
    names = set()
    while wanted:
        name = wanted.pop().name.lower()
        if name not in names:
            names.add(name)
            further = [Requirement(text) for text in requires(name) or []]
            wanted += [each for each in further if not each.marker or each.marker.evaluate({"extra": ""})]
    found = {module for module, owners in packages_distributions().items() if names & {o.lower() for o in owners}}
    ours = {"conf", "data_pipeline", "evaluation", "models", "training"}
    return found | ours | sys.stdlib_module_names | ALLOWED_BY_OTHERS


def run(folder, *commands):
    """Run commands in a process that finds only the modules of a slim installation."""
    (folder / "deepweather.py").write_text((ROOT / "scripts/deepweather.py").read_text())
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    code = [sys.executable, "-c", SLIM, ",".join(sorted(slim_modules())), json.dumps(commands)]
    return subprocess.run(code, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def folder(toy, tmp_path_factory):
    folder = tmp_path_factory.mktemp("slim")
    write_forecast(folder / "in.grib", GRID, 6, [24, 48], "grid_simple", 2)
    winters = [np.datetime64(f"{year}-12-18") + np.arange(32) for year in range(2015, 2019)]
    encoder = Encoder(GRID, centre="ecmf", shortName="2t", type="an", typeOfLevel="surface", dataTime=1200)
    random = np.random.default_rng(1)
    fields = [(int(f"{day:%Y%m%d}"), random.normal(250, 20, GRID.shape)) for day in np.concatenate(winters).tolist()]
    (folder / "past.grib").write_bytes(b"".join(encoder.encode(field, dataDate=day) for day, field in fields))
    for name, spec in {"emos": EMOS, "mlp": MLP}.items():
        data = toy(TASK, GRID, 24)
        corrector = Corrector(TASK, GRID, spec, data.static)
        corrector.fit(data)
        corrector.envelope = None  # the forecasts are not like the data
        corrector.save(folder / f"{name}.safetensors")
        export(folder / f"{name}.safetensors", folder / f"{name}.onnx")
    return folder


REFUSED = [
    (["correct", "corrector=emos.safetensors"], "a corrector that is not exported needs the package torch, "),
    (["correct", "corrector=emos.onnx", "seed=1,2"], "the argument seed=1,2 needs the package "),
    (["correct", "corrector=emos.onnx", "mesh=[1,2]"], "mesh=[1, 2] needs correctors that are not exported: "),
    (["correct", "corrector=emos.onnx", "device=gpu"], "emos.onnx is an exported corrector, which computes on the "),
    (["correct", "corrector=emos.onnx", "explain=true"], "explain=true needs the package "),
    (["correct", "corector=emos.onnx"], "there is no option corector; did you mean corrector?"),
    (["train"], "deepweather train needs the package "),
    (["evaluate"], "deepweather evaluate needs the package "),
    (["export", "corrector=a", "output=b"], "deepweather export needs the package "),
]


def test_a_slim_installation_writes_what_pytorch_writes_and_says_in_one_sentence_what_it_lacks(folder, command):
    words = ["input=in.grib", "keys={subCentre: 7}"]
    words += ["products=[mean,spread,'quantile 0.9',efi,'sot 10']", "history=past.grib"]
    exported = [["correct", f"corrector={name}.onnx", f"output={name}-slim.grib", *words] for name in ("emos", "mlp")]
    files = ["input=in.grib", "output=never.grib"]
    lacking = [[*words, *files] if words[0] == "correct" else words for words, _ in REFUSED]
    ended = run(folder, *exported, *lacking)
    *written, rest = re.split(r"done in .*\n", ended.stdout)
    lines = ended.stderr.splitlines()
    assert (rest, lines[:2], lines[3::2]) == ("", 2 * ["exit code 0"], len(REFUSED) * ["exit code 2"]), lines
    for line, (_, sentence) in zip(lines[2::2], REFUSED, strict=True):
        assert line.startswith(f"error: {sentence}")
        assert "package" not in line or line.endswith("pip install 'deepweather[train]'")
    for name, printed in zip(("emos", "mlp"), written, strict=True):
        full = command(folder, "correct", f"corrector={name}.safetensors", f"output={name}-torch.grib", *words)
        expected = full.stdout.replace("torch", "slim").replace(".safetensors", ".onnx")
        assert (full.code, re.sub(r"done in .*\n", "", expected)) == (0, printed)
        one, two = (read_values(folder / f"{name}-{kind}.grib", GRID) for kind in ("slim", "torch"))
        assert len(one) == 2 * (6 + 5)
        step = np.ptp(two) / 2**15  # a message has 16 bits
        np.testing.assert_allclose(one, two, rtol=0, atol=1.001 * step)
        assert list(messages(folder / f"{name}-slim.grib", None)) == list(messages(folder / f"{name}-torch.grib", None))
