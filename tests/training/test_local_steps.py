"""Local steps equal a simulation by hand, whatever the tiles, and resume exactly."""

import csv
import math
import shutil
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from ranks import run_on_ranks
from torch.utils.data import default_collate
from training_parts import NET, SPECS, killed_at, module

from data_pipeline.common.errors import InputError
from data_pipeline.prefetch.budget import Budget
from data_pipeline.prefetch.order import SampleOrder
from models.parallel.mesh import Mesh, arrange_mesh
from training.network_training import train_network
from training.step.local_steps import LocalSteps
from training.step.training_data import open_training_data

MOMENTUM, RATE, DECAY, EPOCHS = 0.9, 0.01, 0.8, 3
SGD = {
    "optimizer": {"_target_": "torch.optim.SGD", "momentum": MOMENTUM},
    "scheduler": {"_target_": "torch.optim.lr_scheduler.ConstantLR", "factor": 1.0},
    "weight_decay": 0.0, "gradient_clip": None, "ema_decay": DECAY, "epochs": EPOCHS,
}  # fmt: skip
"""A plain optimizer, which the simulation repeats in three lines."""
ADAM = {
    "ema_decay": DECAY, "epochs": EPOCHS, "spec": SPECS["routed"], "local_steps": 2, "synchronous_fraction": 0.4,
}  # fmt: skip
"""With dropout, clipping, AdamW and a network whose gates learn from a term of the loss.

9 steps, 3 in each epoch: 4 synchronous, then local ones; averages after steps 6, 8, 9 (end of an epoch).
"""


def train(mesh, toy, folder, kill_at=None, **options):
    """Train on a rank; return the number of averages, the losses and the numbers of the last checkpoint."""
    averages, original = [], LocalSteps._average_weights
    local = {name: options.pop(name) for name in ("local_steps", "synchronous_fraction")}
    net, train, val = module(toy, mesh, torch.float64, checkpoint_minutes=1e-9, **options)
    net.options = replace(net.options, mesh=[mesh.data, mesh.bands, mesh.sectors, mesh.channels], **local)
    with (
        patch.object(LocalSteps, "_average_weights", lambda self, net: (averages.append(0), original(self, net))),
        open_training_data(train, val, Budget(), net.options, mesh) as data,
        killed_at(kill_at),
    ):
        train_network(net, data, folder)
    return len(averages), losses(folder), numbers(torch.load(folder / "checkpoints/last.ckpt", weights_only=True))


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


def plain_steps_on_rank(rank, data, options, toy, folder):
    return train(arrange_mesh(data, 1), toy, folder, **options)


@pytest.mark.parametrize(
    ("interval", "fraction", "averages"), [(2, 0.4, 3), (5, 0.0, 4)], ids=["in the second epoch", "from the beginning"]
)
def test_local_steps_equal_a_simulation_by_hand(interval, fraction, averages, toy, tmp_path):
    data, spec = 2, NET | {"dropout": 0.0}
    options = SGD | {"spec": spec, "local_steps": interval, "synchronous_fraction": fraction}
    found = run_on_ranks(data, plain_steps_on_rank, data, options, toy, tmp_path)
    expected_losses, expected = simulate(toy, data, interval, fraction, spec)
    assert [count for count, _, _ in found] == [averages] * data
    assert [row[0] for row in found[0][1]] == pytest.approx(expected_losses, rel=1e-12)
    assert_close({name: found[0][2][name] for name in expected}, expected, 1e-10)
    # All ranks validate the same weights at the end of an epoch.
    states = torch.load(tmp_path / "checkpoints/last.ckpt", weights_only=True)["local_steps"]
    for key in ("state_dict", "averages"):
        for name, value in states[0][key].items():
            assert all(torch.equal(state[key][name], value) for state in states[1:]), name


def on_two_ranks(rank, toy, folder):
    """A whole run; one that is killed between two averages, and after an average in the next epoch."""
    with pytest.raises(InputError, match=r"trainer\.local_steps needs data ranks that do not depend"):
        train(arrange_mesh(2, 1), toy, folder / "refused", **ADAM | {"spec": SPECS["ens10_unet"]})
    mesh = arrange_mesh(2, 1)
    for step in (5, 8):
        train(mesh, toy, folder / "parts", step, **ADAM)
        if rank == 0 and step == 5:
            for copy in ("tiles", "four"):
                shutil.copytree(folder / "parts", folder / copy)
    return train(mesh, toy, folder / "whole", **ADAM), train(mesh, toy, folder / "parts", **ADAM)


def on_four_ranks(rank, toy, folder):
    """The rest of the run on 2 data ranks with 2 tiles each, then with divided channels; and on 4 data ranks."""
    train(arrange_mesh(2, 2), toy, folder / "tiles", 8, **ADAM)
    return train(arrange_mesh(2, 1, 1, 2), toy, folder / "tiles", **ADAM), train(
        arrange_mesh(4, 1), toy, folder / "four", **ADAM
    )


def test_local_steps_resume_exactly_on_any_mesh(toy, tmp_path):
    for whole, parts in run_on_ranks(2, on_two_ranks, toy, tmp_path):
        assert parts[1] == whole[1]
        assert_close(parts[2], whole[2], 0.0)
    # Other data ranks begin at the mean.
    kept = torch.load(tmp_path / "four/checkpoints/last.ckpt", weights_only=True)
    first, second = (state["state_dict"] for state in kept["local_steps"])
    for name, weight in kept["state_dict"].items():
        torch.testing.assert_close(weight, (first[name] + second[name]) / 2)
    assert any(not torch.equal(first[name], second[name]) for name in kept["state_dict"])
    for (_, rows, state), (_, others, _) in run_on_ranks(4, on_four_ranks, toy, tmp_path):
        np.testing.assert_allclose(rows, whole[1], rtol=1e-10)
        assert_close(state, whole[2], 1e-9)
        assert len(others) == EPOCHS
