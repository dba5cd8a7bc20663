"""Loggers by name, with stand-ins for Lightning's loggers of MLflow and Weights & Biases."""

import inspect
import json
import os
from pathlib import Path

import pytest
import torch
from pytorch_lightning.loggers import Logger
from training_parts import module

from data_pipeline.common.cost_meter import CostMeter
from data_pipeline.common.errors import InputError
from data_pipeline.prefetch.budget import Budget
from models.parallel.mesh import Mesh
from training.network_training import train_network
from training.run import loggers
from training.run.loggers import make_loggers
from training.run.run_summary import RunSummary
from training.step.training_data import open_training_data


def stand_in(kind, inner):
    """Return a class that takes the arguments of a logger, and writes lines to the file of its entry in `inner`."""

    class StandIn(Logger):
        name = kind.__name__

        def __init__(self, *arguments, **options):
            given = inspect.signature(kind.__init__).bind(None, *arguments, **options).arguments
            folder, self.run_id = Path(given["save_dir"]) / inner, given.get("id", given.get("run_id"))
            if "run_id" in given and self.run_id and not (folder / self.run_id).exists():
                raise RuntimeError(f"there is no run {self.run_id}")
            assert {given.get("project"), given.get("experiment_name")} == {"deepweather", None}
            assert "run_id" not in given or os.environ["MLFLOW_ALLOW_FILE_STORE"] == "true"
            folder.mkdir(parents=True, exist_ok=True)
            self.run_id = self.version = self.run_id or f"run{len(list(folder.iterdir()))}"
            self.file = folder / self.run_id
            self.write({key: str(value) for key, value in given.items()})

        version = None

        def write(self, line):
            with self.file.open("a") as file:
                file.write(json.dumps(line) + "\n")

        def log_metrics(self, metrics, step=None):
            self.write({"metrics": metrics})

        def log_hyperparams(self, params):
            self.write({"options": params})

    return StandIn


@pytest.fixture
def packages(monkeypatch):
    """Stand-ins for both loggers, whose packages count as installed."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "")  # restored after the test
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(loggers, "find_spec", lambda name: name)
    for name, inner in (("MLFlowLogger", ""), ("WandbLogger", "wandb")):
        monkeypatch.setattr(loggers, name, stand_in(getattr(loggers, name), inner))


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
    assert {"options": {"model": {"width": 8}, "trainer": {"epochs": 2}}} in lines(entry)
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
