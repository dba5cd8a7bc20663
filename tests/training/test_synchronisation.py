"""A training step reads nothing back from its device, because the host would wait for a GPU.

The step is taken on the device `meta`, whose tensors have a shape and no values. So `item`, `tolist`, `float`, `bool`,
`nonzero`, a boolean index, `numpy` and `cpu` all fail, and a copy between devices is counted.
"""

import inspect

import numpy as np
import pytest
import torch
from specs import SPECS
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import default_collate
from training_parts import GRID, TASK, module
from training_parts import SPECS as MORE_SPECS

from data_pipeline.sample import Sample
from data_pipeline.statistics.efi import CLIMATE_PROBABILITIES
from models.corrector import build_model
from models.parallel.mesh import Mesh
from training.eecrps import WeightedByIndex
from training.history import LossHistory
from training.loss import CRPS, EnergyScore, SeparateMeanAndSpread, SquaredError, ThresholdWeightedCRPS
from training.weight_average import WeightAverage

META = torch.device("meta")
EMBEDDED = {
    f"{name}, embedded": spec | {"cell_embedding": 2}
    for name, spec in SPECS.items()
    if "cell_embedding" in inspect.signature(type(build_model(spec, TASK, GRID))).parameters
}
TRAINED = {
    name: spec
    for name, spec in (MORE_SPECS | EMBEDDED).items()
    if any(parameter.requires_grad for parameter in build_model(spec, TASK, GRID).parameters())
}


class Copies(TorchDispatchMode):
    """Records copies from one device to another."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        name = str(function)
        if name.startswith(("aten._to_copy", "aten.copy_")):
            devices = {tensor.device.type for tensor in (*args, out) if isinstance(tensor, torch.Tensor)}
            if len(devices) > 1:
                self.found.append((name, devices))
        return out


def one_step(toy, spec, loss=None):
    """Run one step on the device `meta`; return its result and the copies."""
    net, train, _ = module(toy, Mesh.single(), torch.float32, spec)
    net.loss = loss or CRPS()
    net.train().to(META)
    batch = Sample(*(tensor.to(META) for tensor in default_collate([train[k] for k in range(3)])))
    with Copies() as copies:
        step = net.training_step(batch, 0)
        step["loss"].backward()
    assert step["loss"].device == META
    assert all(parameter.grad.device == META for parameter in net.parameters() if parameter.grad is not None)
    return net, step, batch, copies.found


@pytest.mark.parametrize("name", TRAINED)
def test_a_step_of_every_model_does_not_wait_for_its_device(name, toy):
    assert one_step(toy, TRAINED[name])[3] == []


@pytest.mark.parametrize(
    ("loss", "spec"),
    [
        (SquaredError(), "mlp"), (SeparateMeanAndSpread(), "mlp"), (EnergyScore(), "transformer"),
        (CRPS(fair=0.95), "transformer"), (ThresholdWeightedCRPS(280.0), "mlp"),
    ],
    ids=lambda of: of if isinstance(of, str) else type(of).__name__,
)  # fmt: skip
def test_a_step_with_every_loss_does_not_wait_for_its_device(loss, spec, toy):
    options = {"head": "members"} if spec == "transformer" else {}
    assert one_step(toy, SPECS[spec] | options, loss)[3] == []


@pytest.mark.parametrize("form", ["exact", "reference"])
def test_the_climate_of_eecrps_is_copied_once(form, toy):
    loss = WeightedByIndex(torch.rand(1, 1, len(CLIMATE_PROBABILITIES), 1, *GRID.shape), (252,), TASK, form)
    assert one_step(toy, SPECS["mlp"], loss)[3] == 3 * [("aten._to_copy.default", {"cpu", "meta"})]
    assert one_step(toy, SPECS["mlp"], loss)[3] == []


def test_callbacks_of_a_step_do_not_wait_for_its_device(toy):
    class Trainer:
        global_step, accumulate_grad_batches, num_training_batches = 3, 1, 9
        optimizers = (torch.optim.SGD([torch.zeros(1)], 0.1),)

    net, step, batch, _ = one_step(toy, SPECS["mlp"])
    average, history = WeightAverage(0.9), LossHistory("metrics.csv")
    average.on_fit_start(Trainer, net)
    with Copies() as copies:
        for callback in (average, history):
            callback.on_train_batch_start(Trainer, net, batch, 2)
            callback.on_train_batch_end(Trainer, net, step, batch, 2)
    # The sums of an epoch begin as two numbers on the CPU.
    assert len(copies.found) <= 1


def test_a_copy_from_the_device_is_detected():
    tensor = torch.zeros(3, device=META)
    for wait in (
        lambda: tensor[0].item(), lambda: tensor.tolist(), lambda: float(tensor[0]), lambda: bool(tensor[0]),
        lambda: tensor.nonzero(), lambda: tensor[tensor > 0], lambda: tensor.numpy(), lambda: tensor.cpu(),
        lambda: np.asarray(tensor),
    ):  # fmt: skip
        with pytest.raises((RuntimeError, NotImplementedError, TypeError)):
            wait()
    with Copies() as copies:
        torch.ones(3).to(META)
    assert len(copies.found) == 1
