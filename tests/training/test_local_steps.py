"""Local steps equal a simulation by hand, whatever the tiles, and resume exactly."""

import csv
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from ranks import run_on_ranks
from torch.utils.data import default_collate
from training_parts import NET, SPECS, module

from data_pipeline.common.errors import InputError
from data_pipeline.prefetch.budget import Budget
from data_pipeline.prefetch.order import SampleOrder
from models.parallel.mesh import Mesh, arrange_mesh
from training.correction_module import CorrectionModule
from training.datamodule import open_training_data
from training.local_steps import LocalSteps
from training.network_training import train_network
from training.trainer_options import TrainerOptions

MOMENTUM, RATE, DECAY, EPOCHS = 0.9, 0.01, 0.8, 4
SGD = {
    "optimizer": {"_target_": "torch.optim.SGD", "momentum": MOMENTUM},
    "scheduler": {"_target_": "torch.optim.lr_scheduler.ConstantLR", "factor": 1.0},
    "weight_decay": 0.0, "gradient_clip": None, "ema_decay": DECAY, "epochs": EPOCHS,
}  # fmt: skip
"""A plain optimizer, which the simulation repeats in three lines."""
ADAM = {"ema_decay": DECAY, "epochs": EPOCHS, "spec": SPECS["routed"]}
"""With dropout, clipping, AdamW and a network whose gates learn from a term of the loss."""
LOCAL = {"local_steps": 2, "synchronous_fraction": 0.3}
"""12 steps, 3 in each epoch: 4 synchronous, then local ones; averages after steps 6, 8, 9 (end of an epoch), 10, 12."""


def train(rank, shape, toy, folder, options, killed_at=None):
    """Train on a rank; return its sums of bytes, the losses and the last checkpoint."""
    torch.set_num_threads(1)
    mesh = arrange_mesh(*shape)
    if killed_at is not None:
        kill(killed_at)
    averages = []
    original = LocalSteps._average_weights
    LocalSteps._average_weights = lambda self, net: (averages.append(0), original(self, net))
    local = {name: options[name] for name in ("local_steps", "synchronous_fraction") if name in options}
    options = {name: value for name, value in options.items() if name not in local}
    net, train, val = module(toy, mesh, torch.float64, **options)
    net.options = replace(net.options, mesh=list(shape), **local)
    with open_training_data(train, val, Budget(), net.options, mesh) as data:
        try:
            train_network(net, data, folder)
        except KilledError:
            return None
    return len(averages), losses(folder), numbers(torch.load(folder / "checkpoints/last.ckpt", weights_only=True))


class KilledError(Exception):
    """Simulates a killed process."""


def kill(step):
    """Make the module of this process end before a step."""
    original = CorrectionModule.on_train_batch_start

    def start(self, batch, batch_idx):
        if self.global_step == step:
            raise KilledError
        original(self, batch, batch_idx)

    CorrectionModule.on_train_batch_start = start


def losses(folder):
    with (folder / "metrics.csv").open() as file:
        return [(float(row["train_loss"]), float(row["val_loss"])) for row in csv.DictReader(file)]


def numbers(checkpoint):
    """The weights, their averages and the optimizer's state, as arrays."""
    optimizer = checkpoint["optimizer_states"][0]["state"]
    return {
        **{name: value.numpy() for name, value in checkpoint["state_dict"].items()},
        **{f"average of {name}": value.numpy() for name, value in checkpoint["callbacks"]["WeightAverage"].items()},
        **{f"{key} {number}": value.numpy() for number, state in optimizer.items() for key, value in state.items()
           if value is not None},
    }  # fmt: skip


def on_mesh(shape, toy, folder, **options):
    return run_on_ranks(math.prod(shape), train, shape, toy, folder, options)


def assert_close(found, expected, tolerance):
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert np.abs(found[name] - values).max() <= tolerance * max(np.abs(values).max(), 1e-3), name


def simulate(toy, data, interval, fraction, spec):
    """Train `data` copies of a network in turn, without ranks; return the losses and the weights."""
    nets = [module(toy, Mesh.single(), torch.float64, spec)[0] for _ in range(data)]
    train = module(toy, Mesh.single(), torch.float64, spec)[1]
    order = SampleOrder(len(train), 8, EPOCHS, 0, data)
    batches = [order.batch_indices(rank) for rank in range(data)]
    weights = [[*net.parameters()] for net in nets]
    velocities = [[torch.zeros_like(weight) for weight in own] for own in weights]
    averages = [[weight.detach().clone() for weight in own] for own in weights]
    first, step, found = math.ceil(fraction * EPOCHS * 3), 0, []
    for _ in range(EPOCHS):
        total = torch.zeros(2, dtype=torch.float64)
        for batch in range(3):
            shares = [next(own) for own in batches]
            local = step >= first
            groups = shares if local else [[index for share in shares for index in share]] * data
            for number, (net, group) in enumerate(zip(nets, groups, strict=True)):
                net.zero_grad()
                if len(group):
                    result = net.training_step(default_collate([train[i] for i in group]), 0)
                    result["loss"].backward()
                    total += result["sums"] / (1 if local else data)
                for weight, velocity in zip(weights[number], velocities[number], strict=True):
                    velocity.mul_(MOMENTUM).add_(0.0 if weight.grad is None else weight.grad)
                    weight.data -= RATE * velocity
            step += 1
            if local and ((step - first) % interval == 0 or batch == 2):
                for same in zip(*weights, strict=True):
                    mean = torch.stack([weight.data for weight in same]).mean(0)
                    for weight in same:
                        weight.data.copy_(mean)
            kept = min(DECAY, step / (9 + step))
            for own, means in zip(weights, averages, strict=True):
                for weight, mean in zip(own, means, strict=True):
                    mean.copy_(kept * mean + (1 - kept) * weight.data)
        found.append(float(total[0] / total[1]))
    names = [f"{name}" for name, _ in nets[0].named_parameters()]
    mean = [torch.stack(same).mean(0) for same in zip(*averages, strict=True)]
    return found, {
        **{name: weight.detach().numpy() for name, weight in zip(names, weights[0], strict=True)},
        **{f"average of {name}": value.numpy() for name, value in zip(names, mean, strict=True)},
    }


@pytest.mark.parametrize(
    ("data", "interval", "fraction", "averages"),
    [(2, 2, 0.3, 5), (2, 5, 0.0, 6), (3, 2, 0.5, 4)],
    ids=["in the second epoch", "from the beginning", "three data ranks"],
)
def test_local_steps_equal_a_simulation_by_hand(data, interval, fraction, averages, toy, tmp_path):
    spec = NET | {"dropout": 0.0}
    options = SGD | {"spec": spec, "local_steps": interval, "synchronous_fraction": fraction}
    found = on_mesh((data, 1, 1), toy, tmp_path, **options)
    expected_losses, expected = simulate(toy, data, interval, fraction, spec)
    assert [count for count, _, _ in found] == [averages] * data
    assert [row[0] for row in found[0][1]] == pytest.approx(expected_losses, rel=1e-12)
    assert_close({name: found[0][2][name] for name in expected}, expected, 1e-10)
    # All ranks validate the same weights at the end of an epoch.
    states = torch.load(tmp_path / "checkpoints/last.ckpt", weights_only=True)["local_steps"]
    for key in ("state_dict", "averages"):
        for name, value in states[0][key].items():
            assert all(torch.equal(state[key][name], value) for state in states[1:]), name


@pytest.fixture(scope="module")
def whole(toy, tmp_path_factory):
    """An uninterrupted run on 2 data ranks with 2 tiles each."""
    return on_mesh((2, 2, 1), toy, tmp_path_factory.mktemp("whole"), **ADAM, **LOCAL)


def test_tiles_and_channels_do_not_change_local_steps(whole, toy, tmp_path):
    ((_, expected, weights), _) = on_mesh((2, 1, 1), toy, tmp_path / "whole fields", **ADAM, **LOCAL)
    for _, rows, state in [*whole, *on_mesh((2, 1, 1, 2), toy, tmp_path / "channels", **ADAM, **LOCAL)]:
        np.testing.assert_allclose(rows, expected, rtol=1e-10)
        assert_close(state, weights, 1e-9)


@pytest.mark.parametrize("after", [7, 10], ids=["between two averages", "after an average and in the next epoch"])
def test_local_steps_resume_exactly(after, whole, toy, tmp_path):
    killed = ADAM | LOCAL | {"checkpoint_minutes": 1e-9}
    run_on_ranks(4, train, (2, 2, 1), toy, tmp_path, killed, after)
    resumed = on_mesh((2, 2, 1), toy, tmp_path, **ADAM, **LOCAL)
    assert resumed[0][1] == whole[0][1]
    assert_close(resumed[0][2], whole[0][2], 0.0)


def test_local_steps_resume_on_another_number_of_data_ranks(toy, tmp_path):
    options = ADAM | LOCAL | {"checkpoint_minutes": 1e-9}
    run_on_ranks(2, train, (2, 1, 1), toy, tmp_path, options, 7)
    kept = torch.load(tmp_path / "checkpoints/last.ckpt", weights_only=True)
    states = kept["local_steps"]
    assert len(states) == 2
    for name, weight in kept["state_dict"].items():
        first, second = (state["state_dict"][name] for state in states)
        torch.testing.assert_close(weight, (first + second) / 2)
    assert any(
        not torch.equal(states[0]["state_dict"][name], states[1]["state_dict"][name]) for name in kept["state_dict"]
    )
    found = on_mesh((3, 1, 1), toy, tmp_path, **ADAM, **LOCAL)
    assert len(found[0][1]) == EPOCHS


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"local_steps": 0}, "trainer.local_steps must be"),
        ({"synchronous_fraction": 0.5}, "trainer.synchronous_fraction is the part of a run before its local steps"),
        ({"local_steps": 4}, r"trainer.mesh=\[1, 1\] has one"),
        ({"local_steps": 4, "mesh": [2, 1], "sharded": True}, "trainer.local_steps and trainer.sharded exclude"),
        ({"local_steps": 4, "mesh": [2, 1], "compression": "fp16"}, "trainer.local_steps and trainer.compression excl"),
        ({"local_steps": 4, "mesh": [2, 1], "synchronous_fraction": 2}, "trainer.synchronous_fraction"),
    ],
    ids=lambda value: "" if isinstance(value, str) else str(value),
)
def test_options_that_do_not_fit_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        TrainerOptions(**options)


def test_batch_normalisation_is_refused(toy, tmp_path):
    with pytest.raises(AssertionError, match=r"InputError: trainer\.local_steps needs data ranks that do not depend"):
        on_mesh((2, 1, 1), toy, tmp_path, **ADAM | LOCAL | {"spec": SPECS["ens10_unet"]})
