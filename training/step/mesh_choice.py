"""`trainer.mesh=auto`: the mesh with the shortest estimated step, from the operations and messages of the model.

    seconds of a step = operations / rate + operators * launch + messages * latency + bytes / bandwidth

docs/scaling.md explains this formula. The model is built on the device `meta` for a tile of each possible mesh and run
once, so that operations, operators and messages are counted, not assumed. The backward pass counts as two forward
passes, and sends what the forward pass sends. `MACHINES` has the rates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from data_pipeline.common.errors import InputError
from data_pipeline.common.messages import say
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.layers.channel_axis import FilterConv2d
from models.parallel.domain import ChannelAxis, Domain
from models.parallel.exchange import EXCHANGES
from models.parallel.mesh import Mesh, started_ranks
from models.parallel.mesh_shape import AUTO
from training.run.trainer_options import TrainerOptions


@dataclass(frozen=True)
class MachineRates:
    """The rates at which a rank computes and sends."""

    operations: float
    """Floating-point operations per second of a training step."""
    launch: float
    """Seconds to start an operator."""
    latency: float
    """Seconds per message."""
    bandwidth: float
    """Bytes per second that a rank sends."""


MACHINES = {
    "cpu": MachineRates(operations=4.6e10, launch=3.0e-6, latency=1.3e-3, bandwidth=230e6),
    "gpu": MachineRates(operations=40e12, launch=10e-6, latency=12e-6, bandwidth=45e9),
}
"""Rates by kind of device. The CPU rates are fitted to the measurements in docs/scaling.md, with one thread and gloo.
The GPU rates are assumed, because no GPU was available: single precision of an H100, the time to start a kernel, and
the slower of its two links."""


@dataclass(frozen=True)
class MeshEstimate:
    """The estimated time of a step on a mesh of `shape`: data ranks, bands, sectors, channel ranks."""

    shape: tuple[int, int, int, int]
    operations: int
    """Floating-point operations of convolutions and matrix products."""
    operators: int
    """Calls of PyTorch's operators."""
    messages: int
    sent: int
    """Bytes that a rank sends."""
    machine: MachineRates

    @property
    def compute(self) -> float:
        """Seconds of a step without messages."""
        return self.operations / self.machine.operations + self.operators * self.machine.launch

    @property
    def seconds(self) -> float:
        """Seconds of a step."""
        return self.compute + self.messages * self.machine.latency + self.sent / self.machine.bandwidth

    def __str__(self) -> str:
        numbers = [*self.shape]
        while len(numbers) > 2 and numbers[-1] == 1:
            numbers.pop()
        sending, shape = self.seconds - self.compute, ",".join(map(str, numbers))
        return f"[{shape}] {self.seconds:.3g} s a step ({sending:.2g} s of it for {self.messages} messages)"


def settle_mesh(
    mesh: Mesh, options: TrainerOptions, build: Callable[[Domain], nn.Module], task: Task, grid: Grid, members: int
) -> tuple[Mesh, TrainerOptions]:
    """Return the mesh that `choose_mesh` finds for the ranks of `mesh`, and the options with its shape."""
    rates = MACHINES["gpu" if uses_gpus(options) else "cpu"]
    if not uses_gpus(options):
        rates = replace(rates, operations=rates.operations * torch.get_num_threads())
    shape, why = mesh.run_on_first(
        lambda: choose_mesh(build, task, grid, mesh.ranks, options.batch_size, members, rates)
    )
    say(why)
    return mesh.rearrange(shape, options.timeout_minutes), replace(options, mesh=list(shape))


def first_shape(options: TrainerOptions) -> Sequence[int]:
    """Return the shape of the mesh that the ranks start with; with `auto`, only its number of ranks is final.

    This number is the number of processes that a launcher has started, else of GPUs, else 1.
    """
    if options.mesh != AUTO:
        return cast(Sequence[int], options.mesh)
    return [started_ranks() or (torch.cuda.device_count() if uses_gpus(options) else 1), 1]


def uses_gpus(options: TrainerOptions) -> bool:
    """Return whether the options allow GPUs and this machine has some."""
    return options.accelerator != "cpu" and torch.cuda.is_available()


def choose_mesh(
    build: Callable[[Domain], nn.Module],
    task: Task,
    grid: Grid,
    ranks: int,
    batch_size: int,
    members: int,
    machine: MachineRates,
) -> tuple[tuple[int, int, int, int], str]:
    """Return the mesh of `ranks` ranks with the shortest estimated step, and a line for the user that says why.

    `build` returns the model on a domain. Raise InputError if the model can be estimated on no mesh.
    """
    found = []
    for shape in possible_meshes(ranks, batch_size):
        estimate = estimate_step(build, task, grid, shape, batch_size, members, machine)
        if estimate is not None:
            found.append(estimate)
    if not found:
        raise InputError(
            f"trainer.mesh=auto finds no mesh of {ranks} ranks for this model and trainer.batch_size={batch_size}; "
            "start fewer processes, or write the numbers of trainer.mesh"
        )
    # The sort is stable. Of equal estimates the first wins: samples are shared before tiles, and tiles before channels.
    found.sort(key=lambda estimate: estimate.seconds)
    others = f"; next {found[1]}" if len(found) > 1 else ""
    return found[0].shape, f"trainer.mesh=auto, best of {len(found)} estimates for {ranks} ranks: {found[0]}{others}"


def possible_meshes(ranks: int, batch_size: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield all meshes of `ranks` ranks, with at most one data rank for each sample of a batch."""
    for data in _divisors(ranks):
        for bands in _divisors(ranks // data):
            for sectors in _divisors(ranks // data // bands):
                if data <= batch_size:
                    yield data, bands, sectors, ranks // data // bands // sectors


def estimate_step(
    build: Callable[[Domain], nn.Module],
    task: Task,
    grid: Grid,
    shape: tuple[int, int, int, int],
    batch_size: int,
    members: int,
    machine: MachineRates,
) -> MeshEstimate | None:
    """Return the estimate of a mesh; None if the model refuses it, has no layers for its channel axis, or reads values.

    The estimate is for a rank in the middle, which has neighbours on all sides.
    """
    data, bands, sectors, channels = shape
    tiles = bands * sectors * channels
    axis = ChannelAxis(channels, "channels") if channels > 1 else None
    samples = math.ceil(batch_size / data)
    try:
        domain = Domain.split(grid, bands * channels, sectors, tiles // 2, "tiles", "", axis)
        with torch.device("meta"):
            model = build(domain).eval()
    except InputError:
        return None
    if axis and not any(isinstance(layer, FilterConv2d) for layer in model.modules()):
        return None
    calls = CallCounter()
    try:
        with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as operations, calls:
            model(_sample_on_meta(task, domain, samples, members))
    except Exception:  # the model of a user may read values, which `meta` does not have
        return None
    weights = sum(value.numel() * value.element_size() for value in model.parameters())
    gradients = data * tiles > 1
    return MeshEstimate(
        shape,
        3 * operations.get_total_flops(),
        3 * calls.operators,
        2 * calls.messages + gradients,
        2 * calls.sent + gradients * weights,
        machine,
    )


class CallCounter(TorchDispatchMode):
    """Counts operator calls, and the messages and bytes that this rank sends in the operators of `models.parallel`."""

    def __init__(self) -> None:
        super().__init__()
        self.operators = self.messages = self.sent = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        """Count the call and run it."""
        result, operators = func(*args, **(kwargs or {})), torch.ops.deepweather
        self.operators += 1
        if func is operators.fetch.default:
            x, exchange = args
            self._add(EXCHANGES[exchange].plan.cells_sent * x.shape[:-2].numel(), x)
        elif func is operators.redistribute.default:
            x, split, cuts, _, _, _, ranks, rank, _ = args
            own = x.numel() // x.shape[split] * (cuts[rank + 1] - cuts[rank]) if split else 0
            self._add(x.numel() - own if split else x.numel() * (ranks - 1), x)
        elif func is operators.allsum.default:
            self._add(args[0].numel(), args[0])
        return result

    def _add(self, numbers: int, x: Tensor) -> None:
        self.messages, self.sent = self.messages + 1, self.sent + numbers * x.element_size()


def _sample_on_meta(task: Task, domain: Domain, samples: int, members: int) -> Sample:
    """Return a batch without values."""
    C, T, S = len(task.channels), len(task.targets), len(task.static_names)
    return Sample(
        ensemble=torch.zeros(samples, members, C, *domain.own_shape),
        mask=torch.ones(samples, C, *domain.own_shape, dtype=torch.bool),
        static=torch.zeros(samples, S, *domain.own_shape),
        target=torch.zeros(samples, T, *domain.own_shape),
        init_time=torch.zeros(samples, dtype=torch.long),
        lead_time=torch.zeros(samples, dtype=torch.long),
    )


def _divisors(number: int) -> list[int]:
    """Return the divisors of a number, the largest first."""
    return [n for n in range(number, 0, -1) if number % n == 0]
