"""Loggers by name, with stand-ins for the packages of MLflow and Weights & Biases."""

import importlib
import json
import sys

import pytest
import torch
from training_parts import module

from data_pipeline.common.cost_meter import CostMeter
from data_pipeline.common.errors import InputError
from data_pipeline.prefetch.budget import Budget
from models.parallel.mesh import Mesh
from training.network_training import train_network
from training.run.loggers import make_loggers
from training.run.run_summary import RunSummary
from training.step.training_data import open_training_data

PACKAGES = {
    "mlflow/__init__.py": "def set_tracking_uri(uri): pass",
    "mlflow/entities.py": """
class Param:
    def __init__(self, key, value): self.key, self.value = key, value
class Metric:
    def __init__(self, key, value, timestamp, step): self.key, self.value, self.step = key, value, step
""",
    "mlflow/utils/__init__.py": "",
    "mlflow/utils/mlflow_tags.py": "MLFLOW_RUN_NAME = 'mlflow.runName'",
    "mlflow/tracking/context/__init__.py": "",
    "mlflow/tracking/context/registry.py": "def resolve_tags(tags): return tags",
    "mlflow/tracking/__init__.py": """
import json
import os
from pathlib import Path
from types import SimpleNamespace as Fields

class MlflowClient:
    def __init__(self, uri):
        if os.environ.get("MLFLOW_ALLOW_FILE_STORE") != "true": raise RuntimeError("files are refused")
        self.folder = Path(uri.removeprefix("file:")); self.folder.mkdir(parents=True, exist_ok=True)
    def get_experiment_by_name(self, name): return None
    def create_experiment(self, name, artifact_location): return name
    def create_run(self, experiment_id, tags):
        number = f"run{len(list(self.folder.iterdir()))}"
        self.write(number, {"experiment": experiment_id, "tags": tags})
        return Fields(info=Fields(run_id=number))
    def get_run(self, run_id):
        if not (self.folder / run_id).exists(): raise RuntimeError(f"there is no run {run_id}")
        return Fields(info=Fields(experiment_id="deepweather"))
    def log_batch(self, run_id, params=(), metrics=()):
        self.write(run_id, {"params": {each.key: each.value for each in params},
                            "metrics": {each.key: each.value for each in metrics}})
    def set_terminated(self, run_id, status): self.write(run_id, {"status": status})
    def write(self, run_id, line):
        with (self.folder / run_id).open("a") as file: file.write(json.dumps(line) + "\\n")
""",
    "mlflow-2.9.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: mlflow\nVersion: 2.9.0\n",
    "wandb/__init__.py": """
import json
from pathlib import Path

run = None

class Config:
    def __init__(self, write): self.write = write
    def update(self, values, allow_val_change): self.write({"config": values})

class Started:
    def __init__(self, options):
        if options["project"] != "deepweather": raise RuntimeError("no such project")
        self.id, folder = options["id"], Path(options["dir"]) / "wandb"
        folder.mkdir(exist_ok=True)
        self.file, self.config = folder / self.id, Config(self.write)
        self.write({"name": options["name"], "resume": options["resume"]})
    def write(self, line):
        with self.file.open("a") as file: file.write(json.dumps(line) + "\\n")
    def log(self, metrics): self.write({"metrics": metrics})

def init(**options): return Started(options)
""",
    "wandb/sdk/__init__.py": "", "wandb/sdk/lib/__init__.py": "class RunDisabled: pass",
    "wandb/wandb_run.py": "class Run: pass",
    "wandb-0.16.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: wandb\nVersion: 0.16.0\n",
}  # fmt: skip


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Stand-ins for both packages, which Lightning takes for the real ones."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "")  # restored after the test
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    folder = tmp_path / "site"
    for name, text in PACKAGES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.syspath_prepend(folder)
    importlib.invalidate_caches()
    for name, flag in (("mlflow", "_MLFLOW_AVAILABLE"), ("wandb", "_WANDB_AVAILABLE")):
        module = importlib.import_module(f"pytorch_lightning.loggers.{name}")
        known = getattr(module, flag)
        monkeypatch.setattr(module, flag, type(known)(known.requirement, known.module))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] in ("mlflow", "wandb")]:
        del sys.modules[name]


def train_briefly(toy, folder, epochs, summary=True, **options):
    mlp = {"_target_": "models.networks.mlp.MLP", "width": 8, "depth": 1}
    net, train, val = module(toy, Mesh.single(), torch.float32, mlp, epochs=epochs, **options)
    with (
        RunSummary(folder, CostMeter(), Mesh.single()) as account,
        open_training_data(train, val, Budget(), net.options, Mesh.single()) as data,
    ):
        train_network(net, data, folder, account if summary else None)
    return net


def lines(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def metrics_of(file):
    return {name: value for line in lines(file) for name, value in line.get("metrics", {}).items()}


@pytest.mark.parametrize(("name", "folder"), [("mlflow", "mlruns"), ("wandb", "wandb")])
def test_a_resumed_run_continues_its_entry(name, folder, packages, toy, tmp_path):
    run_dir = tmp_path / "runs/mine"
    run_dir.mkdir(parents=True)
    (run_dir / "config.yaml").write_text("model: {width: 8}\ntrainer: {epochs: 2}\n")
    train_briefly(toy, run_dir, 2, loggers=[name])
    (identifier,) = json.loads((run_dir / "loggers.json").read_text()).values()
    (entry,) = (run_dir / folder).iterdir()
    assert entry.name == identifier
    found = metrics_of(entry)
    assert {"val_loss", "val_crps", "train_loss", "cost/seconds", "cost/samples_per_second"} <= found.keys()
    assert "mine" in entry.read_text().splitlines()[0]
    assert any("model/width" in json.dumps(line) or '"width": 8' in json.dumps(line) for line in lines(entry))
    length = len(lines(entry))
    train_briefly(toy, run_dir, 2, loggers=[name])
    assert list((run_dir / folder).iterdir()) == [entry]
    assert len(lines(entry)) > length
    # Another run folder has an entry of its own.
    train_briefly(toy, tmp_path / "runs/other", 1, loggers=[name])
    assert (tmp_path / "runs/other" / folder).exists()


def test_an_entry_that_cannot_be_continued_is_one_error_line(packages, tmp_path):
    (tmp_path / "loggers.json").write_text('{"mlflow": "gone"}')
    with pytest.raises(InputError, match=r"trainer\.loggers\[0\]: mlflow cannot .* entry of this run: .*no run gone"):
        make_loggers(["mlflow"], tmp_path, True)


def test_the_figures_of_a_run_do_not_change_its_weights(toy, tmp_path):
    plain, counted = (
        train_briefly(toy, tmp_path / name, 2, summary=summary) for name, summary in (("a", False), ("b", True))
    )
    for name, tensor in plain.state_dict().items():
        torch.testing.assert_close(counted.state_dict()[name], tensor, rtol=0, atol=0)
