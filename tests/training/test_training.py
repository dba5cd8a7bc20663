"""Training steps on toy data: it learns what there is to learn, and a resumed run is the same run."""

import math
import os
import signal
from dataclasses import replace

import pytest
import pytorch_lightning as pl
import torch

from data_pipeline.errors import InputError, InterruptedRunError
from data_pipeline.grid import Grid
from data_pipeline.prefetch.budget import Budget
from data_pipeline.task import Task
from models.corrector import Corrector
from models.distribution import Normal
from models.spatial.mesh import Mesh
from training.data import cached
from training.descent import descend, score
from training.module import CorrectionModule, weighted_crps
from training.schedule import Schedule

TASK = Task("toy", ["2t", "msl"], ["2t"], [48])
GRID = Grid.regular(9, 12)
MLP = {"_target_": "models.mlp.MLP", "width": 16, "depth": 1, "dropout": 0.1}


def module(toy, epochs=6, **options):
    torch.manual_seed(0)
    data = toy(TASK, GRID, 32)
    corrector = Corrector(TASK, GRID, MLP, data.static)
    corrector.fit(data)
    schedule = Schedule(epochs=epochs, batch_size=8, learning_rate=2e-2, accelerator="cpu", **options)
    return CorrectionModule(corrector, schedule, len(data) // schedule.batch_size, Mesh.alone()), data


def run(net, train, val, folder, budget=None):
    """Train `net` as the verb does."""
    with cached(train, val, budget or Budget(), net.schedule, net.mesh) as data:
        descend(net, data, folder)


def score_of(net, dataset):
    with cached(dataset, dataset, Budget(), net.schedule, net.mesh) as data:
        return score(net, data.val_batches)


def assert_same_run(ours, theirs, folder):
    """Weights and the table of epochs, bit for bit."""
    for name, tensor in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], tensor, rtol=0, atol=0)
    assert (folder / "parts/metrics.csv").read_text() == (folder / "whole/metrics.csv").read_text()


def test_training_finds_the_bias_and_the_spread(toy, tmp_path):
    """The toy truth is N(ensemble signal - 1 - sin(latitude), 1), the raw ensemble has spread 0.5 and no bias."""
    net, train = module(toy, epochs=20)
    val = toy(TASK, GRID, 16, seed=5)
    raw = score_of(net, val)
    run(net, train, val, tmp_path)
    trained = score_of(net.eval(), val)
    # CRPS of the perfect forecast N(m, sqrt(1 + .5²/5)) is σ/√π; 5 members tell the signal only so well.
    best = (1 + 0.05) ** 0.5 / torch.pi**0.5 / float(net.corrector.normalizer.scale[0])
    assert raw > 1.3 * best
    assert trained == pytest.approx(best, rel=0.08)
    rows = (tmp_path / "metrics.csv").read_text().splitlines()
    assert rows[0] == "epoch,step,train_crps,val_crps,learning_rate"
    assert list((tmp_path / "tensorboard").glob("events.*"))


@pytest.fixture(scope="module")
def whole(toy, tmp_path_factory):
    """An unbroken run, and the folder whose `whole` holds its files."""
    folder = tmp_path_factory.mktemp("runs")
    net, train = module(toy)
    run(net, train, toy(TASK, GRID, 8, seed=5), folder / "whole")
    return net, folder


class PulledError(Exception):
    """The plug, pulled."""


def pull(self, *arguments):
    raise PulledError


def kill_at(step, act):
    """Return a training step that acts like `act` in front of step number `step` of the whole run."""
    original = CorrectionModule.training_step

    def training_step(self, batch, index):
        if self.global_step == step:
            act(self)
        return original(self, batch, index)

    return training_step


@pytest.mark.parametrize("step", [5, 12, 13, 15, 23], ids=lambda step: f"epoch {step // 4}, batch {step % 4}")
@pytest.mark.parametrize(
    ("minutes", "budget"),
    [(1e-9, Budget(threads=3)), (10.0, Budget(memory=0, staging=40_000))],
    ids=["saved at every step", "saved at every epoch"],
)
def test_a_run_that_dies_and_goes_on_is_the_same_run(whole, toy, tmp_path, monkeypatch, step, minutes, budget):
    (tmp_path / "whole").symlink_to(whole[1] / "whole")
    val = toy(TASK, GRID, 8, seed=5)
    with monkeypatch.context() as patch:
        patch.setattr(CorrectionModule, "training_step", kill_at(step, pull))
        net, train = module(toy, checkpoint_minutes=minutes)
        with pytest.raises(PulledError):
            run(net, train, val, tmp_path / "parts", budget)
    saved = torch.load(tmp_path / "parts/checkpoints/last.ckpt", weights_only=True)
    assert saved["global_step"] == (step if minutes < 1 else step - step % 4)
    again, _ = module(toy)
    run(again, train, val, tmp_path / "parts", budget)
    assert_same_run(again, whole[0], tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_step_and_the_run_goes_on_after_it(whole, toy, tmp_path, monkeypatch, number):
    (tmp_path / "whole").symlink_to(whole[1] / "whole")
    val = toy(TASK, GRID, 8, seed=5)
    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    with monkeypatch.context() as patch:
        patch.setattr(CorrectionModule, "training_step", kill_at(9, lambda self: os.kill(os.getpid(), number)))
        net, train = module(toy)
        with pytest.raises(InterruptedRunError, match=r"interrupted in epoch 3; run the same command again"):
            run(net, train, val, tmp_path / "parts")
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert torch.load(tmp_path / "parts/checkpoints/last.ckpt", weights_only=True)["global_step"] == 10
    again, _ = module(toy)
    run(again, train, val, tmp_path / "parts")
    assert_same_run(again, whole[0], tmp_path)


def test_a_signal_in_validation_does_not_wait_for_its_end(whole, toy, tmp_path, monkeypatch):
    (tmp_path / "whole").symlink_to(whole[1] / "whole")
    val, seen = toy(TASK, GRID, 8, seed=5), []
    original = CorrectionModule.validation_step

    def validation_step(self, batch, index):
        seen.append(self.global_step)
        if self.global_step == 8:
            os.kill(os.getpid(), signal.SIGINT)
        original(self, batch, index)

    net, train = module(toy, checkpoint_minutes=1e-9)
    net.schedule = replace(net.schedule, batch_size=4)
    with monkeypatch.context() as patch:
        patch.setattr(CorrectionModule, "validation_step", validation_step)
        with pytest.raises(InterruptedRunError):
            run(net, train, val, tmp_path / "parts")
    assert seen == [0, 0, 8]


def test_the_second_signal_does_not_wait_for_the_step(toy, tmp_path, monkeypatch):
    def twice(self):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("the step went on")

    monkeypatch.setattr(CorrectionModule, "training_step", kill_at(2, twice))
    net, train = module(toy)
    with pytest.raises(InterruptedRunError):
        run(net, train, toy(TASK, GRID, 8), tmp_path)
    assert not (tmp_path / "checkpoints").exists()


def test_the_best_weights_are_kept_though_the_first_score_is_none(toy, tmp_path, monkeypatch):
    original = CorrectionModule.on_validation_epoch_end

    def on_validation_epoch_end(self):
        self.log("val_crps", math.nan) if self.global_step < 8 else original(self)

    monkeypatch.setattr(CorrectionModule, "on_validation_epoch_end", on_validation_epoch_end)
    monkeypatch.setattr("training.descent.EarlyStopping", lambda *a, **k: pl.Callback())
    net, train = module(toy, epochs=3)
    run(net, train, toy(TASK, GRID, 8, seed=5), tmp_path)
    assert torch.load(tmp_path / "checkpoints/best.ckpt", weights_only=True)["global_step"] > 4


def test_an_interrupt_is_resumable(toy, tmp_path, monkeypatch):
    net, train = module(toy)

    def interrupt(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(CorrectionModule, "on_train_start", interrupt)
    with pytest.raises(InterruptedRunError, match="run the same command again"):
        run(net, train, toy(TASK, GRID, 8), tmp_path)


def test_unknown_truth_has_no_weight_and_leaves_the_gradient_alone():
    truth = torch.tensor([[[[1.0, float("nan")], [3.0, 4.0]]]])
    area = torch.tensor([[0.5, 0.5], [1.5, 1.5]])
    mu = torch.zeros(1, 1, 2, 2, requires_grad=True)
    total, weight = weighted_crps(Normal(mu, torch.ones(1, 1, 2, 2)), truth, area)
    loss = total / weight
    loss.backward()
    each = Normal(torch.zeros(3), torch.ones(3)).crps(torch.tensor([1.0, 3.0, 4.0]))
    assert float(loss.detach()) == pytest.approx(float((each * torch.tensor([0.5, 1.5, 1.5])).sum() / 3.5))
    assert mu.grad[0, 0, 0, 1] == 0
    assert torch.isfinite(mu.grad).all()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("epochs", 0),
        ("epochs", "three"),
        ("learning_rate", -1.0),
        ("precision", "8"),
        ("batch_size", True),
        ("seed", -1),
        ("weight_decay", 1.5),
        ("accelerator", "tpu"),
        ("checkpoint_minutes", 0),
    ],
)
def test_a_wrong_option_is_named_with_its_value(option, value):
    with pytest.raises(InputError, match=rf"trainer.{option} must be .*, got {value!r}"):
        Schedule(**{option: value})


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_an_accelerator_that_is_not_there_is_named(toy, tmp_path):
    net, train = module(toy)
    net.schedule = replace(net.schedule, accelerator="gpu")
    with pytest.raises(InputError, match=r"trainer\.accelerator=gpu .* cannot be had here"):
        run(net, train, train, tmp_path)


def test_bfloat16_learns_nearly_as_well(toy, tmp_path):
    val = toy(TASK, GRID, 16, seed=5)
    found = {}
    for precision in ("32-true", "bf16-mixed"):
        net, train = module(toy, epochs=8, precision=precision)
        run(net, train, val, tmp_path / precision)
        found[precision] = score_of(net.eval(), val)
    assert found["bf16-mixed"] != found["32-true"]
    assert found["bf16-mixed"] == pytest.approx(found["32-true"], rel=0.03)
