"""Memory and time of a training step, measured on one forecast or computed from the sizes of its tensors.

The bytes count all tensors that exist at the same time: activations that the backward pass needs, gradients, and
temporary results. The weights and the batch exist before the step and are not counted.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from data_pipeline.sample import Sample
from models.layers.dropout import masks_for
from models.layers.loss_term import loss_terms
from training.step.correction_module import CorrectionModule, clamp_to_tiny
from training.step.unchanged import unchanged_buffers

Autocast = Callable[[], AbstractContextManager[Any]]
"""Returns a context in which layers compute in the precision of the training."""

SHORT_PASS = 2.0
"""Seconds. A shorter pass is timed again, because the first pass also prepares kernels."""


class StepCost(NamedTuple):
    """Peak bytes and seconds of a forward and backward pass."""

    nbytes: int
    seconds: float


class AllocationMeter(TorchDispatchMode):
    """Measures in the block the `peak` of the bytes of tensors that operators have allocated and not yet freed."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator and count the storages that it makes."""
        # The result may be a view of an existing tensor, which is not counted.
        self._add((args, kwargs), counts=False)
        found = function(*args, **(kwargs or {}))
        self._add(found)
        return found

    def _add(self, tensors: Any, counts: bool = True) -> None:
        for tensor in tree_leaves(tensors):
            if isinstance(tensor, Tensor) and (key := (storage := tensor.untyped_storage())._cdata) not in self._sizes:
                self._sizes[key] = storage.nbytes() if counts else 0
                self.live += self._sizes[key]
                self.peak = max(self.peak, self.live)
                weakref.finalize(storage, self._release, key)

    def _release(self, key: int) -> None:
        self.live -= self._sizes.pop(key)


def computed_bytes(module: CorrectionModule, batch: Sample, autocast: Autocast) -> int | None:
    """Return the bytes of a pass on `batch`, from the sizes of its tensors; nothing is computed or allocated.

    Return None if an operator of the model needs the values of its tensors. Memory that an operator uses inside itself
    is not counted. `benchmarks/step_memory.py` compares the result with measured memory.
    """
    meter = AllocationMeter()
    try:
        pass_without_values(module, batch, autocast, meter)
    except Exception:  # each operator raises its own classes
        loss_terms(module.corrector.model)
        return None
    return meter.peak


def pass_without_values(
    module: CorrectionModule, batch: Sample, autocast: Autocast, meter: AbstractContextManager[Any]
) -> None:
    """Do a pass inside `meter` with tensors that have sizes but no values; raise if an operator needs values."""
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    state: dict[str, Tensor] = {name: fake.from_tensor(buffer) for name, buffer in module.named_buffers()}
    for name, parameter in module.named_parameters():
        state[name] = nn.Parameter(fake.from_tensor(parameter.detach()), parameter.requires_grad)
    inputs = Sample(*map(fake.from_tensor, batch))
    with torch.random.fork_rng(), _reparametrize_module(module, state), fake, meter:
        forward_and_backward(module, inputs, autocast)


def measure_step(module: CorrectionModule, batch: Sample, autocast: Autocast) -> StepCost:
    """Return bytes and seconds of a pass on `batch`, computed on the device of the module, which is left unchanged.

    On a GPU a pass before it is not measured: cuDNN tries its algorithms there, which took up to 170 s and ten times
    the memory for steps of a second, and kernels are compiled. All ranks of a mesh call this.
    """
    device, meter = module.device, AllocationMeter()
    with torch.random.fork_rng(), unchanged_buffers(module):
        on_gpu = device.type == "cuda"
        if on_gpu:
            _timed(module, batch, autocast, nullcontext())
            torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device) if on_gpu else 0
        seconds = _timed(module, batch, autocast, nullcontext() if on_gpu else meter)
        peak = torch.cuda.max_memory_allocated(device) - before if on_gpu else meter.peak
        # Each rank has its own clock, and a pass on a mesh exchanges messages: all ranks repeat it, or none does.
        if module.mesh.broadcast(seconds < SHORT_PASS):
            seconds = _timed(module, batch, autocast, nullcontext())
    return StepCost(peak, seconds)


def _timed(module: CorrectionModule, batch: Sample, autocast: Autocast, meter: AbstractContextManager[Any]) -> float:
    began = time.perf_counter()
    with meter:
        forward_and_backward(module, batch, autocast)
    for parameter in module.parameters():
        parameter.grad = None
    if module.device.type == "cuda":
        torch.cuda.synchronize(module.device)
    return time.perf_counter() - began


def forward_and_backward(module: CorrectionModule, batch: Sample, autocast: Autocast) -> None:
    """Compute the loss of a batch and its gradients, as a training step does, but without the exchange of gradients."""
    model = module.corrector.model
    with torch.enable_grad(), masks_for(batch):
        with autocast():
            value, weight = module.training_loss(batch)
            total = value / clamp_to_tiny(weight) + loss_terms(model) / len(batch.target)
        if total.requires_grad:
            total.backward()
