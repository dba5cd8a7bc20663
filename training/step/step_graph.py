"""A training step of a GPU as a CUDA graph: its kernels are recorded once and replayed for every batch of this shape.

Python needs longer to start the kernels of a step than a GPU needs to run them; a replay is one start. A graph repeats
kernels with the numbers that they were started with. What Python computes in a step, for example from a count of steps,
would keep the value of the recording, so the first replay is compared with a step that Python computes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from data_pipeline.common.messages import warn
from data_pipeline.sample import Sample
from training.step.unchanged import unchanged_buffers, unchanged_random_state

EAGER_STEPS = 3
"""Steps that Python computes before the recording: kernels are compiled and measured in them."""
MOST_APART = 1e-2
"""Largest relative difference of the gradient of a replay: sums in bfloat16 may have another order."""

Compute = Callable[[Sample, Tensor], Sequence[Tensor]]
"""Returns the loss and further numbers of a batch for the key of its dropout masks; the loss has a gradient."""


class StepGraphs:
    """Replays training steps of one shape of a batch on a GPU, once some steps of this shape were computed.

    `compute` computes a step. Batches of other shapes, such as the last one of an epoch, are always computed. If a step
    cannot be recorded, or if its replay differs, a warning says so once and all steps are computed.
    """

    def __init__(self, module: nn.Module, compute: Compute) -> None:
        self._module, self._compute = module, compute
        self._parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._seen: dict[Any, int] = {}
        self._graph: _Recorded | None = None
        self._off = False

    def step(self, batch: Sample, key: Tensor) -> tuple[Tensor, ...] | None:
        """Set the gradients of all parameters and return the results of a step; None if the caller must compute it.

        `key` is a number on the CPU. All results are copies without a gradient.
        """
        shape = tuple((tensor.shape, tensor.dtype) for tensor in batch)
        if self._off or (self._graph is not None and self._graph.shape != shape):
            return None
        if self._graph is None:
            self._seen[shape] = self._seen.get(shape, 0) + 1
            if self._seen[shape] <= EAGER_STEPS or not self._record(batch, key, shape):
                return None
        assert self._graph is not None
        found = self._graph.replay(batch, key)
        for parameter, gradient in zip(self._parameters, self._graph.gradients, strict=True):
            parameter.grad = gradient
        return found

    def _record(self, batch: Sample, key: Tensor, shape: Any) -> bool:
        """Record a step and compare its replay with a computed step for another key; return whether it can be used."""
        try:
            with unchanged_buffers(self._module), unchanged_random_state():
                graph = _Recorded.of(self._compute, self._parameters, batch, shape)
                if not graph.fits():
                    raise torch.OutOfMemoryError("it needs the memory of a step a second time")
                other = batch._replace(ensemble=1.01 * batch.ensemble.flip(0), mask=batch.mask.flip(0))
                expected = _gradients(self._compute(other, key + 1)[0], self._parameters)
                graph.replay(other, key + 1)
            if not _agree(graph.gradients, expected):
                raise RuntimeError("a replay gives another gradient than the step itself")
        except (RuntimeError, torch.OutOfMemoryError) as error:
            self._off = True
            _end_recording()
            why = str(error).strip().splitlines()[0]
            warn(f"the training step is no CUDA graph: {why}; Python starts its kernels one by one, which takes longer")
            return False
        self._graph = graph
        return True


@dataclass(eq=False)
class _Recorded:
    """A recorded step: its inputs, which a replay overwrites, its results and the gradients of all parameters."""

    shape: Any
    graph: torch.cuda.CUDAGraph
    batch: Sample
    key: Tensor
    results: tuple[Tensor, ...]
    gradients: list[Tensor | None]
    bytes: int

    @classmethod
    def of(cls, compute: Compute, parameters: list[nn.Parameter], batch: Sample, shape: Any) -> _Recorded:
        """Record a step on a batch like `batch`."""
        inputs = Sample(*(tensor.clone() for tensor in batch))
        key = torch.zeros((), dtype=torch.int64, device=batch.target.device)
        # The cache of autocast would keep weights of the recording.
        cached = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)
        try:
            # Libraries get the memory that they need on the stream in a step before.
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                _gradients(compute(inputs, key)[0], parameters)
            torch.cuda.synchronize()
            graph, before = torch.cuda.CUDAGraph(), torch.cuda.memory_reserved()
            # Other threads may pin memory meanwhile.
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                loss, *others = compute(inputs, key)
                gradients = _gradients(loss, parameters)
        finally:
            torch.set_autocast_cache_enabled(cached)
        results = loss.detach(), *(other.detach() for other in others)
        return cls(shape, graph, inputs, key, results, gradients, torch.cuda.memory_reserved() - before)

    def fits(self) -> bool:
        """Return whether the GPU has memory for steps outside the graph too: another batch, the validation."""
        unused = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        return torch.cuda.mem_get_info()[0] + unused >= self.bytes

    def replay(self, batch: Sample, key: Tensor) -> tuple[Tensor, ...]:
        """Compute the step for `batch` and return copies of its results."""
        for own, tensor in zip(self.batch, batch, strict=True):
            own.copy_(tensor, non_blocking=True)
        self.key.fill_(int(key))
        self.graph.replay()
        return tuple(result.clone() for result in self.results)


def _end_recording() -> None:
    """Give the GPU a new state of random numbers: a recording that fails leaves the old one in the recording."""
    if torch.cuda.is_available():
        device = torch.cuda.current_device()
        fresh = torch.Generator(torch.device("cuda", device)).graphsafe_get_state()
        torch.cuda.default_generators[device].graphsafe_set_state(fresh)


def _gradients(loss: Tensor, parameters: list[nn.Parameter]) -> list[Tensor | None]:
    return list(torch.autograd.grad(loss, parameters, allow_unused=True))


def _agree(found: list[Tensor | None], expected: list[Tensor | None]) -> bool:
    """Return whether both gradients have the same parameters and nearly the same values; waits for the GPU."""
    if [one is None for one in found] != [one is None for one in expected]:
        return False
    pairs = [(a, b) for a, b in zip(found, expected, strict=True) if a is not None and b is not None]
    apart = sum((a - b).double().square().sum() for a, b in pairs)
    size = sum(b.double().square().sum() for _, b in pairs)
    return bool(torch.as_tensor(apart) <= MOST_APART**2 * torch.as_tensor(size))
