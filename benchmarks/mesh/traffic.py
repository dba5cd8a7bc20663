"""Bytes that a training step sends: counted at the collective calls, and the minimum, computed from derivatives.

An all-reduce counts as the bytes of its input on each rank, independent of the algorithm.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from data_pipeline.grid import Grid
from models.layers.convolution import Conv2d
from models.layers.norms import FieldNorm
from models.networks.trunk import ResidualBlock
from models.parallel.domain import Domain
from models.parallel.exchange import count_sent_bytes

TRAFFIC_KINDS = ("halo", "halo gradient", "channels", "channels gradient", "norm", "loss", "gradient")
BytesByKind = dict[str, int]


class TrafficCounter:
    """Counts bytes and messages of collective calls; the phase of the step determines their kind."""

    def __init__(self) -> None:
        self.sent, self.messages = Counter(dict.fromkeys(TRAFFIC_KINDS, 0)), 0
        self.halo, self.sums = "halo", "norm"

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count the collective calls of this process within this block."""
        send, reduce = dist.batch_isend_irecv, dist.all_reduce

        def counted_send(operations: list[dist.P2POp]) -> list[dist.Work]:
            self.sent[self.halo] += sum(each.tensor.nbytes for each in operations if each.op is dist.isend)
            self.messages += 1
            return send(operations)

        def counted_reduce(x: Tensor, *arguments: object, **options: object) -> dist.Work | None:
            self.sent[self.sums] += x.nbytes
            self.messages += 1
            return reduce(x, *arguments, **options)

        others = ("all_gather", "all_gather_into_tensor", "all_to_all", "all_to_all_single", "broadcast", "reduce",
                  "reduce_scatter", "reduce_scatter_tensor", "send", "recv")  # fmt: skip
        refused = {name: _refuse(name) for name in others}
        with patch.multiple(dist, batch_isend_irecv=counted_send, all_reduce=counted_reduce, **refused):
            yield


def _refuse(name: str) -> object:
    def call(*arguments: object, **options: object) -> None:
        raise AssertionError(f"a training step calls {name}, which is not counted")

    return call


def count_traffic(step: nn.Module, model: nn.Module) -> TrafficCounter:
    """Run a step on the ranks of a group; return the counts of this rank's collective calls.

    `step()` returns the loss, `model` is its network.
    """
    counter = TrafficCounter()

    def after_model(*_: object) -> None:
        counter.sums = "loss"

    def average(_, bucket):  # type: ignore[no-untyped-def]  # DDP evaluates annotations, which fails for postponed ones
        before, counter.sums = counter.sums, "gradient"
        try:
            return allreduce_hook(None, bucket)
        finally:
            counter.sums = before

    shared = DistributedDataParallel(step, init_sync=False, forward_sync_buffers=False, gradient_as_bucket_view=True)
    shared.register_comm_hook(None, average)
    handle = model.register_forward_hook(after_model)
    with counter.counting(), count_sent_bytes() as moved:
        loss = shared()
        counter.halo, counter.sums = "halo gradient", "norm"
        loss.backward()
    handle.remove()
    for halo, kind in (("halo", "channels"), ("halo gradient", "channels gradient")):
        counter.sent[kind] = moved[kind]
        counter.sent[halo] -= moved[kind]
    return counter


def minimal_traffic(
    step: nn.Module, model: nn.Module, grid: Grid, bands: int, sectors: int, channels: int = 1
) -> list[BytesByKind]:
    """Return the bytes that the rank of each tile must send, computed from the same step on one process.

    The halo of a layer consists of the cells of other tiles on which its output on this rank's tile depends (their
    derivative is not zero), times channels. The backward pass sends back as many numbers if the layer's input has a
    gradient. A norm sums two float64 for each sample, forward and backward; the loss sums two. Gradients are
    summed once. `WidePair` computes the numbers of wide layers.
    """
    seen: list[tuple[nn.Module, Tensor]] = []
    layers = [layer for layer in model.modules() if hasattr(layer, "window") or isinstance(layer, FieldNorm)]
    handles = [layer.register_forward_hook(lambda layer, inputs, _: seen.append((layer, *inputs))) for layer in layers]
    step()
    for handle in handles:
        handle.remove()
    coarsest = min(x.shape[-2:] for _, x in seen)
    domain, domains = Domain.split(grid, bands * channels, sectors), _levels(grid, bands * channels, sectors, coarsest)
    merged = _levels(grid, bands, sectors, coarsest)
    wide = wide_convolutions(model, grid) if channels > 1 else {}
    samples = sum(len(x) for layer, x in seen if isinstance(layer, FieldNorm))
    sums = {
        "norm": 2 * 2 * 8 * samples * (domain.ranks > 1),
        "loss": 2 * 8,
        "gradient": sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad),
    }
    result = [dict.fromkeys(TRAFFIC_KINDS, 0) | sums for _ in range(domain.ranks)]
    known: dict[object, np.ndarray] = {}
    for layer, x in seen:
        if isinstance(layer, FieldNorm):
            continue
        if layer in wide:
            sizes = layer.in_channels, layer.out_channels, len(x) * x.element_size()
            cells = halo_cells(layer, x.shape[-2:], merged)
            pair = WidePair(domains[tuple(x.shape[-2:])], channels, cells, *sizes)
            for rank, bytes_of in enumerate(result):
                for kind, number in (pair.first if wide[layer] else pair.second)(rank).items():
                    bytes_of[kind] += number
            continue
        key = type(layer), x.shape[-2:], getattr(layer, "kernel_size", None)
        if key not in known:
            known[key] = halo_cells(layer, x.shape[-2:], domains)
        each = len(x) * x.shape[1] * x.element_size()
        for rank, bytes_of in enumerate(result):
            bytes_of["halo"] += int(known[key][:, rank].sum()) * each
            bytes_of["halo gradient"] += int(known[key][rank].sum()) * each * x.requires_grad
    return result


def _levels(grid: Grid, bands: int, sectors: int, coarsest: torch.Size) -> dict[tuple[int, ...], Domain]:
    """Return the tiles of a grid and of every coarser level, by their shape."""
    domain = Domain.split(grid, bands, sectors)
    domains = {domain.shape: domain}
    while min(domain.shape) > 2 and domain.shape != coarsest:
        domain = domain.coarsen()
        domains[domain.shape] = domain
    return domains


def wide_convolutions(model: nn.Module, grid: Grid) -> dict[nn.Module, bool]:
    """Return the convolutions of wide blocks, and whether each is the first of its block."""
    found = {}
    for block in model.modules():
        if isinstance(block, ResidualBlock):
            first, second = (layer for layer in block.path if isinstance(layer, Conv2d))
            if first.out.shape != grid.shape:
                found |= {first: True, second: False}
    return found


class WidePair:
    """Bytes that each rank of a channel axis must send for both convolutions of a wide block.

    `domain` has the tiles of all ranks. In each tile column, every `ranks` tiles share channels and form a merged tile.
    `halo[p, q]` is the number of cells of merged tile q on which the output on merged tile p depends. A number takes
    `size` bytes.
    """

    def __init__(self, domain: Domain, ranks: int, halo: np.ndarray, inputs: int, outputs: int, size: int) -> None:
        self.domain, self.ranks, self.halo, self.size = domain, ranks, halo, size
        self.inputs, self.outputs = inputs, outputs

    def cells(self, rank: int) -> tuple[int, int, int, int]:
        """Return the cells of the tile and of the merged tile of a rank, and the halo that it sends and receives."""
        row, column = divmod(rank, self.domain.tiles[1])
        first, merged = row // self.ranks * self.ranks, row // self.ranks * self.domain.tiles[1] + column
        areas = [_area(self.domain, r * self.domain.tiles[1] + column) for r in range(first, first + self.ranks)]
        return areas[row - first], sum(areas), int(self.halo[:, merged].sum()), int(self.halo[merged].sum())

    def share(self, rank: int, channels: int) -> int:
        """Return the number of channels of a rank."""
        k = rank // self.domain.tiles[1] % self.ranks
        return round((k + 1) * channels / self.ranks) - round(k * channels / self.ranks)

    def first(self, rank: int) -> BytesByKind:
        """Return the bytes of the first convolution: all inputs to all ranks, or sums of outputs if these are fewer."""
        ways = [self._gathered, self._divided]
        least = min(ways, key=lambda way: sum(sum(way(r)[:2]) for r in range(self.domain.ranks)))
        return self._bytes(*least(rank)) | {"norm": 2 * 2 * self.cells(rank)[1] * self.size}

    def second(self, rank: int) -> BytesByKind:
        """Return the bytes of the second convolution: each rank gets the sums for its tile."""
        tile, merged, sent, received = self.cells(rank)
        own, C = self.share(rank, self.inputs), self.outputs
        return self._bytes(own * sent, C * (merged - tile), own * received, C * tile * (self.ranks - 1))

    def _gathered(self, rank: int) -> tuple[int, int, int, int]:
        tile, merged, sent, received = self.cells(rank)
        C = self.inputs
        return C * sent, C * tile * (self.ranks - 1), C * received, C * (merged - tile)

    def _divided(self, rank: int) -> tuple[int, int, int, int]:
        tile, merged, sent, received = self.cells(rank)
        own, made = self.share(rank, self.inputs), self.share(rank, self.outputs)
        forth = (self.inputs - own) * tile + (self.outputs - made) * merged
        return own * sent, forth, own * received, own * (merged - tile) + made * merged * (self.ranks - 1)

    def _bytes(self, halo: int, channels: int, halo_back: int, channels_back: int) -> BytesByKind:
        kinds = ("halo", "channels", "halo gradient", "channels gradient")
        numbers = (halo, channels, halo_back, channels_back)
        return {kind: number * self.size for kind, number in zip(kinds, numbers, strict=True)}


def _area(domain: Domain, rank: int) -> int:
    rows, columns = domain.tile_of(rank)
    return (rows.stop - rows.start) * (columns.stop - columns.start)


def halo_cells(layer: nn.Module, shape: torch.Size, domains: dict[tuple[int, ...], Domain]) -> np.ndarray:
    """Return the number of cells of tile q on which the output of a layer on tile p depends, as [p, q]."""
    if isinstance(layer, Conv2d):
        layer = Conv2d(layer.window.domain, 1, 1, layer.kernel_size[0])
        nn.init.ones_(layer.weight)
    x = torch.ones(1, 1, *shape, requires_grad=True)
    y = layer(x)
    seen, out = domains[tuple(shape)], domains[tuple(y.shape[-2:])]
    cells = np.zeros((out.ranks, out.ranks), int)
    for p in range(out.ranks):
        (gradient,) = torch.autograd.grad(y[..., *out.tile_of(p)].sum(), x, retain_graph=True)
        for q in set(range(out.ranks)) - {p}:
            cells[p, q] = int((gradient[0, 0, *seen.tile_of(q)] != 0).sum())
    return cells


def traffic_table(sent: dict[str, BytesByKind], needed: dict[str, BytesByKind]) -> str:
    """Return a Markdown table of the bytes that a rank of each mesh sends in a step, and of the minimum."""
    lines = [f"| mesh | {' | '.join(TRAFFIC_KINDS)} | sum | minimum |", "|---|" + "---|" * (len(TRAFFIC_KINDS) + 2)]
    for mesh, found in sent.items():
        numbers = [*(found[kind] for kind in TRAFFIC_KINDS), sum(found.values()), sum(needed[mesh].values())]
        lines.append(f"| {mesh} | {' | '.join(f'{number:,}' for number in numbers)} |")
    return "\n".join(lines)
