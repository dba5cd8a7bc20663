"""What 1,024 GPUs might do: the U-Net's layers, published figures of GPUs and networks, and assumptions in the open.

Nothing here is measured. `python -m benchmarks.mesh.extrapolation` prints the tables of docs/scaling.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks.mesh.training_step import TASK, Step
from data_pipeline.grid import Grid
from models.networks.unet import UNet
from models.parallel.mesh import Mesh

BYTES = 2
"""Of a number: bfloat16."""


@dataclass(frozen=True)
class Layer:
    """A layer of the network, `level` halvings below the finest grid; `kernel` 0 is a change of resolution."""

    level: int
    inputs: int
    outputs: int
    kernel: int
    differentiated: bool
    """Whether its input has a gradient, which goes back to other ranks."""


@dataclass(frozen=True)
class Cluster:
    """Nodes of 8 GPUs (H100 SXM); docs/scaling.md cites where the figures come from."""

    flops: float = 0.4 * 989e12
    """Reached in convolutions: two fifths of the dense bfloat16 peak, an assumption."""
    memory: float = 0.8 * 3.35e12
    """Bytes per second, four fifths of the peak, an assumption."""
    launch: float = 40e-6
    """Seconds per layer, forward and backward, to start its kernels, an assumption (a compiled step)."""
    node: int = 8
    latency: tuple[float, float] = (12e-6, 18e-6)
    """Seconds of a message within a node, and to another."""
    bandwidth: tuple[float, float] = (380e9, 45e9)
    """Bytes per second of one GPU in one direction, within a node and to another."""

    def message(self, size: float, ranks: int) -> float:
        """Return the seconds of an exchange in which a rank sends `size` bytes."""
        away = ranks > self.node
        return self.latency[away] + size / self.bandwidth[away] if size else 0.0

    def all_reduce(self, size: float, ranks: int) -> float:
        """Return the seconds of a sum over all ranks: a tree for the latency, a ring for the bytes."""
        if ranks == 1:
            return 0.0
        away = ranks > self.node
        hops = 2 * math.log2(ranks)
        return hops * self.latency[away] / 2 + 2 * size * (ranks - 1) / ranks / self.bandwidth[away]


def layers_of(width: int) -> tuple[list[Layer], int]:
    """Return the layers of the shipped U-Net, as they are called, and how many parameters it has."""
    grid = Grid.regular(33, 64)
    model, found = UNet(TASK, grid, width), []

    def note(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        (x,) = inputs
        level = round(math.log2(grid.shape[1] / x.shape[-1]))
        kernel = layer.kernel_size[0] if isinstance(layer, nn.Conv2d) else 0
        found.append(Layer(level, x.shape[1], output.shape[1], kernel, x.requires_grad))

    for layer in model.modules():
        if hasattr(layer, "window") or isinstance(layer, nn.Conv2d):
            layer.register_forward_hook(note)
    step = Step(Mesh.alone(), grid)
    model(step.module.corrector.normalizer(step.batch))
    return found, sum(parameter.numel() for parameter in model.parameters())


def halo(layer: Layer, height: int, width: int, bands: int, sectors: int) -> int:
    """Return the cells that a tile of `height` x `width` lacks for a layer, if it has all its neighbours.

    So has a sector from pole to pole: its rows go on across the poles, in the sector half a turn further.
    """
    reach = layer.kernel - 1 if layer.kernel else 1
    rows, columns = reach * (bands * sectors > 1), reach * (sectors > 1)
    return rows * width + columns * height + rows * columns


def step_time(
    layers: list[Layer], parameters: int, shape: tuple[int, int], bands: int, sectors: int, members: int, hidden: bool
) -> float:
    """Return the seconds of a training step of one sample; with `hidden`, convolutions compute while they wait."""
    cluster, ranks, seconds = Cluster(), bands * sectors, 0.0
    for layer in layers:
        h, w = (math.ceil(n / 2**layer.level / parts) for n, parts in zip(shape, (bands, sectors), strict=True))
        work = 3 * 2 * h * w * layer.inputs * layer.outputs * layer.kernel**2 * members
        # Forward and backward read and write input and output; norm, GELU and dropout go over the output 12 times.
        passes = 3 * (layer.inputs + layer.outputs) + 12 * layer.outputs * (layer.kernel > 1)
        compute = max(work / cluster.flops, BYTES * h * w * passes * members / cluster.memory) + cluster.launch
        sent = BYTES * layer.inputs * members * (halo(layer, h, w, bands, sectors) if layer.kernel != 1 else 0)
        wait = (1 + layer.differentiated) * cluster.message(sent, ranks)
        seconds += max(compute, wait) if hidden and layer.kernel else compute + wait
    # Gradients are summed while the backward pass, two thirds of the step, goes on; the loss is not.
    gradients = cluster.all_reduce(4 * parameters, ranks)
    return seconds + max(0.0, gradients - 2 / 3 * seconds) + cluster.all_reduce(16, ranks)


def meshes(ranks: int, shape: tuple[int, int], depth: int) -> Iterator[tuple[int, int]]:
    """Yield all ways to deal out a grid of which every rank still has two rows and columns on the coarsest level."""
    for power in range(int(math.log2(ranks)) + 1):
        bands, sectors = 2**power, ranks // 2**power
        if min(shape[0] / 2**depth / bands, shape[1] / 2**depth / sectors) >= 2:
            yield bands, sectors


CASES = {
    "0.5°, members in channels": ((361, 720), 1),
    "0.25°, members in channels": ((721, 1440), 1),
    "0.5°, 50 members kept": ((361, 720), 50),
    "0.25°, 50 members kept": ((721, 1440), 50),
}
RANKS = (1, 2, 4, 8, 16, 64, 256, 1024)


def table(width: int = 64) -> str:
    """Return in Markdown how one sample scales: efficiency with halos hidden, and in brackets waiting for them."""
    layers, parameters = layers_of(width)
    depth = max(layer.level for layer in layers)
    lines = [f"| GPUs for one sample | {' | '.join(CASES)} |", "|---|" + "---|" * len(CASES)]
    for ranks in RANKS:
        cells = []
        for shape, members in CASES.values():
            one = step_time(layers, parameters, shape, 1, 1, members, hidden=True)
            (hidden, (bands, sectors)), (waiting, _) = (
                min((step_time(layers, parameters, shape, *mesh, members, kind), mesh)
                    for mesh in meshes(ranks, shape, depth))
                for kind in (True, False)
            )  # fmt: skip
            gain = f", {percent(one / hidden / ranks)} ({percent(one / waiting / ranks)})"
            cells.append(f"{bands} × {sectors}: {1e3 * hidden:,.1f} ms{gain if ranks > 1 else ''}")
        lines.append(f"| {ranks:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def percent(share: float) -> str:
    """Return a share in percent, never nothing.

    >>> percent(0.254), percent(0.001)
    ('25 %', '<1 %')
    """
    return f"{100 * share:.0f} %" if share >= 0.005 else "<1 %"


if __name__ == "__main__":
    torch.manual_seed(0)
    print(table())
