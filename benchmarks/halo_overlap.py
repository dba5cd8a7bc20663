"""Overlap of halo exchange and computation: a convolution on two ranks with a slow network.

Two processes with one thread each share a field on the full 0.5 degree grid and run forward and backward passes of a
3 x 3 convolution, of 32 channels and of 16, about the smallest number for which exchange and computation overlap. Three
ways are compared: waiting for the halo first, computing meanwhile, and sending nothing, which is the optimum. `hidden`
is the part of the time on the network that does not lengthen the step.

The network is emulated: a message arrives after a given delay, and the receiver sleeps until then, because a network
card takes no core either.

    python -m benchmarks.halo_overlap [--json]
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from benchmarks.common import HALF_DEGREE, command_line, machine, report
from benchmarks.mesh.ranks import run_ranks
from models.layers.convolution import Conv2d
from models.layers.overlap import WORTHWHILE
from models.parallel.domain import Domain

TIMED_STEPS = 25
DELAYS = (0, 5, 20, 50)
"""Milliseconds from one rank to the other; a step sends forward and back."""


@dataclass
class DelayedMessage:
    """A message that arrives at time `due`."""

    work: Any
    due: float

    def wait(self) -> None:
        """Wait for the message and until `due`."""
        self.work.wait()
        time.sleep(max(self.due - time.perf_counter(), 0))


@contextmanager
def emulated_network(delay: float | None) -> Iterator[None]:
    """Delay messages by `delay` seconds within this block; None sends no messages."""
    send = dist.batch_isend_irecv

    def send_late(messages: list[dist.P2POp]) -> list[DelayedMessage]:
        if delay is None:
            return []
        return [DelayedMessage(work, time.perf_counter() + delay) for work in send(messages)]

    with patch.object(dist, "batch_isend_irecv", send_late):
        yield


def time_steps(rank: int, channels: int) -> dict[tuple[str, int], float]:
    """Time the steps of one of two ranks, all ways in turn; return the smallest milliseconds of each."""
    torch.manual_seed(0)
    domain = Domain.split(HALF_DEGREE, 2, 1, rank, dist.group.WORLD.group_name)
    layer = Conv2d(domain, channels, channels)
    x = torch.randn(1, channels, *domain.own_shape, requires_grad=True)
    ways: dict[tuple[str, int], tuple[bool, float | None]] = {("nothing sent", 0): (False, None)}
    for delay in DELAYS:
        ways |= {("waiting", delay): (False, delay / 1000), ("meanwhile", delay): (True, delay / 1000)}
    shortest = dict.fromkeys(ways, math.inf)
    for _ in range(TIMED_STEPS):
        for way, options in ways.items():
            shortest[way] = min(shortest[way], time_step(layer, x, *options))
    return shortest


def time_step(layer: Conv2d, x: torch.Tensor, overlapped: bool, delay: float | None) -> float:
    """Return the milliseconds of a forward and a backward pass on both ranks."""
    x.grad = layer.weight.grad = None
    with emulated_network(delay), patch.dict(WORTHWHILE, cpu=1 if overlapped else math.inf):
        dist.barrier()
        start = time.perf_counter()
        y = layer(x)
        y.backward(torch.ones_like(y))
        dist.barrier()
    return 1000 * (time.perf_counter() - start)


def main() -> None:
    """Time both ways on two ranks, print the ratios."""
    options = command_line(__doc__).parse_args()
    print(f"halo_overlap on {machine()}")
    ratios = {}
    for channels, name in ((32, ""), (16, "smallest_")):
        shortest, _ = run_ranks(2, time_steps, channels, group=True)
        ideal = shortest["nothing sent", 0]
        print(f"{channels} channels, nothing sent: {ideal:.0f} ms")
        for delay in DELAYS:
            waiting, meanwhile = shortest["waiting", delay], shortest["meanwhile", delay]
            print(f"network of {delay:2} ms: waiting {waiting:4.0f} ms, computing meanwhile {meanwhile:4.0f} ms")
            ratios[f"{name}overlapped_vs_blocking_{delay}ms"] = meanwhile / waiting
            ratios[f"{name}overlapped_vs_ideal_{delay}ms"] = meanwhile / ideal
        for way, hidden in (("waiting", "hidden_while_blocking"), ("meanwhile", "hidden")):
            ratios[f"{name}{hidden}_at_20ms"] = 1 - (shortest[way, 20] - shortest[way, 0]) / (2 * 20)
    report("halo_overlap", ratios, options.json)


if __name__ == "__main__":
    main()
