"""A compiled network: the same numbers but for rounding; where it cannot be had, a sentence."""

import pytest
import torch
from training_parts import module

from data_pipeline.errors import InputError
from data_pipeline.prefetch.budget import Budget
from models.spatial.mesh import Mesh
from training.data import cached
from training.descent import compile_
from training.schedule import Schedule

NET = {"_target_": "models.mlp.MLP", "width": 8, "depth": 1}
CPU = torch.device("cpu")


def one_step(toy, compiled):
    """Loss and gradients of a training step."""
    net, train, val = module(toy, Mesh.alone(), torch.float32, NET)
    net.train()
    if compiled:
        compile_(net.corrector.model, CPU, Mesh.alone(), sharded=False)
        assert net.corrector.model._compiled_call_impl is not None
    with cached(train, val, Budget(), net.schedule, Mesh.alone()) as data:
        loss = net.training_step(next(iter(data.train_batches)), 0)["loss"]
    loss.backward()
    return [loss.detach(), *(parameter.grad for parameter in net.parameters())]


def test_numbers_are_the_same_but_for_rounding(toy):
    for ours, theirs in zip(one_step(toy, True), one_step(toy, False), strict=True):
        assert float((ours - theirs).abs().max()) <= 1e-5 * float(theirs.abs().max())


def test_no_compiler_is_one_sentence(monkeypatch):
    def broken(function):
        raise RuntimeError("InvalidCxxCompiler: No working C++ compiler found\nand much more")

    monkeypatch.setattr(torch, "compile", broken)
    with pytest.raises(InputError, match=r"compile=true needs .*No working C\+\+ compiler found\); install it"):
        compile_(torch.nn.Linear(1, 1), CPU, Mesh.alone(), sharded=False)


@pytest.mark.parametrize(("mesh", "sharded"), [(Mesh(bands=2), False), (Mesh(data=2), True)], ids=["tiles", "parts"])
def test_where_order_matters_it_is_refused(mesh, sharded):
    with pytest.raises(InputError, match=r"trainer\.compile=true may change the order in which ranks talk"):
        compile_(torch.nn.Linear(1, 1), CPU, mesh, sharded)


def test_what_a_compiler_decides_itself_is_not_asked_for_as_well():
    with pytest.raises(InputError, match=r"trainer\.compile decides by itself what is computed twice"):
        Schedule(compile=True, recompute=True)
