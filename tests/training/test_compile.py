"""A compiled network: one graph, equal numbers up to rounding; an error where it cannot be compiled."""

import copy

import pytest
import torch
from model_tiles import cast
from specs import SPECS
from training_parts import first_step, module

from data_pipeline.common.errors import InputError
from data_pipeline.dataset import batches
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from models.corrector import build_model, needed_task
from models.layers.dropout import masks_for
from models.layers.loss_term import loss_terms
from models.parallel.mesh import Mesh
from training.network_training import compile_model

LENET = {"_target_": "models.published.lenet.LeNet", "width": 2, "hidden": 4, "dropout": 0.2}
CPU = torch.device("cpu")
TASK = Task("toy", ["sst", "2t", "10u"], ["2t"], [24, 48], ["lsm"])
GRID = Grid.regular(9, 12)
SMALL = {"width": 4, "depth": 1, "dropout": 0.2, "hidden": 8}
MORE = {
    "routed": SPECS["unet"] | {"mixture": {"gate": "latent", "routing_quantile": 0.3}},
    "chosen": SPECS["unet"] | {"mixture": {"gate": "computed"}},
    "rough": SPECS["deep_weather"] | {"smoothness_penalty": 0.5},
    "mlp from emos": SPECS["mlp"] | {"baseline": {}},
}
LIKE = ("smoe_unet", "transformer", "unet")
"""Networks that are in `MORE` with options."""
ALL = {
    name: spec | {key: SMALL[key] for key in SMALL if key in spec}
    for name, spec in (SPECS | MORE).items()
    if name not in LIKE and any(True for _ in build_model(spec, needed_task(spec, TASK), GRID).parameters())
}


def one_step(toy, compiled):
    """Loss and gradients of a training step."""
    net, train, val = module(toy, Mesh.single(), torch.float32, LENET)
    net.train()
    if compiled:
        compile_model(net.corrector.model, CPU, Mesh.single(), sharded=False)
        assert net.corrector.model._compiled_call_impl is not None
    loss = first_step(net, train, val)["loss"]
    loss.backward()
    return [loss.detach(), *(parameter.grad for parameter in net.parameters())]


@pytest.mark.long
def test_a_compiled_step_is_equal_up_to_rounding(toy):
    ours, theirs = (one_step(toy, compiled) for compiled in (True, False))
    assert float((ours[0] - theirs[0]).abs()) <= 1e-5 * float(theirs[0])
    largest = max(float(gradient.abs().max()) for gradient in theirs[1:])
    assert max(float((a - b).abs().max()) for a, b in zip(ours[1:], theirs[1:], strict=True)) <= 1e-5 * largest


def passes(model, forward, sample):
    """Mean, spread, loss and gradients of a training pass, always with the same dropout masks."""
    torch.manual_seed(1)
    with masks_for(sample):
        found = forward(sample)
    loss = found.crps(sample.target).mean() + loss_terms(model) / len(sample.target)
    gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    numbers = [found.mean.detach(), found.std.detach(), loss.detach(), *gradients]
    return [torch.zeros(()) if number is None else number for number in numbers]


@pytest.mark.parametrize(
    "name", [name if name in ("mlp", "routed") else pytest.param(name, marks=pytest.mark.long) for name in ALL]
)
def test_every_network_is_compiled_as_one_graph(name, toy):
    """No graph break and equal numbers, in training with dropout, also for a smaller last batch."""
    task = needed_task(ALL[name], TASK)
    torch.manual_seed(0)
    model = build_model(ALL[name], task, GRID).double().train()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    torch._dynamo.reset()
    compiled = torch.compile(model.forward, fullgraph=True, backend="eager")
    data = toy(task, GRID, 4, 3)
    for count in (4, 3) if name == "mlp" else (4,):
        sample = cast(next(iter(batches(data, count))), torch.float64)
        sample = sample._replace(ensemble=(sample.ensemble - 280) / 10, target=(sample.target - 280) / 10)
        before = copy.deepcopy(model.state_dict())
        expected = passes(model, model, sample)
        model.load_state_dict(before)
        for ours, theirs in zip(passes(model, compiled, sample), expected, strict=True):
            assert float((ours - theirs).abs().max()) <= 1e-11 * max(float(theirs.abs().max()), 1e-3)


def test_a_missing_compiler_is_one_error_line(monkeypatch):
    def broken(function):
        raise RuntimeError("InvalidCxxCompiler: No working C++ compiler found\nand much more")

    monkeypatch.setattr(torch, "compile", broken)
    with pytest.raises(InputError, match=r"compile=true needs .*No working C\+\+ compiler found\); install it"):
        compile_model(torch.nn.Linear(1, 1), CPU, Mesh.single(), sharded=False)


def test_what_cannot_be_compiled_is_refused():
    for options, message in (
        ({"mesh": Mesh(bands=2)}, r"trainer\.compile=true may change the order of messages"),
        ({"mesh": Mesh(data=2), "sharded": True}, r"trainer\.compile=true may change the order of messages"),
    ):
        with pytest.raises(InputError, match=message):
            compile_model(torch.nn.Linear(1, 1), CPU, **{"mesh": Mesh.single(), "sharded": False} | options)
