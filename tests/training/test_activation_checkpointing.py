"""Activation checkpointing: equal numbers bit for bit with less memory, on one rank and on many."""

import numpy as np
import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from training_parts import SPECS, TASK, first_step, module

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from models.corrector import build_model
from models.parallel.mesh import Mesh
from training.step.activation_checkpointing import blocks, checkpoint_activations

LIKE = ("blend_unet", "bqn", "smoe_unet", "transformer_independent")
"""Models with the blocks of others."""
BLOCKS = [
    name
    for name in SPECS
    if name not in LIKE and any(True for _ in blocks(build_model(SPECS[name], TASK, Grid.regular(33, 64))))
]


def one_step(mesh, toy, name, twice):
    """Loss, gradients and buffers after a training step, and the bytes kept for the backward pass."""
    net, train, val = module(toy, mesh, torch.float64, SPECS[name])
    net.train()
    if twice:
        checkpoint_activations(net.corrector.model)
    kept = {}

    def keep(tensor):
        # Views of one memory count once.
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    own = {tensor.untyped_storage().data_ptr() for tensor in net.state_dict().values()}
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = first_step(net, train, val)["loss"]
    loss.backward()
    assert all(getattr(layer, "loss", None) is None for layer in net.corrector.model.modules())
    numbers = [mesh.sum(tensor) / mesh.ranks for tensor in (loss, *(p.grad for p in net.parameters()))]
    numbers += [buffer.double() for name, buffer in net.named_buffers() if "running" in name]
    return [tensor.detach().numpy() for tensor in numbers], sum(n for where, n in kept.items() if where not in own)


@pytest.mark.parametrize("name", BLOCKS)
def test_gradients_and_running_statistics_are_equal_with_less_memory(name, toy):
    (expected, before), (found, after) = (one_step(Mesh.single(), toy, name, twice) for twice in (False, True))
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert after < 0.75 * before, (after, before)


def test_blocks_are_the_outermost_of_a_model_and_one_without_is_refused(toy):
    inner = torch.nn.Linear(1, 1)
    outer = torch.nn.Sequential(torch.nn.ModuleList([inner]), torch.nn.ReLU())
    net = torch.nn.Sequential(torch.nn.ModuleList([outer, torch.nn.ReLU()]), torch.nn.ModuleList([inner]))
    assert list(blocks(net)) == [outer, inner]
    assert {"unet", "ens10_unet", "transformer", "routed"} <= set(BLOCKS)
    net, *_ = module(toy, Mesh.single(), torch.float32, SPECS["mlp"])
    with pytest.raises(
        InputError, match=r"trainer\.activation_checkpointing=true needs a model with blocks, and MLP has none"
    ):
        checkpoint_activations(net.corrector.model)
