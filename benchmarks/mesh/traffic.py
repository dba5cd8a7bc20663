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
from models.layers.norms import GroupNorm
from models.parallel.domain import Domain

TRAFFIC_KINDS = ("halo", "halo gradient", "norm", "loss", "gradient")
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
    with counter.counting():
        loss = shared()
        counter.halo, counter.sums = "halo gradient", "norm"
        loss.backward()
    handle.remove()
    return counter


def minimal_traffic(step: nn.Module, model: nn.Module, grid: Grid, bands: int, sectors: int) -> list[BytesByKind]:
    """Return the bytes that the rank of each tile must send, computed from the same step on one process.

    The halo of a layer consists of the cells of other tiles on which its output on the own tile depends (their
    derivative is not zero), times channels. The backward pass returns as many numbers if the layer's input has a
    gradient. A norm sums two float64 for each sample and group, forward and backward; the loss sums two. Gradients are
    summed once.
    """
    seen: list[tuple[nn.Module, Tensor]] = []
    layers = [layer for layer in model.modules() if hasattr(layer, "window") or isinstance(layer, GroupNorm)]
    handles = [layer.register_forward_hook(lambda layer, inputs, _: seen.append((layer, *inputs))) for layer in layers]
    step()
    for handle in handles:
        handle.remove()
    domain = Domain.split(grid, bands, sectors)
    domains = {domain.shape: domain}
    while min(domain.shape) > 2 and domain.shape != min(x.shape[-2:] for _, x in seen):
        domain = domain.coarsen()
        domains[domain.shape] = domain
    groups = sum(len(x) * layer.num_groups for layer, x in seen if isinstance(layer, GroupNorm))
    sums = {
        "norm": 2 * 2 * 8 * groups * (domain.ranks > 1),
        "loss": 2 * 8,
        "gradient": sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad),
    }
    result = [{"halo": 0, "halo gradient": 0} | sums for _ in range(bands * sectors)]
    known: dict[object, np.ndarray] = {}
    for layer, x in seen:
        if isinstance(layer, GroupNorm):
            continue
        key = type(layer), x.shape[-2:], getattr(layer, "kernel_size", None), getattr(layer, "stride", None)
        if key not in known:
            known[key] = halo_cells(layer, x.shape[-2:], domains)
        each = len(x) * x.shape[1] * x.element_size()
        for rank, bytes_of in enumerate(result):
            bytes_of["halo"] += int(known[key][:, rank].sum()) * each
            bytes_of["halo gradient"] += int(known[key][rank].sum()) * each * x.requires_grad
    return result


def halo_cells(layer: nn.Module, shape: torch.Size, domains: dict[tuple[int, ...], Domain]) -> np.ndarray:
    """Return the number of cells of tile q on which the output of a layer on tile p depends, as [p, q]."""
    if isinstance(layer, Conv2d):
        layer = Conv2d(layer.window.domain, 1, 1, layer.kernel_size[0], layer.stride[0])
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
