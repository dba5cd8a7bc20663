"""The verb `evaluate` in this process, on an archive in memory, and an EMOS that was trained on it."""

import signal
import sys

import pytest
from memory_archive import MemoryArchive, overrides
from quick_report import blank_figures

from conf import build
from data_pipeline.dataset import ForecastDataset
from data_pipeline.task import Task
from evaluation import evaluate
from models.corrector import Corrector


@pytest.fixture
def deepweather(monkeypatch):
    """Run the verb like the command line, in this process, with blank figures in the report."""
    handler = signal.getsignal(signal.SIGTERM)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")  # the verb sets this variable; `monkeypatch` restores it

    def run(run_dir, *more):
        monkeypatch.setattr(sys, "argv", ["evaluate", *overrides(run_dir, *more)])
        with blank_figures():
            evaluate.main()

    yield run
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture
def archive(monkeypatch):
    memory = MemoryArchive()
    monkeypatch.setattr(evaluate, "build", lambda node: memory if "ensemble" in node else build(node))
    return memory


@pytest.fixture
def emos(archive, tmp_path):
    task = Task("t2m", ["2t"], ["2t"], [48])
    data = ForecastDataset(archive, task, [2014])
    provenance = {"train_years": [2014, 2014], "val_years": [2015, 2015], "members": 5}
    spec = {"_target_": "models.statistical.emos.EMOS", "seasonal": False}
    corrector = Corrector(task, data.grid, spec, data.static, provenance)
    corrector.fit(data)
    corrector.save(tmp_path / "emos.safetensors")
    return tmp_path / "emos.safetensors"


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    """Give every test a cache of its own: archives in memory have the same fingerprint and other values."""
    monkeypatch.setenv("DEEPWEATHER_CACHE", str(tmp_path / "cache"))
