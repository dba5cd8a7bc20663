"""Overlap of halo exchange and computation: a convolution on two ranks behind a slow network, waiting and not.

Two processes with one thread each share a field on the full 0.5 degree grid and do forward and backward passes of a
3 x 3 convolution, of 32 channels and of 16, about the least that overlaps: waiting for the halo first, computing
meanwhile, and with nothing sent at all, which is the best that can be. `hidden` is how much of the time on the network
does not show in the step.

The network is emulated: a message counts as arrived no sooner than so many milliseconds after it was asked for, and
whoever needs it sleeps until then, which takes no core, as a network card does not.

    python -m benchmarks.overlap [--json]
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

from benchmarks.common import command_line, machine, report
from benchmarks.mesh.ranks import side_by_side
from data_pipeline.grid import Grid
from models.layers.convolution import Conv2d
from models.layers.overlap import WORTHWHILE
from models.parallel.domain import Domain

GRID, ROUNDS = Grid.regular(361, 720), 25
DELAYS = (0, 5, 20, 50)
"""Milliseconds from one rank to the other; a step needs two such ways, there and back."""


@dataclass
class Late:
    """A message that is there no sooner than `due`."""

    work: Any
    due: float

    def wait(self) -> None:
        """Wait for the message, then until it would have come."""
        self.work.wait()
        time.sleep(max(self.due - time.perf_counter(), 0))


@contextmanager
def network(delay: float | None) -> Iterator[None]:
    """Let messages take `delay` seconds within this block; with None there are none."""
    at_once = dist.batch_isend_irecv

    def late(messages: list[dist.P2POp]) -> list[Late]:
        return [Late(work, time.perf_counter() + delay) for work in at_once(messages)] if delay is not None else []

    with patch.object(dist, "batch_isend_irecv", late):
        yield


def measure(rank: int, channels: int) -> dict[tuple[str, int], float]:
    """Time steps on one of two ranks, all ways in turns; return the least milliseconds of each."""
    torch.manual_seed(0)
    domain = Domain.split(GRID, 2, 1, rank, dist.group.WORLD.group_name)
    layer = Conv2d(domain, channels, channels)
    x = torch.randn(1, channels, *domain.own_shape, requires_grad=True)
    ways: dict[tuple[str, int], tuple[bool, float | None]] = {("nothing sent", 0): (False, None)}
    for delay in DELAYS:
        ways |= {("waiting", delay): (False, delay / 1000), ("meanwhile", delay): (True, delay / 1000)}
    least = dict.fromkeys(ways, math.inf)
    for _ in range(ROUNDS):
        for way, options in ways.items():
            least[way] = min(least[way], step(layer, x, *options))
    return least


def step(layer: Conv2d, x: torch.Tensor, overlapped: bool, delay: float | None) -> float:
    """Return the milliseconds of a forward and a backward pass on both ranks."""
    x.grad = layer.weight.grad = None
    with network(delay), patch.dict(WORTHWHILE, cpu=1 if overlapped else math.inf):
        dist.barrier()
        start = time.perf_counter()
        y = layer(x)
        y.backward(torch.ones_like(y))
        dist.barrier()
    return 1000 * (time.perf_counter() - start)


def main() -> None:
    """Measure on two ranks, compare."""
    options = command_line(__doc__).parse_args()
    print(f"overlap on {machine()}")
    ratios = {}
    for channels, name in ((32, ""), (16, "smallest_")):
        least, _ = side_by_side(2, measure, channels, group=True)
        ideal = least["nothing sent", 0]
        print(f"{channels} channels, nothing sent: {ideal:.0f} ms")
        for delay in DELAYS:
            waiting, meanwhile = least["waiting", delay], least["meanwhile", delay]
            print(f"network of {delay:2} ms: waiting {waiting:4.0f} ms, computing meanwhile {meanwhile:4.0f} ms")
            ratios[f"{name}overlapped_vs_blocking_{delay}ms"] = meanwhile / waiting
            ratios[f"{name}overlapped_vs_ideal_{delay}ms"] = meanwhile / ideal
        for way, hidden in (("waiting", "hidden_while_blocking"), ("meanwhile", "hidden")):
            ratios[f"{name}{hidden}_at_20ms"] = 1 - (least[way, 20] - least[way, 0]) / (2 * 20)
    report("overlap", ratios, options.json)


if __name__ == "__main__":
    main()
