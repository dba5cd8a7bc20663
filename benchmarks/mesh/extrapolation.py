"""Estimated time of a training step on up to 1,024 GPUs, from the U-Net's layers, published rates and assumptions.

Nothing here is measured. `python -m benchmarks.mesh.extrapolation` prints the table of docs/scaling.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks.common import HALF_DEGREE
from benchmarks.mesh.training_step import UNET_TASK, TrainingStep
from data_pipeline.grid import Grid
from models.networks.unet import UNet
from models.parallel.mesh import Mesh

BFLOAT16_BYTES = 2


@dataclass(frozen=True)
class LayerShape:
    """A layer of the network, `level` halvings below the finest grid; `kernel` 0 means a change of resolution."""

    level: int
    inputs: int
    outputs: int
    kernel: int
    differentiated: bool
    """Whether the layer's input has a gradient, which is sent back to other ranks."""


@dataclass(frozen=True)
class GpuCluster:
    """Nodes of 8 GPUs (H100 SXM); docs/scaling.md cites the sources of these numbers."""

    flops: float = 0.4 * 989e12
    """Operations per second in convolutions: two fifths of the dense bfloat16 peak, an assumption."""
    memory: float = 0.8 * 3.35e12
    """Bytes per second, four fifths of the peak, an assumption."""
    launch: float = 40e-6
    """Seconds per layer, forward and backward, to launch its kernels, an assumption (a compiled step)."""
    node: int = 8
    latency: tuple[float, float] = (12e-6, 18e-6)
    """Seconds of a message within a node, and to another node."""
    bandwidth: tuple[float, float] = (380e9, 45e9)
    """Bytes per second of one GPU in one direction, within a node and to another node."""

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


def layers_of(width: int) -> tuple[list[LayerShape], int]:
    """Return the layers of the shipped U-Net in the order of their calls, and the number of its parameters."""
    grid = Grid.regular(33, 64)
    model, found = UNet(UNET_TASK, grid, width), []

    def record(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        (x,) = inputs
        level = round(math.log2(grid.shape[1] / x.shape[-1]))
        kernel = layer.kernel_size[0] if isinstance(layer, nn.Conv2d) else 0
        found.append(LayerShape(level, x.shape[1], output.shape[1], kernel, x.requires_grad))

    for layer in model.modules():
        if hasattr(layer, "window") or isinstance(layer, nn.Conv2d):
            layer.register_forward_hook(record)
    step = TrainingStep(Mesh.single(), grid)
    model(step.module.corrector.normalizer(step.batch))
    return found, sum(parameter.numel() for parameter in model.parameters())


def halo_size(layer: LayerShape, height: int, width: int, bands: int, sectors: int) -> int:
    """Return the number of halo cells of a layer on a tile of `height` x `width` with neighbours on all sides.

    A sector from pole to pole has all neighbours too: across a pole lies the sector half a turn further.
    """
    reach = layer.kernel - 1 if layer.kernel else 1
    rows, columns = reach * (bands * sectors > 1), reach * (sectors > 1)
    return rows * width + columns * height + rows * columns


def step_time(
    layers: list[LayerShape],
    parameters: int,
    shape: tuple[int, int],
    bands: int,
    sectors: int,
    members: int,
    hidden: bool,
) -> float:
    """Return the seconds of a training step of one sample; with `hidden`, convolutions compute during the exchange."""
    cluster, ranks, seconds = GpuCluster(), bands * sectors, 0.0
    for layer in layers:
        h, w = (math.ceil(n / 2**layer.level / parts) for n, parts in zip(shape, (bands, sectors), strict=True))
        work = 3 * 2 * h * w * layer.inputs * layer.outputs * layer.kernel**2 * members
        # Forward and backward read and write input and output; norm, GELU and dropout access the output 12 times.
        passes = 3 * (layer.inputs + layer.outputs) + 12 * layer.outputs * (layer.kernel > 1)
        compute = max(work / cluster.flops, BFLOAT16_BYTES * h * w * passes * members / cluster.memory) + cluster.launch
        cells = halo_size(layer, h, w, bands, sectors) if layer.kernel != 1 else 0
        sent = BFLOAT16_BYTES * layer.inputs * members * cells
        wait = (1 + layer.differentiated) * cluster.message(sent, ranks)
        seconds += max(compute, wait) if hidden and layer.kernel else compute + wait
    # Gradients are summed during the backward pass, two thirds of the step; the loss is summed after it.
    gradients = cluster.all_reduce(4 * parameters, ranks)
    return seconds + max(0.0, gradients - 2 / 3 * seconds) + cluster.all_reduce(16, ranks)


def meshes(ranks: int, shape: tuple[int, int], depth: int) -> Iterator[tuple[int, int]]:
    """Yield all meshes (bands, sectors) that leave every rank two rows and columns on the coarsest level."""
    for power in range(int(math.log2(ranks)) + 1):
        bands, sectors = 2**power, ranks // 2**power
        if min(shape[0] / 2**depth / bands, shape[1] / 2**depth / sectors) >= 2:
            yield bands, sectors


SAMPLE_CASES = {
    "0.5°, members in channels": (HALF_DEGREE.shape, 1),
    "0.25°, members in channels": ((721, 1440), 1),
    "0.5°, 50 members kept": (HALF_DEGREE.shape, 50),
    "0.25°, 50 members kept": ((721, 1440), 50),
}
RANK_COUNTS = (1, 2, 4, 8, 16, 64, 256, 1024)


def efficiency_table(width: int = 64) -> str:
    """Return a Markdown table of step times and efficiencies with hidden halos; in brackets, with waiting for halos."""
    layers, parameters = layers_of(width)
    depth = max(layer.level for layer in layers)
    lines = [f"| GPUs for one sample | {' | '.join(SAMPLE_CASES)} |", "|---|" + "---|" * len(SAMPLE_CASES)]
    for ranks in RANK_COUNTS:
        cells = []
        for shape, members in SAMPLE_CASES.values():
            one = step_time(layers, parameters, shape, 1, 1, members, hidden=True)
            (hidden, (bands, sectors)), (waiting, _) = (
                min((step_time(layers, parameters, shape, *mesh, members, kind), mesh)
                    for mesh in meshes(ranks, shape, depth))
                for kind in (True, False)
            )  # fmt: skip
            gain = f", {_percent(one / hidden / ranks)} ({_percent(one / waiting / ranks)})"
            cells.append(f"{bands} × {sectors}: {1e3 * hidden:,.1f} ms{gain if ranks > 1 else ''}")
        lines.append(f"| {ranks:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _percent(share: float) -> str:
    """Return a share in percent, at least `<1 %`.

    >>> _percent(0.254), _percent(0.001)
    ('25 %', '<1 %')
    """
    return f"{100 * share:.0f} %" if share >= 0.005 else "<1 %"


if __name__ == "__main__":
    torch.manual_seed(0)
    print(efficiency_table())
