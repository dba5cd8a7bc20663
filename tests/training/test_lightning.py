"""Features of Lightning can be set by name; which flags of its Trainer belong to this project."""

import inspect

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.strategies import DDPStrategy
from tested_device import accelerator
from torch.utils.data import DataLoader
from training_parts import GRID, TASK, module, train_run

from data_pipeline.common import interruption
from data_pipeline.common.errors import InputError
from data_pipeline.prefetch.budget import Budget
from models.corrector import Corrector
from models.parallel.mesh import Mesh
from training.network_training import make_trainer, matmul_precision, train_network
from training.run import checkpoints
from training.run.checkpoints import Checkpoints
from training.run.lightning_options import OWNED
from training.run.trainer_options import TrainerOptions
from training.step.correction_module import CorrectionModule
from training.step.training_data import open_training_data

FREE = {
    "min_epochs", "min_steps", "max_time", "limit_train_batches", "log_every_n_steps", "enable_progress_bar",
    "enable_model_summary", "gradient_clip_algorithm", "deterministic", "inference_mode", "detect_anomaly", "plugins",
    "enable_autolog_hparams", "model_registry", "benchmark", "profiler",
}  # fmt: skip
MLP = {"_target_": "models.networks.mlp.MLP", "width": 8, "depth": 1}
VERSION = "2.6."
"""Version of Lightning in which the private names that a test lists were checked."""


def test_flags_of_the_trainer_are_classified_and_private_names_checked():
    """For another version check whether it still uses these names in the same way; then change `VERSION`."""
    assert set(inspect.signature(pl.Trainer).parameters) == set(OWNED) | FREE
    assert not set(OWNED) & FREE
    assert pl.__version__.startswith(VERSION)
    assert "self._setup_model(" in inspect.getsource(DDPStrategy.configure_ddp)
    assert "self._register_ddp_hooks()" in inspect.getsource(DDPStrategy.configure_ddp)
    loop = type(pl.Trainer(logger=False, accelerator=accelerator()).fit_loop.epoch_loop)
    assert "self._broadcast_sigterm_tensor()" in inspect.getsource(loop.advance)
    assert "_signal_connector.register_signal_handlers()" in inspect.getsource(pl.Trainer._run)


# Callbacks, loggers and flags.


class Counting(pl.Callback):
    """Counts steps."""

    seen = 0

    def __init__(self, at_least):
        self.at_least = at_least

    def on_train_batch_end(self, *arguments):
        type(self).seen += 1


def run(toy, folder, **options):
    return train_run(Mesh.single(), toy, folder, torch.float32, spec=MLP, **options)


def test_callbacks_loggers_and_flags_reach_the_run(toy, tmp_path, monkeypatch):
    monkeypatch.setattr(Counting, "seen", 0)
    run(
        toy, tmp_path, epochs=2,
        callbacks=[{"_target_": f"{__name__}.Counting", "at_least": 3}],
        loggers=[{"_target_": "pytorch_lightning.loggers.CSVLogger", "name": "curves"}],
        lightning={
            "limit_train_batches": 2,
            "profiler": {"_target_": "pytorch_lightning.profilers.SimpleProfiler", "filename": "times"},
        },
    )  # fmt: skip
    assert Counting.seen == 4
    assert list(tmp_path.glob("curves/version_0/metrics.csv"))
    assert list(tmp_path.rglob("*times*"))
    assert not (tmp_path / "tensorboard").exists()
    rows = (tmp_path / "metrics.csv").read_text().splitlines()
    assert [row.split(",")[1] for row in rows[1:]] == ["2", "4"]
    # The learning rate ends where one cycle over these four steps ends.
    assert float(rows[-1].split(",")[4]) == pytest.approx(1e-2 / 250_000, rel=1e-6)


def test_errors_of_lightning_are_one_error_line(tmp_path):
    twice = {"_target_": "pytorch_lightning.callbacks.EarlyStopping", "monitor": "val_loss"}
    for options, sentence in (
        ({"callbacks": [twice]}, "is not available here: .*EarlyStopping"),
        (
            {"lightning": {"gradient_clip_algorithm": "none"}},
            "lightning=.* is not available here: .*`gradient_clip_algorithm`",
        ),
    ):
        schedule = TrainerOptions(accelerator=accelerator(), **options)
        with pytest.raises(InputError, match=sentence):
            make_trainer(schedule, Mesh.single(), Checkpoints(tmp_path, 1.0, Mesh.single()), tmp_path)


def test_an_unknown_metric_is_named(toy, tmp_path):
    spec = {"_target_": "torch.optim.lr_scheduler.ReduceLROnPlateau", "monitor": "val_los"}
    with pytest.raises(InputError, match=r"scheduler\.monitor: there is no metric 'val_los'; there is .*val_loss"):
        run(toy, tmp_path, epochs=1, scheduler=spec)


def test_accumulated_batches_make_one_step(toy, tmp_path):
    """Two batches of 8 for a step; the third batch alone has half the gradient."""
    net, train, val = module(toy, Mesh.single(), torch.float64, MLP | {"dropout": 0.0}, epochs=1,
                             accumulate_grad_batches=2,
                             optimizer={"_target_": "torch.optim.SGD"}, weight_decay=0.0, gradient_clip=None,
                             scheduler={"_target_": "torch.optim.lr_scheduler.ConstantLR", "factor": 1.0})  # fmt: skip
    expected = module(toy, Mesh.single(), torch.float64, MLP | {"dropout": 0.0})[0].train()
    with open_training_data(train, val, Budget(), net.options, Mesh.single()) as data:
        batches = list(data.train_batches)
    parameters = list(expected.corrector.model.parameters())
    for together_ in (batches[:2], batches[2:]):
        losses = [expected.training_step(batch, 0)["loss"] / 2 for batch in together_]
        gradients = torch.autograd.grad(sum(losses), parameters)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.data -= 1e-2 * gradient
    with open_training_data(train, val, Budget(), net.options, Mesh.single()) as data:
        train_network(net, data, tmp_path)
    assert torch.load(tmp_path / "checkpoints/last.ckpt", weights_only=True)["global_step"] == 2
    state = torch.load(tmp_path / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
    for name, parameter in expected.named_parameters():
        torch.testing.assert_close(state[name].cpu(), parameter.detach(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("precision", "convolutions"), [("highest", False), ("high", True), ("medium", True)])
def test_matrices_and_convolutions_have_one_precision(precision, convolutions):
    def settings():
        cudnn = torch.backends.cudnn
        return torch.get_float32_matmul_precision(), cudnn.allow_tf32, cudnn.deterministic

    before = settings()
    with matmul_precision(precision, torch.device("cuda")):
        assert settings() == (precision, convolutions, True)
    with matmul_precision(precision, torch.device("cpu")):
        assert settings() == before
    assert settings() == before


# A stock Trainer.


def test_the_module_runs_under_a_stock_trainer(toy, tmp_path):
    """The learning rate ends at the end of one cycle over all steps, and bias and spread are learnt."""
    train, val = toy(TASK, GRID, 24), toy(TASK, GRID, 8, seed=5)
    torch.manual_seed(0)
    corrector = Corrector(TASK, GRID, MLP, train.static)
    corrector.fit(train)
    net = CorrectionModule(corrector, TrainerOptions(learning_rate=2e-2))
    trainer = pl.Trainer(
        max_epochs=5, logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator=accelerator(),
        enable_model_summary=False, default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.validate(net, DataLoader(val, 4), verbose=False)
    before = float(trainer.callback_metrics["val_loss"])
    trainer.fit(net, DataLoader(train, 8, shuffle=True), DataLoader(val, 4))
    assert trainer.global_step == 15
    assert float(trainer.callback_metrics["val_loss"]) < 0.9 * before
    # There is no step after the last one.
    assert trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(2e-2 / 250_000, rel=1e-6)


def test_a_run_without_a_number_of_steps_is_refused(toy):
    train = toy(TASK, GRID, 8)
    net = CorrectionModule(Corrector(TASK, GRID, MLP, train.static))
    trainer = pl.Trainer(max_epochs=-1, logger=False, enable_checkpointing=False, accelerator=accelerator())
    with pytest.raises(InputError, match="the number of steps is unknown; give the Trainer max_epochs"):
        trainer.fit(net, DataLoader(train, 8))


# Queries between ranks.


class TwoRanks:
    """A mesh whose other rank gives the same answers, with a simulated clock."""

    ranks, rank = 2, 0

    def __init__(self):
        self.asked = 0

    def sum(self, x):
        assert x.device.type == "cpu"
        self.asked += 1
        return 2 * x


class Stepping:
    """A trainer at a given step."""

    accumulate_grad_batches, num_training_batches, global_step = 1, 10**9, 0


@pytest.mark.parametrize(("seconds", "most"), [(0.01, 7), (0.5, 260), (30.0, 1001)])
def test_ranks_query_each_other_every_two_seconds(seconds, most, monkeypatch, tmp_path):
    clock, mesh, requested = [0.0], TwoRanks(), []
    monkeypatch.setattr(interruption, "requested", lambda: bool(requested))
    monkeypatch.setattr(Stepping, "global_step", 0)
    monkeypatch.setattr(checkpoints.time, "monotonic", lambda: clock[0])
    saver = Checkpoints(tmp_path, 1e9, mesh)
    saver.on_train_start(Stepping, None)
    stopped = None
    for step in range(1, 1001):
        Stepping.global_step, clock[0] = step, clock[0] + seconds
        if step == 500:
            requested.append(True)
        if stopped is None and saver._agree(step)[1]:
            stopped = step
    assert stopped is not None
    assert (stopped - 500) * seconds <= max(2.0, seconds)
    assert mesh.asked <= most
