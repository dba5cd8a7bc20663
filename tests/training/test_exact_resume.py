"""A resumed run equals an uninterrupted one bit for bit: on meshes of more than two ranks, and in TensorBoard."""

import math
import random

import numpy as np
import pytest
import torch
from pytorch_lightning import Callback
from pytorch_lightning.callbacks import LearningRateMonitor
from ranks import run_on_ranks
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer import event_file_writer
from training_parts import NET, KilledError, killed_at, module, train_run

from data_pipeline.prefetch.budget import Budget
from models.parallel.mesh import Mesh, arrange_mesh
from training.network_training import train_network
from training.step.correction_module import CorrectionModule
from training.step.training_data import open_training_data

RUN = {
    "spec": NET | {"width": 16, "depth": 2}, "count": 24, "epochs": 2, "checkpoint_minutes": 1e-9,
    "dtype": torch.float32,
}  # fmt: skip


def weights_on_rank(rank, shape, toy, folder, options):
    """The weights of a whole run, and of one that is killed and resumed."""
    mesh = arrange_mesh(*shape)
    with killed_at(4):
        train_run(mesh, toy, folder / "parts", **RUN, **options)
    return [train_run(mesh, toy, folder / name, **RUN, **options)[1] for name in ("whole", "parts")]


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((3, 1, 1), {}),
        pytest.param((2, 2, 1), {"ema_decay": 0.5}, marks=pytest.mark.long),
        pytest.param((4, 1, 1), {"compression": "fp16"}, marks=pytest.mark.long),
        pytest.param((4, 1, 1), {"sharded": True}, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_a_run_resumed_on_the_same_mesh_is_the_same_run(shape, options, toy, tmp_path):
    whole, parts = run_on_ranks(math.prod(shape), weights_on_rank, shape, toy, tmp_path, options)[0]
    for name, weights in whole.items():
        np.testing.assert_array_equal(parts[name], weights, err_msg=name)
    assert (tmp_path / "parts/metrics.csv").read_text() == (tmp_path / "whole/metrics.csv").read_text()


class Draws(Callback):
    """Logs random numbers in every step."""

    def on_train_batch_end(self, trainer, *arguments):
        drawn = {"random": random.random(), "numpy": np.random.rand(), "torch": float(torch.rand(1))}  # noqa: NPY002
        trainer.logger.log_metrics(drawn, trainer.global_step - 1)


def read_curves(folder):
    """The points of each curve as TensorBoard shows them."""
    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    return {tag: [(point.step, point.value) for point in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def train_with_curves(toy, folder, monkeypatch, kill=None, minutes=1e-9):
    """Train for 3 epochs of 3 steps with curves of every step; `kill` names a method and a number of steps."""
    callbacks = [
        {"_target_": f"{LearningRateMonitor.__module__}.LearningRateMonitor", "logging_interval": "step"},
        {"_target_": f"{__name__}.Draws"},
    ]
    net, train, val = module(
        toy, Mesh.single(), torch.float32, epochs=3, callbacks=callbacks, checkpoint_minutes=minutes
    )
    with open_training_data(train, val, Budget(), net.options, net.mesh) as data, monkeypatch.context() as patch:
        if kill is None:
            return train_network(net, data, folder)
        name, steps = kill
        original = getattr(CorrectionModule, name)

        def killed(self, *arguments):
            if self.global_step == steps and not self.trainer.sanity_checking:
                raise KilledError
            return original(self, *arguments)

        patch.setattr(CorrectionModule, name, killed)
        with pytest.raises(KilledError):
            train_network(net, data, folder)
    return None


@pytest.mark.parametrize("minutes", [1e-9, 10.0], ids=["saved at every step", "saved at every epoch"])
def test_curves_of_a_resumed_run_have_each_point_once(toy, tmp_path, monkeypatch, minutes, capsys):
    """Killed in the middle of an epoch, at its end before the checkpoint, and at the start of an epoch."""
    # TensorBoard reads files in the order of their names: second, host, process and a number, of one or two digits.
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(100))
    train_with_curves(toy, tmp_path / "whole", monkeypatch)
    for kill in (("training_step", 2), ("on_train_epoch_end", 3), ("training_step", 3)):
        train_with_curves(toy, tmp_path / "parts", monkeypatch, kill, minutes)
    train_with_curves(toy, tmp_path / "parts", monkeypatch, minutes=minutes)
    expected, found = (read_curves(tmp_path / name) for name in ("whole", "parts"))
    assert [step for step, _ in expected["random"]] == list(range(9))
    assert [step for step, _ in expected["train_loss"]] == [step for step, _ in expected["val_loss"]] == [2, 5, 8]
    assert found == expected
    # Only a run without a checkpoint validates the initial weights.
    starts = 2 if minutes < 1 else 4
    assert capsys.readouterr().out.count("initial weights") == starts
