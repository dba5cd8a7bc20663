"""Training steps on toy data: it learns what there is to learn, and a resumed run is the same run."""

import signal
from dataclasses import replace

import pytest
import torch

from data_pipeline.errors import InputError, InterruptedRunError
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from models.corrector import Corrector
from models.distribution import Normal
from training.module import CorrectionModule, ShuffledByEpoch, weighted_crps
from training.schedule import Schedule
from training.train import descend, score

TASK = Task("toy", ["2t", "msl"], ["2t"], [48])
GRID = Grid.regular(9, 12)
MLP = {"_target_": "models.mlp.MLP", "width": 16, "depth": 1, "dropout": 0.1}


def module(toy, epochs=6, **options):
    torch.manual_seed(0)
    data = toy(TASK, GRID, 32)
    corrector = Corrector(TASK, GRID, MLP, data.static)
    corrector.fit(data)
    schedule = Schedule(epochs=epochs, batch_size=8, learning_rate=2e-2, accelerator="cpu", **options)
    return CorrectionModule(corrector, schedule), data


def test_training_finds_the_bias_and_the_spread(toy, tmp_path):
    """The toy truth is N(ensemble signal - 1 - sin(latitude), 1), the raw ensemble has spread 0.5 and no bias."""
    net, train = module(toy, epochs=20)
    val = toy(TASK, GRID, 16, seed=5)
    raw = score(net, val)
    descend(net, train, val, tmp_path)
    trained = score(net.eval(), val)
    # CRPS of the perfect forecast N(m, sqrt(1 + .5²/5)) is σ/√π; 5 members tell the signal only so well.
    best = (1 + 0.05) ** 0.5 / torch.pi**0.5 / float(net.corrector.normalizer.scale[0])
    assert raw > 1.3 * best
    assert trained == pytest.approx(best, rel=0.08)
    rows = (tmp_path / "metrics.csv").read_text().splitlines()
    assert rows[0] == "epoch,step,train_crps,val_crps,learning_rate"
    assert list((tmp_path / "tensorboard").glob("events.*"))


def test_a_resumed_run_is_the_same_run(toy, tmp_path, monkeypatch):
    whole, train = module(toy)
    val = toy(TASK, GRID, 8, seed=5)
    descend(whole, train, val, tmp_path / "whole")

    class PulledError(Exception):
        """The plug, pulled in the fourth epoch."""

    def pull(self):
        if self.current_epoch == 3:
            raise PulledError

    with monkeypatch.context() as patch:
        patch.setattr(CorrectionModule, "on_train_epoch_start", pull)
        with pytest.raises(PulledError):
            descend(module(toy)[0], train, val, tmp_path / "halves")
    again, _ = module(toy)
    descend(again, train, val, tmp_path / "halves")
    for name, tensor in whole.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], tensor, rtol=0, atol=0)
    assert (tmp_path / "halves/metrics.csv").read_text() == (tmp_path / "whole/metrics.csv").read_text()


def test_an_interrupt_is_resumable(toy, tmp_path, monkeypatch):
    net, train = module(toy)

    def interrupt(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(CorrectionModule, "on_train_epoch_start", interrupt)
    handler = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(InterruptedRunError, match="run the same command again"):
            descend(net, train, toy(TASK, GRID, 8), tmp_path)
    finally:
        signal.signal(signal.SIGINT, handler)


def test_unknown_truth_has_no_weight_and_leaves_the_gradient_alone():
    truth = torch.tensor([[[[1.0, float("nan")], [3.0, 4.0]]]])
    area = torch.tensor([[0.5, 0.5], [1.5, 1.5]])
    mu = torch.zeros(1, 1, 2, 2, requires_grad=True)
    loss = weighted_crps(Normal(mu, torch.ones(1, 1, 2, 2)), truth, area)
    loss.backward()
    each = Normal(torch.zeros(3), torch.ones(3)).crps(torch.tensor([1.0, 3.0, 4.0]))
    assert float(loss.detach()) == pytest.approx(float((each * torch.tensor([0.5, 1.5, 1.5])).sum() / 3.5))
    assert mu.grad[0, 0, 0, 1] == 0
    assert torch.isfinite(mu.grad).all()


def test_every_epoch_sees_every_sample_in_another_order():
    sampler = ShuffledByEpoch(50, seed=3)
    first = list(sampler)
    sampler.set_epoch(1)
    second = list(sampler)
    assert sorted(first) == sorted(second) == list(range(50))
    assert first != second


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
        descend(net, train, train, tmp_path)


def test_bfloat16_learns_nearly_as_well(toy, tmp_path):
    val = toy(TASK, GRID, 16, seed=5)
    found = {}
    for precision in ("32-true", "bf16-mixed"):
        net, train = module(toy, epochs=8, precision=precision)
        descend(net, train, val, tmp_path / precision)
        found[precision] = score(net.eval(), val)
    assert found["bf16-mixed"] != found["32-true"]
    assert found["bf16-mixed"] == pytest.approx(found["32-true"], rel=0.03)
