"""Micro-batches: a batch that is computed in parts gives the loss and the gradients of the whole batch."""

from unittest.mock import patch

import numpy as np
import pytest
import torch
from ranks import run_on_ranks
from training_parts import SPECS, TASK, assert_same_run, first_step, module, train_run

from data_pipeline.grid import Grid
from models.corrector import build_model
from models.parallel.mesh import Mesh, arrange_mesh
from training import network_training
from training.memory.layer_coupling import find_coupled_layer
from training.step.activation_checkpointing import checkpoint_activations

COUPLED = ("ens10_unet", "deep_weather")
"""Networks with batch normalisation."""
LIKE = ("bqn", "smoe_unet", "transformer_independent")
"""Models with the layers of others."""
TRAINED = [
    name
    for name in SPECS
    if name not in ("backbone", *LIKE)  # the first needs a package
    and any(True for _ in build_model(SPECS[name], TASK, Grid.regular(33, 64)).parameters())
]
"""Models that are trained by gradient descent."""


def one_step(mesh, toy, name, micro_batch, recompute=False, count=17):
    """Loss, sums, and gradients of the first batch, summed over ranks."""
    net, train, val = module(toy, mesh, torch.float64, SPECS[name], count)
    net.train()
    net.micro_batch = micro_batch
    if recompute:
        checkpoint_activations(net.corrector.model)
    found = first_step(net, train, val)
    found["loss"].backward()
    assert all(p.grad is not None for p in net.parameters() if p.requires_grad)
    numbers = [mesh.sum(found["loss"]) / mesh.ranks, found["sums"]]
    numbers += [mesh.sum(p.grad) / mesh.ranks for p in net.parameters() if p.requires_grad]
    return [number.detach().numpy() for number in numbers]


def assert_close(found, expected, name=""):
    for ours, theirs in zip(found, expected, strict=True):
        assert np.abs(ours - theirs).max() <= 1e-12 * np.abs(theirs).max(), name


@pytest.mark.parametrize("name", [name for name in TRAINED if name not in COUPLED])
def test_loss_and_gradients_of_every_model_are_those_of_the_whole_batch(name, toy):
    """Every third forecast lacks truth in some cells, so the micro-batches have unequal weights."""
    assert_close(one_step(Mesh.single(), toy, name, 3), one_step(Mesh.single(), toy, name, None), name)


def test_recomputed_activations_have_the_same_masks_in_micro_batches(toy):
    expected = one_step(Mesh.single(), toy, "unet", None)
    assert_close(one_step(Mesh.single(), toy, "unet", 3, recompute=True), expected)


def steps_on_rank(rank, toy, names):
    meshes = arrange_mesh(2, 1), arrange_mesh(1, 2)
    return [(name, one_step(mesh, toy, name, 2, count=5)) for mesh in meshes for name in names]


def test_gradients_on_a_mesh_are_those_of_one_process(toy):
    """On two data ranks with 3 and 2 forecasts, the first one has two micro-batches, the other has one."""
    alone = {name: one_step(Mesh.single(), toy, name, None, count=5) for name in ("routed", "transformer")}
    for found in run_on_ranks(2, steps_on_rank, toy, list(alone)):
        for name, numbers in found:
            assert_close(numbers, alone[name], name)


# A whole run.

RUN = {"spec": SPECS["routed"], "epochs": 2, "accumulate_grad_batches": 2, "gradient_clip": 0.01, "ema_decay": 0.8}


def run_in_parts(mesh, toy, folder, micro_batch, **options):
    """Train like the verb, with micro-batches of a given size."""
    with patch.object(network_training, "plan_memory", lambda *_: micro_batch):
        return train_run(mesh, toy, folder, **RUN, **options)


def runs_on_rank(rank, toy, folder):
    return run_in_parts(arrange_mesh(2, 1), toy, folder, 2, sharded=True)


def test_a_run_in_micro_batches_equals_a_run_in_whole_batches(toy, tmp_path):
    """The last batch of an epoch has one forecast: one rank has none, and with sharding the same number of parts."""
    expected = run_in_parts(Mesh.single(), toy, tmp_path / "whole", None)
    assert_same_run(run_in_parts(Mesh.single(), toy, tmp_path / "parts", 3), expected)
    for found in run_on_ranks(2, runs_on_rank, toy, tmp_path / "ranks"):
        assert_same_run(found, expected)


# Layers that mix the forecasts of a batch.


def coupled_layer(toy, name):
    net, train, _ = module(toy, Mesh.single(), torch.float32, SPECS[name])
    net.train()
    before = {key: value.clone() for key, value in net.state_dict().items()}
    state = torch.random.get_rng_state()
    found = find_coupled_layer(net, train[0], train[1])
    assert torch.equal(torch.random.get_rng_state(), state)
    for key, value in net.state_dict().items():
        assert torch.equal(value, before[key]), key
    return found


@pytest.mark.parametrize("name", TRAINED)
def test_batch_normalisation_is_found_and_nothing_else(name, toy):
    found = coupled_layer(toy, name)
    assert ("BatchNorm2d" in found) == (name in COUPLED), found
    assert bool(found) == (name in COUPLED), found


def test_pytorchs_own_dropout_is_found(toy):
    net, train, _ = module(toy, Mesh.single(), torch.float32)
    net.train()
    net.corrector.model.add_module("drop", torch.nn.Dropout(0.5))
    forward = net.corrector.model.forward
    net.corrector.model.forward = lambda sample: (net.corrector.model.drop(sample.target), forward(sample))[1]
    assert find_coupled_layer(net, train[0], train[1]) == "drop (Dropout)"
