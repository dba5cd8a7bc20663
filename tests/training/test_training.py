"""Training on toy data: bias and spread are learnt, and a resumed run is the same run."""

import math
import os
import re
import signal
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from tested_device import accelerator
from training_parts import killed_at

from data_pipeline.common import interruption
from data_pipeline.common.errors import InputError, InterruptedRunError
from data_pipeline.grid import Grid
from data_pipeline.prefetch.budget import Budget
from data_pipeline.task import Task
from models.corrector import Corrector
from training.network_training import train_network
from training.optimization.loss import CRPS
from training.run.checkpoints import Checkpoints
from training.run.trainer_options import TrainerOptions
from training.step.batch_loss import validation_crps
from training.step.correction_module import CorrectionModule
from training.step.training_data import open_training_data
from training.step.weight_average import validated_weights

TASK = Task("toy", ["2t", "msl"], ["2t"], [48])
GRID = Grid.regular(9, 12)
MLP = {"_target_": "models.networks.mlp.MLP", "width": 16, "depth": 1, "dropout": 0.1}
TORCH = "torch.optim.lr_scheduler"
COSINE = {
    "_target_": f"{TORCH}.SequentialLR",
    "schedulers": [
        {"_target_": f"{TORCH}.LinearLR", "start_factor": 0.1, "total_iters": {"_steps_": 0.1}},
        {"_target_": f"{TORCH}.CosineAnnealingLR", "T_max": {"_steps_": 0.9}},
    ],
    "milestones": [{"_steps_": 0.1}],
}
CONSTANT = {"_target_": f"{TORCH}.ConstantLR", "factor": 1.0}
PLATEAU = {"_target_": f"{TORCH}.ReduceLROnPlateau", "factor": 0.5, "patience": 0, "threshold": 0.0}
EMA = {"_target_": "pytorch_lightning.callbacks.EMAWeightAveraging", "decay": 0.5}
BATCH_NORM = {"_target_": "models.published.ens10.ENS10UNet"}


def module(toy, epochs=6, spec=MLP, **options):
    torch.manual_seed(0)
    data = toy(TASK, GRID, 32)
    corrector = Corrector(TASK, GRID, spec, data.static)
    corrector.fit(data)
    options = {"matmul_precision": "highest", "accelerator": accelerator()} | options
    schedule = TrainerOptions(epochs=epochs, batch_size=8, learning_rate=2e-2, **options)
    return CorrectionModule(corrector, schedule, batches=len(data) // schedule.batch_size), data


def run(net, train, val, folder, budget=None):
    """Train `net` like the verb."""
    with open_training_data(train, val, budget or Budget(), net.options, net.mesh) as data:
        train_network(net, data, folder)


def score_of(net, dataset):
    with open_training_data(dataset, dataset, Budget(), net.options, net.mesh) as data:
        return validation_crps(net, data.val_batches)[0]


def assert_same_run(ours, theirs, folder, whole=None):
    """Weights and the table of epochs, bit for bit."""
    assert len(theirs.state_dict()) > 5
    for name, tensor in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], tensor, rtol=0, atol=0)
    assert (folder / "parts/metrics.csv").read_text() == ((whole or folder) / "whole/metrics.csv").read_text()


def test_training_finds_the_bias_and_the_spread(toy, tmp_path):
    """The toy truth is N(ensemble signal - 1 - sin(latitude), 1), the raw ensemble has spread 0.5 and no bias."""
    net, train = module(toy, epochs=20)
    val = toy(TASK, GRID, 16, seed=5)
    raw = score_of(net, val)
    run(net, train, val, tmp_path)
    trained = score_of(net.eval(), val)
    # CRPS of the perfect forecast N(m, sqrt(1 + .5²/5)) is σ/√π; the mean of 5 members has an error of its own.
    best = (1 + 0.05) ** 0.5 / torch.pi**0.5 / float(net.corrector.normalizer.scale[0])
    assert raw > 1.3 * best
    assert trained == pytest.approx(best, rel=0.08)
    rows = (tmp_path / "metrics.csv").read_text().splitlines()
    assert rows[0] == "epoch,step,train_loss,val_loss,learning_rate"
    assert list((tmp_path / "tensorboard").glob("events.*"))


@pytest.fixture(scope="module")
def whole(toy, tmp_path_factory):
    """An uninterrupted run, and the parent of its folder `whole`."""
    folder = tmp_path_factory.mktemp("runs")
    net, train = module(toy)
    run(net, train, toy(TASK, GRID, 8, seed=5), folder / "whole")
    return net, folder


def before_step(step, act):
    """Return a training step that calls `act` before step number `step` of the run."""
    original = CorrectionModule.training_step

    def training_step(self, batch, index):
        if self.global_step == step:
            act(self)
        return original(self, batch, index)

    return training_step


@pytest.mark.parametrize("step", [5, 12], ids=lambda step: f"epoch {step // 4}, batch {step % 4}")
def test_a_killed_and_resumed_run_is_the_same_run(whole, toy, tmp_path, step):
    val, every_step = toy(TASK, GRID, 8, seed=5), step % 2 == 1
    budget = Budget(threads=3) if every_step else Budget(memory_bytes=0, staging_bytes=40_000)
    net, train = module(toy, checkpoint_minutes=1e-9 if every_step else 10.0)
    with killed_at(step):
        run(net, train, val, tmp_path / "parts", budget)
    saved = torch.load(tmp_path / "parts/checkpoints/last.ckpt", weights_only=True)
    assert saved["global_step"] == (step if every_step else step - step % 4)
    again, _ = module(toy)
    run(again, train, val, tmp_path / "parts", budget)
    assert_same_run(again, whole[0], tmp_path, whole[1])


@pytest.mark.parametrize(
    "options",
    [
        {"ema_decay": 0.8, "spec": BATCH_NORM, "epochs": 2, "activation_checkpointing": True},
        {"scheduler": COSINE, "precision": "bf16-mixed"}, {"scheduler": PLATEAU, "ema_decay": 0.5},
        {"accumulate_grad_batches": 3, "ema_decay": 0.5},
        {"optimizer": {"_target_": "torch.optim.SGD", "momentum": 0.9}, "scheduler": CONSTANT, "gradient_clip": None},
        {"callbacks": [EMA], "scheduler": {"_target_": f"{TORCH}.StepLR", "step_size": 2, "interval": "epoch"}},
    ],
    ids=str,
)  # fmt: skip
def test_a_resumed_run_with_any_option_is_the_same_run(toy, tmp_path, monkeypatch, options):
    # Some options do not improve in so few epochs; without an initial loss, the weights of an epoch are kept.
    monkeypatch.setattr(Checkpoints, "on_validation_end", lambda *arguments: None)
    options = {"epochs": 3} | options
    val, (ours, train) = toy(TASK, GRID, 8, seed=5), module(toy, **options)
    run(ours, train, val, tmp_path / "whole")
    steps = -(-4 // ours.options.accumulate_grad_batches) * ours.options.epochs
    # Steps after the last checkpoint are repeated.
    for step, minutes in ((steps - 3, 1e-9), (steps - 2, 10.0)):
        net, _ = module(toy, checkpoint_minutes=minutes, **options)
        with killed_at(step):
            run(net, train, val, tmp_path / "parts")
    again, _ = module(toy, **options)
    run(again, train, val, tmp_path / "parts")
    assert_same_run(again, ours, tmp_path)


def test_a_signal_stops_after_the_step_and_the_run_resumes(whole, toy, tmp_path, monkeypatch):
    val = toy(TASK, GRID, 8, seed=5)
    handlers = [signal.getsignal(each) for each in interruption.SIGNALS]
    with monkeypatch.context() as patch:
        act = before_step(9, lambda self: os.kill(os.getpid(), signal.SIGTERM))
        patch.setattr(CorrectionModule, "training_step", act)
        net, train = module(toy)
        with pytest.raises(InterruptedRunError, match=r"interrupted in epoch 3; run the same command again"):
            run(net, train, val, tmp_path / "parts")
    assert [signal.getsignal(each) for each in interruption.SIGNALS] == handlers
    assert torch.load(tmp_path / "parts/checkpoints/last.ckpt", weights_only=True)["global_step"] == 10
    again, _ = module(toy)
    run(again, train, val, tmp_path / "parts")
    assert_same_run(again, whole[0], tmp_path, whole[1])


def test_a_signal_interrupts_validation(toy, tmp_path, monkeypatch):
    val, seen = toy(TASK, GRID, 8, seed=5), []
    original = CorrectionModule.validation_step

    def validation_step(self, batch, index):
        seen.append(self.global_step)
        if self.global_step == 8:
            os.kill(os.getpid(), signal.SIGINT)
        original(self, batch, index)

    net, train = module(toy, checkpoint_minutes=1e-9)
    net.options = replace(net.options, batch_size=4)
    with monkeypatch.context() as patch:
        patch.setattr(CorrectionModule, "validation_step", validation_step)
        with pytest.raises(InterruptedRunError):
            run(net, train, val, tmp_path / "parts")
    assert seen == [0, 0, 8]


@pytest.mark.parametrize("signals", [[(0, signal.SIGTERM)], [(2, signal.SIGINT)] * 2], ids=["first step", "twice"])
def test_a_signal_in_the_first_step_and_a_second_one_do_not_wait_for_the_step(toy, tmp_path, monkeypatch, signals):
    """The first step may compile for minutes, and there is nothing to save."""

    def signalled(self):
        for _, number in signals:
            os.kill(os.getpid(), number)
            time.sleep(interruption.ONE_SIGNAL)
        raise AssertionError("the step went on")

    monkeypatch.setattr(CorrectionModule, "training_step", before_step(signals[0][0], signalled))
    net, train = module(toy)
    with pytest.raises(InterruptedRunError):
        run(net, train, toy(TASK, GRID, 8), tmp_path)
    assert not (tmp_path / "checkpoints").exists()


def report_losses(monkeypatch, losses):
    """Let validations report `losses` in turn: before training, then after each epoch."""
    remaining = iter(losses)
    monkeypatch.setattr(CorrectionModule, "on_validation_epoch_end", lambda self: self.log("val_loss", next(remaining)))


@pytest.mark.parametrize(
    ("losses", "step", "message"),
    [
        ([9.0, 3.0, 1.0, 2.0], 8, ""),
        ([math.nan, 3.0, 4.0, 1.0], 12, ""),
        ([9.0, 3.0, math.nan], 4, "warning: the validation loss became nan; an earlier epoch is kept"),
        (
            [1.0, 1.5, 1.2, 1.0],
            0,
            "warning: no epoch has a lower validation loss than the initial weights (1, last epoch 1)",
        ),
    ],
)
def test_the_weights_with_the_lowest_validation_loss_are_kept(
    toy, tmp_path, monkeypatch, capsys, losses, step, message
):
    seen, start_batch = {}, CorrectionModule.on_train_batch_start

    def on_train_batch_start(self, batch, batch_idx):
        seen[self.global_step] = {name: tensor.detach().clone() for name, tensor in self.state_dict().items()}
        start_batch(self, batch, batch_idx)

    monkeypatch.setattr(CorrectionModule, "on_train_batch_start", on_train_batch_start)
    report_losses(monkeypatch, losses)
    net, train = module(toy, epochs=len(losses) - 1)
    run(net, train, toy(TASK, GRID, 8, seed=5), tmp_path)
    assert message in (out := capsys.readouterr().out)
    assert bool(message) == ("warning" in out)
    if step:
        assert torch.load(tmp_path / "checkpoints/best.ckpt", weights_only=True)["global_step"] == step
    else:
        assert not (tmp_path / "checkpoints/best.ckpt").exists()
    if step in seen:  # no batch starts with the weights after the last step
        for name, tensor in seen[step].items():
            torch.testing.assert_close(net.state_dict()[name], tensor, rtol=0, atol=0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e16])
def test_a_training_that_diverges_is_refused(toy, tmp_path, monkeypatch, bad):
    report_losses(monkeypatch, [1.0, bad, bad])
    net, train = module(toy, epochs=2)
    with pytest.raises(InputError, match=r"training diverged: the validation loss went from 1 to .*learning_rate"):
        run(net, train, toy(TASK, GRID, 8, seed=5), tmp_path)


@pytest.mark.parametrize("error", [0.0, 1e4])
def test_a_batch_whose_loss_jumps_is_said_with_its_forecasts(toy, tmp_path, capsys, error):
    net, train = module(toy, epochs=1)
    train.samples[5] = train.samples[5]._replace(target=train.samples[5].target + error)
    run(net, train, toy(TASK, GRID, 8, seed=5), tmp_path)
    said = re.findall(r"warning: the loss of one batch .* start between (\S+) and (\S+):", capsys.readouterr().out)
    start = np.datetime64(int(train.samples[5].init_time), "s")
    assert [np.datetime64(first) <= start <= np.datetime64(last) for first, last in said] == [True] * bool(error)


def test_a_finished_run_that_is_started_again_repeats_its_warning(toy, tmp_path, monkeypatch, capsys):
    val = toy(TASK, GRID, 8, seed=5)
    report_losses(monkeypatch, [1.0, 1.5, 1.2, 1.2])  # the last is of the weights with which the second command starts
    for _ in range(2):
        net, train = module(toy, epochs=2)
        run(net, train, val, tmp_path)
        assert "a lower validation loss than the initial weights (1, last epoch 1.2)" in capsys.readouterr().out


def test_validation_without_truth_and_nan_forecasts_are_refused(toy):
    val = toy(TASK, GRID, 8)
    val.samples = [sample._replace(target=torch.full_like(sample.target, math.nan)) for sample in val.samples]
    with pytest.raises(InputError, match="no cell of the validation dates has both an analysis and all members"):
        score_of(module(toy)[0], val)
    net, data = module(toy)
    for parameter in net.corrector.model.parameters():
        torch.nn.init.constant_(parameter, math.nan)
    with pytest.raises(InputError, match="the validation CRPS is nan"):
        score_of(net, data)


def test_the_raw_ensemble_is_validated_where_all_members_are_there(toy):
    """Its forecast is NaN where a member is missing; the score is that of the other cells, by hand."""
    net, data = module(toy, spec={"_target_": "models.statistical.raw.Raw"})
    rows = torch.tensor(GRID.weights).double()[:, None].expand(GRID.shape)
    total = weight = 0.0
    for k, sample in enumerate(data.samples):
        if k % 2:
            sample.mask[0, 1], sample.ensemble[1, 0, 1] = False, math.nan
        members, truth = sample.ensemble[:, 0].double(), sample.target[0].double()
        pairs = (members[:, None] - members[None]).abs().mean((0, 1))
        crps = (members - truth).abs().mean(0) - pairs / 2
        total += float((crps * rows)[sample.mask[0]].sum())
        weight += float(rows[sample.mask[0]].sum())
    scale = float(net.corrector.normalizer.scale[0])
    assert score_of(net, data) == pytest.approx(total / weight / scale, rel=1e-5)


def test_the_average_of_the_weights_is_validated_and_saved(toy, tmp_path, monkeypatch):
    """Against a weighted sum of the weights after each step, including batch normalisation's statistics."""
    # After so few steps of batch normalisation the loss is higher than that of the initial weights.
    monkeypatch.setattr(Checkpoints, "on_validation_end", lambda *arguments: None)
    seen, scored = [], []
    step, end = CorrectionModule.on_train_batch_start, CorrectionModule.on_validation_epoch_end

    def weights(net):
        model = net.corrector.model
        statistics = {k: v for k, v in model.state_dict().items() if "running" in k}
        return {name: tensor.detach().clone() for name, tensor in (dict(model.named_parameters()) | statistics).items()}

    def on_train_batch_start(self, batch, batch_idx):
        seen.append(weights(self))
        step(self, batch, batch_idx)

    def on_validation_epoch_end(self):
        scored.append(weights(self))
        end(self)

    monkeypatch.setattr(CorrectionModule, "on_train_batch_start", on_train_batch_start)
    monkeypatch.setattr(CorrectionModule, "on_validation_epoch_end", on_validation_epoch_end)
    net, train = module(toy, epochs=2, spec=BATCH_NORM, ema_decay=0.3)
    run(net, train, toy(TASK, GRID, 8, seed=5), tmp_path)
    # Validations take place before all steps, after the fourth and after the eighth, the last.
    kept = [min(0.3, (1 + t) / (10 + t)) for t in range(4)]
    for name, found in scored[1].items():
        expected = math.prod(kept) * seen[0][name].double()
        for t in range(4):
            expected += (1 - kept[t]) * math.prod(kept[t + 1 :]) * seen[t + 1][name].double()
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)
    assert any((scored[1][name] != seen[4][name]).any() for name in scored[1])
    best = torch.load(tmp_path / "checkpoints/best.ckpt", weights_only=True)
    assert best["global_step"] in (4, 8)
    for name, tensor in scored[best["global_step"] // 4].items():
        torch.testing.assert_close(net.state_dict()[f"corrector.model.{name}"], tensor, rtol=0, atol=0)
        torch.testing.assert_close(validated_weights(best)[f"corrector.model.{name}"], tensor, rtol=0, atol=0)
    # The validated weights have the reported score.
    rows = [row.split(",") for row in (tmp_path / "metrics.csv").read_text().splitlines()]
    score_now = score_of(net.eval(), toy(TASK, GRID, 8, seed=5))
    assert score_now == pytest.approx(min(float(row[3]) for row in rows[1:]), rel=1e-6)


def test_a_plateau_lowers_the_learning_rate_and_is_in_the_checkpoint_of_its_epoch(toy, tmp_path):
    """A run is killed in the first step of an epoch and resumed from the end of the previous epoch."""
    val = toy(TASK, GRID, 8, seed=5)

    def fast():
        net, train = module(toy, epochs=6, scheduler=PLATEAU, patience=6)
        net.options = replace(net.options, learning_rate=0.3)
        return net, train

    ours, train = fast()
    run(ours, train, val, tmp_path / "whole")
    rows = [[float(x) for x in row.split(",")] for row in (tmp_path / "whole/metrics.csv").read_text().splitlines()[1:]]
    best, rate = math.inf, 0.3
    for _, _, _, score_now, found in rows:
        assert found == pytest.approx(rate, rel=1e-12)
        rate *= 1 if score_now < best else 0.5
        best = min(best, score_now)
    assert len({row[4] for row in rows}) > 2
    with killed_at(4 * 3):
        run(fast()[0], train, val, tmp_path / "parts")
    again, _ = fast()
    run(again, train, val, tmp_path / "parts")
    assert_same_run(again, ours, tmp_path)


@pytest.mark.parametrize("clip", [1e-6, None])
def test_gradients_are_clipped_or_not(toy, tmp_path, monkeypatch, clip):
    norms, original = [], torch.optim.AdamW.step

    def step(self, closure):
        def noting():
            loss = closure()
            gradients = [p.grad.flatten() for group in self.param_groups for p in group["params"]]
            norms.append(float(torch.cat(gradients).norm()))
            return loss

        return original(self, noting)

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    net, train = module(toy, epochs=1, gradient_clip=clip)
    run(net, train, toy(TASK, GRID, 8, seed=5), tmp_path)
    assert len(norms) == 4
    assert all((norm <= 1.001e-6) == (clip is not None) for norm in norms)


def mask_one_cell(data, value):
    """The same samples, with one cell of the target where the members are not all there; `value` is the truth there."""
    found = []
    for sample in data.samples:
        mask, target = sample.mask.clone(), sample.target.clone()
        mask[0, 3, 5], target[0, 3, 5] = False, value
        found.append(sample._replace(mask=mask, target=target))
    data.samples = found
    return data


def test_a_cell_without_all_members_counts_in_no_loss(toy):
    """Its truth does not matter: training and validation use the same cells as evaluation."""
    net, _ = module(toy)
    found = []
    for value in (280.0, 1e6, math.nan):
        data = mask_one_cell(toy(TASK, GRID, 8), value)
        batch = next(iter(torch.utils.data.DataLoader(data, batch_size=8)))
        total, weight = net.weighted_loss(CRPS(), batch)
        found.append(float(total.detach()))
        # Each of the 8 forecasts lacks that one cell.
        assert float(weight) == pytest.approx(8 * float(net.area.sum() - net.area[3, 5]), rel=1e-6)
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("weighting", ["area", "none"])
def test_cells_have_the_weights_of_the_loss(toy, weighting):
    net, data = module(toy)
    batch = next(iter(torch.utils.data.DataLoader(data, batch_size=8)))
    with torch.no_grad():
        each = net.corrector(batch).crps(batch.target) / net.corrector.normalizer.scale[0]
        total, weight = net.weighted_loss(CRPS(weighting=weighting), batch)
    weights = np.cos(np.radians(GRID.latitudes)) if weighting == "area" else np.ones(GRID.shape[0])
    expected = (each.mean((0, 1, 3)).numpy() * weights).sum() / weights.sum()
    # The areas of rows are not exactly cosines, and largest near the poles, which have caps of their own.
    assert float(total / weight) == pytest.approx(expected, rel=0.02 if weighting == "area" else 1e-5)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_missing_accelerator_is_named(toy, tmp_path):
    net, train = module(toy)
    net.options = replace(net.options, accelerator="gpu")
    with pytest.raises(InputError, match=r"trainer\.accelerator=gpu .* is not available here"):
        run(net, train, train, tmp_path)
