"""Copies and precision of sharded weights: groups of ranks, gathered bfloat16, parts in single precision."""

import numpy as np
import pytest
import torch
from ranks import run_on_ranks
from specs import SPECS
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from training_parts import GRID, TASK, first_step, module

from data_pipeline.common.errors import InputError
from models.corrector import build_model
from models.parallel.mesh import Mesh, arrange_mesh
from training.run.trainer_options import TrainerOptions
from training.step.mesh_strategy import gather_full, mesh_trainer_flags, shard, shard_precision

NETWORKS = ("mlp", "transformer", "lenet")


def losses(mesh, toy, name, sharded):
    """Loss of a step with bf16-mixed, types of weights during it, and of parts and gradients after it."""
    net, train, val = module(toy, mesh, torch.float32, SPECS[name])
    model, used = net.corrector.model, set()
    if sharded:
        shard(model, "cpu", mesh.ranks, policy=shard_precision("bf16-mixed"))
        for block in model.modules():
            if isinstance(block, FSDPModule):
                block.register_forward_pre_hook(
                    lambda block, _: used.update(weight.dtype for weight in block.parameters())
                )
    net.train()
    with torch.autocast("cpu", torch.bfloat16):
        loss = first_step(net, train, val)["loss"]
    loss.backward()
    parts = [weight for weight in model.parameters() if isinstance(weight, DTensor)]
    kinds = {weight.dtype for weight in parts} | {w.grad.dtype for w in parts if w.grad is not None}
    return float(mesh.sum(loss.detach()) / mesh.ranks), used, kinds


def sharding_keeps_weights():
    """Return whether a network with nested lists of blocks has the same full weights after sharding."""
    model = build_model(SPECS["deep_weather"] | {"bias_width": 1, "bias_depth": 0}, TASK, GRID)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    shard(model, "cpu", 2)
    after = gather_full(model.state_dict())
    return before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


def sharded_losses(rank, toy):
    torch.manual_seed(0)
    assert sharding_keeps_weights()
    return {name: losses(arrange_mesh(2, 1), toy, name, sharded=True) for name in NETWORKS}


def test_weights_are_gathered_in_bfloat16_and_kept_in_single_precision(toy):
    found, _ = run_on_ranks(2, sharded_losses, toy)
    for name, (loss, used, kinds) in found.items():
        assert torch.bfloat16 in used, name
        assert kinds == {torch.float32}, name
        expected, *_ = losses(Mesh.single(), toy, name, sharded=False)
        # The same rounding of most weights; those of norms are rounded only here, to 8 bits.
        np.testing.assert_allclose(loss, expected, rtol=4 * 2.0**-8, err_msg=name)


def parts_of_a_weight(rank):
    """Shape of the own part of a weight of 8 rows, on four ranks, and over which axes it is shared out."""
    model = torch.nn.Linear(3, 8)
    shard(model, "cpu", 4, group=2)
    weight = model.weight
    return tuple(weight.to_local().shape), weight.device_mesh.mesh_dim_names, float(weight.full_tensor().sum())


def test_a_group_of_ranks_holds_the_weights_once():
    found = run_on_ranks(4, parts_of_a_weight)
    assert [(shape, names) for shape, names, _ in found] == 4 * [((4, 3), ("copies", "parts"))]


def test_groups_that_do_not_divide_the_ranks_are_refused():
    options = TrainerOptions(sharded=True, shard_ranks=3)
    with pytest.raises(InputError, match=r"trainer\.shard_ranks=3 must divide the 4 ranks of trainer\.mesh"):
        mesh_trainer_flags(Mesh(data=4), options)
