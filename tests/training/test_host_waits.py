"""No training step makes the host wait for its device, and training on another device gives the numbers of the CPU.

The device is the stand-in of `tests/standin_device.py`, which counts what would make the host wait for a GPU, also what
PyTorch does inside C++ and no dispatch mode sees: a list as an index, a number from Python. The test of whole runs
counts in the real loop of Lightning, with clipping, moving average, schedule, logger, history and checkpoints.
"""

from unittest.mock import patch

import numpy as np
import pytest
import pytorch_lightning as pl
import standin_device
import torch
from pytorch_lightning.accelerators import CPUAccelerator
from pytorch_lightning.strategies import SingleDeviceStrategy
from ranks import run_on_ranks
from specs import SPECS
from torch.utils.data import default_collate
from training_parts import GRID, NET, module

from data_pipeline.prefetch.budget import Budget
from data_pipeline.sample import Sample
from data_pipeline.statistics.efi import CLIMATE_PROBABILITIES
from data_pipeline.task import Task
from models.corrector import build_model
from models.parallel import quantile
from models.parallel.mesh import Mesh
from training import network_training
from training.network_training import train_network
from training.optimization.eecrps import WeightedByIndex
from training.optimization.loss import CRPS, EnergyScore, SeparateMeanAndSpread, SquaredError, ThresholdWeightedCRPS
from training.step.batch_loss import validation_crps
from training.step.training_data import open_training_data

TASK = Task("toy", ["2t", "msl", "sst"], ["2t"], [48])
"""With an input at sea only, as in the default task."""
MORE = {
    "gamma": SPECS["mlp"] | {"head": "censored_shifted_gamma"},
    "embedded": SPECS["transformer"] | {"cell_embedding": 2},
    "routed": SPECS["unet"] | {"mixture": {"gate": "computed", "routing_quantile": 0.3}},
    "on emos": SPECS["mlp"] | {"baseline": {"shared": False}},
    "members": SPECS["transformer"] | {"head": "members"},
    "chosen": SPECS["unet"] | {"mixture": {"gate": "latent"}},
    "rough": SPECS["deep_weather"] | {"smoothness_penalty": 0.5},
    "dropout": NET,
}
LIKE = ("smoe_unet", "transformer", "transformer_independent", "unet")
"""Networks whose layers are those of others, here with more options."""
LOSSES = {
    "squared error": ("mlp", SquaredError()), "mean and spread": ("mlp", SeparateMeanAndSpread()),
    "energy": ("members", EnergyScore()), "fair": ("members", CRPS(fair=0.95)),
    "threshold": ("mlp", ThresholdWeightedCRPS(280.0)), "index": ("mlp", None),
}  # fmt: skip


class AnyDevice(CPUAccelerator):
    """Lightning's accelerator of the stand-in."""

    def setup_device(self, device):
        pass


class StandInTrainer(pl.Trainer):
    """Lightning's Trainer on the stand-in."""

    def __init__(self, **flags):
        strategy = SingleDeviceStrategy(device=torch.device(standin_device.NAME, 0))
        super().__init__(**flags | {"accelerator": AnyDevice(), "strategy": strategy})


class CountWaits(pl.Callback):
    """Counts from the second to the last step of the first epoch, and so all that happens between steps."""

    first, last = 1, 3

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.current_epoch == 0 and batch_idx == self.first:
            self.before = standin_device.found.copy()
            standin_device.places.clear()
        if trainer.current_epoch == 0 and batch_idx == self.last:
            self.found, self.places = standin_device.found - self.before, dict(standin_device.places)


def train(toy, folder, **options):
    """Weights, validation CRPS and device of a run of two epochs, and what made the host wait in two of its steps."""
    counter = CountWaits()
    net, train, val = module(toy, Mesh.single(), torch.float32, NET, count=40, of=TASK, epochs=2, **options)
    make = network_training.make_trainer

    def with_counter(*arguments):
        trainer = make(*arguments)
        trainer.callbacks.insert(0, counter)
        return trainer

    with (
        patch.object(network_training, "make_trainer", with_counter),
        open_training_data(train, val, Budget(), net.options, net.mesh) as data,
    ):
        device = train_network(net, data, folder)
        score = validation_crps(net, data.val_batches, device)[0]
    weights = {name: value.cpu().numpy() for name, value in net.state_dict().items()}
    return weights, score, str(device), dict(counter.found), counter.places


OPTIONS = {"ema_decay": 0.9, "gradient_clip": 0.1, "weight_decay": 0.01, "checkpoint_minutes": 100.0}


def on_standin(rank, toy, folder):
    """A run in Lightning, and single steps."""
    standin_device.install()
    with patch.object(pl, "Trainer", StandInTrainer):
        trained = train(toy, folder, **OPTIONS)
    return trained, steps_on_standin(toy), quantiles_on_standin(), reads_on_standin()


@pytest.fixture(scope="module")
def standin(toy, tmp_path_factory):
    return run_on_ranks(1, on_standin, toy, tmp_path_factory.mktemp("standin"), fresh=True)[0]


def test_a_step_in_lightning_never_waits_and_gives_the_numbers_of_the_cpu(standin, toy, tmp_path):
    weights, score, device, waits, places = standin[0]
    assert device == "standin:0"
    assert waits == {}, places
    expected, expected_score, *_ = train(toy, tmp_path, **OPTIONS)
    # Only on CPUs do layers have their channels last in memory, which gives sums another order.
    assert score == pytest.approx(expected_score, rel=1e-5)
    for name, value in expected.items():
        np.testing.assert_allclose(weights[name], value, rtol=0, atol=1e-5 * abs(value).max(), err_msg=name)


def steps_on_standin(toy):
    """What makes the host wait in the second step of every model, and in one with each loss."""
    specs, found = SPECS | MORE, {}
    climate = torch.rand(1, 1, len(CLIMATE_PROBABILITIES), 1, *GRID.shape)
    trained = [
        name
        for name, spec in specs.items()
        if name not in LIKE and any(weight.requires_grad for weight in build_model(spec, TASK, GRID).parameters())
    ]
    cases = {name: (name, CRPS()) for name in trained} | LOSSES
    for name, (spec, loss) in cases.items():
        net, train, _ = module(toy, Mesh.single(), torch.float32, specs[spec], of=TASK)
        net.loss = loss or WeightedByIndex(climate, (252,), TASK)
        net.train().to(standin_device.NAME)
        batch = Sample(*(tensor.to(standin_device.NAME) for tensor in default_collate([train[k] for k in range(3)])))
        for _ in range(2):
            standin_device.places.clear()
            with standin_device.waits() as counted:
                net.training_step(batch, 0)["loss"].backward()
        found[name] = dict(counted), dict(standin_device.places)
    return found


def quantiles_on_standin():
    """Quantiles over tiles, as a rank of several computes them; what makes the host wait, and the error."""
    x = torch.rand(3, 4 * 13 * 20, generator=torch.Generator().manual_seed(0)) ** 4
    with patch.object(quantile, "sum_over", lambda group, x: x), standin_device.waits() as counted:
        found = quantile._quantile._init_fn(x.to(standin_device.NAME, non_blocking=True), 0.77, x.shape[1], "a group")
    return dict(counted), float((found.cpu() - x.quantile(0.77, dim=1)).abs().max())


def reads_on_standin():
    """The number of waits of calls that wait, by name, and what waits in calls that do not."""
    x = torch.rand(5).to(standin_device.NAME)
    found = {}
    for name, wait in {
        "item": lambda: x.sum().item(), "bool": lambda: bool((x > 0).all()), "mask": lambda: x[x > 0],
        "list": lambda: x[[0, 2]], "number": lambda: torch.tensor(1.5, device=standin_device.NAME),
        "copy": lambda: torch.ones(3).to(standin_device.NAME), "back": lambda: x.cpu(), "numbers": lambda: x.tolist(),
        "entry": lambda: x.__setitem__(0, 1.5),
        "sizes": lambda: x.nonzero(), "text": lambda: f"{x[0]:.3f}",
    }.items():  # fmt: skip
        with standin_device.waits() as counted:
            wait()
        found[name] = sum(counted.values())
    with standin_device.waits() as counted:
        (
            torch.ones(3).to(standin_device.NAME, non_blocking=True)
            + x[:3] * 2.5
            + torch.zeros(3, device=standin_device.NAME).fill_(7.0)
        )
    with pytest.raises(RuntimeError, match="tensors of standin and of the CPU"):
        x + torch.ones(5)
    return found, dict(counted)


def test_no_step_of_any_model_or_loss_waits(standin):
    _, found, (waits, error), (reads, free) = standin
    assert all(reads.values()), reads
    assert free == {}
    assert {name: places for name, (waits, places) in found.items() if waits} == {}
    assert len(found) > len(LOSSES) + len(MORE)
    assert waits == {}, "quantiles"
    assert error < 1e-6
