"""Communication within a spatial group of ranks: halo exchange (`Exchange`) and sum (`allsum`), both differentiable.

Both are operators of a PyTorch library: `torch.compile` has no graph break, and autograd has one node for each exchange
on every rank, also on a rank that only sends, so that the exchanges of the backward pass match.

Objects keep the name of a process group, not the group: the group's threads live as long as a reference does, and a
thread that releases a tensor while Python ends aborts the process (https://github.com/pytorch/pytorch/pull/179291).
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from weakref import WeakValueDictionary

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from models.parallel.domain import Domain
from models.parallel.halo import HaloPlan, Intervals, plan_halo
from models.parallel.memory_format import empty_field

_sent: Counter[str] | None = None


@contextmanager
def count_sent_bytes() -> Iterator[Counter[str]]:
    """Count the bytes that this rank sends inside the block, by kind: halo, channels, their gradients, sum."""
    global _sent
    before, _sent = _sent, Counter()
    try:
        yield _sent
    finally:
        _sent = before


class Exchange:
    """The halo exchange of one layer on one domain, from tiles (..., H, W) to windows (..., h, w).

    `windows` are the rows that each tile row needs and the columns that each tile column needs. Beyond the edges of the
    grid the sphere is continued, or, with `beyond_zero`, cells are zero; a periodic grid has no edge in longitude.
    """

    def __init__(self, domain: Domain, windows: tuple[Intervals, Intervals], beyond_zero: bool = False) -> None:
        self.domain, self.group = domain, domain.group
        self.plan = plan_halo(domain, windows, beyond_zero)
        self._indices: dict[torch.device, DeviceIndices] = {}
        self.number = next(_numbers)
        EXCHANGES[self.number] = self

    def __call__(self, x: Tensor) -> Tensor:
        """Return this rank's window (..., h, w) of a field, from its tile (..., H, W)."""
        self.check(x)
        return _fetch(to_compute_dtype(x), self.number)

    def check(self, x: Tensor) -> None:
        """Raise ValueError for a field whose shape is not the shape of this rank's tile."""
        if x.shape[-2:] != self.domain.own_shape:
            raise ValueError(
                f"rank {self.domain.rank} of {self.domain.ranks} has a field of {tuple(x.shape[-2:])} cells where its "
                f"tile of {self.domain.grid} has {self.domain.own_shape}"
            )

    def send(self, x: Tensor) -> Swap:
        """Start sending the cells of the tile `x` that other ranks need, and receiving theirs for `fill`."""
        flat = x.flatten(-2)
        parcels = [flat.index_select(-1, cells) for cells in self.indices(x.device).sends]
        places = [flat.new_empty(*flat.shape[:-1], count) for count in self.plan.receives]
        return Swap(parcels, places, self.group, "halo")

    def begin(self, x: Tensor) -> Tensor:
        """Return this rank's window with the cells of the tile `x`; cells of other ranks are uninitialised."""
        plan, index = self.plan, self.indices(x.device)
        window = empty_field(x, *plan.shape)
        if not plan.fully_covered:
            window.zero_()
        window[..., *plan.window] = x[..., *plan.tile]
        _cells(window).index_copy_(-1, index.own_to, x.flatten(-2).index_select(-1, index.own_from))
        return window

    def fill(self, window: Tensor, received: Sequence[Tensor]) -> None:
        """Put the cells received from other ranks into the window."""
        index = self.indices(window.device)
        if len(index.foreign_to):
            cells = torch.cat(list(received), -1).index_select(-1, index.foreign_from)
            _cells(window).index_copy_(-1, index.foreign_to, cells)

    def send_back(self, foreign: Tensor) -> Swap:
        """Start sending the gradient of received cells, and receiving the gradient of sent cells for `add`."""
        places = [foreign.new_empty(*foreign.shape[:-1], len(cells)) for cells in self.plan.sends]
        return Swap(foreign.split(self.plan.receives, -1), places, self.group, "halo gradient")

    def begin_back(self, gradient: Tensor) -> Tensor:
        """Return the part of the gradient of this rank's tile that comes from the gradient of its window."""
        plan, index = self.plan, self.indices(gradient.device)
        whole = all(part == slice(0, size) for part, size in zip(plan.tile, self.domain.own_shape, strict=True))
        tile = empty_field(gradient, *self.domain.own_shape)
        if not whole:
            tile.zero_()
        tile[..., *plan.tile] = gradient[..., *plan.window]
        _cells(tile).index_add_(-1, index.own_from, gradient.flatten(-2).index_select(-1, index.own_to))
        return tile

    def add(self, tile: Tensor, returned: Sequence[Tensor]) -> None:
        """Add the gradients that other ranks have returned for the cells sent to them."""
        flat, sends = _cells(tile), self.indices(tile.device).sends
        for cells, part in zip(sends, returned, strict=True):
            if len(cells):
                flat.index_add_(-1, cells, part)

    def indices(self, device: torch.device) -> DeviceIndices:
        """Return the plan's indices as tensors on `device`."""
        if device not in self._indices:
            self._indices[device] = DeviceIndices(self.plan, device)
        return self._indices[device]

    def __deepcopy__(self, memo: dict) -> Exchange:
        """Return the same object, which never changes."""
        return self


class DeviceIndices:
    """The index arrays of a plan on one device."""

    def __init__(self, plan: HaloPlan, device: torch.device) -> None:
        self.own_to, self.own_from, self.foreign_to, self.foreign_from = (
            torch.from_numpy(array).to(device)
            for array in (plan.own_to, plan.own_from, plan.foreign_to, plan.foreign_from)
        )
        self.sends = [torch.from_numpy(cells).to(device) for cells in plan.sends]


EXCHANGES: WeakValueDictionary[int, Exchange] = WeakValueDictionary()
"""Exchanges by number: an operator of a library cannot take a Python object."""
_numbers = count()


@torch.library.custom_op("deepweather::fetch", mutates_args=())
def _fetch(x: Tensor, exchange: int) -> Tensor:
    this = EXCHANGES[exchange]
    swap = this.send(x)
    window = this.begin(x)
    this.fill(window, swap.finish())
    return window


@_fetch.register_fake
def _(x: Tensor, exchange: int) -> Tensor:
    return empty_field(x, *EXCHANGES[exchange].plan.shape)


@torch.library.custom_op("deepweather::fetch_adjoint", mutates_args=())
def _fetch_adjoint(gradient: Tensor, exchange: int) -> Tensor:
    this = EXCHANGES[exchange]
    index = this.indices(gradient.device)
    foreign = gradient.new_zeros(*gradient.shape[:-2], sum(this.plan.receives))
    if len(index.foreign_to):
        foreign.index_add_(-1, index.foreign_from, gradient.flatten(-2).index_select(-1, index.foreign_to))
    swap = this.send_back(foreign)
    tile = this.begin_back(gradient)
    this.add(tile, swap.finish())
    return tile


@_fetch_adjoint.register_fake
def _(gradient: Tensor, exchange: int) -> Tensor:
    return empty_field(gradient, *EXCHANGES[exchange].domain.own_shape)


def _keep(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[Tensor, int], output: Tensor) -> None:
    ctx.exchange = inputs[1]  # type: ignore[attr-defined]


_fetch.register_autograd(lambda ctx, g: (_fetch_adjoint(g, ctx.exchange), None), setup_context=_keep)
_fetch_adjoint.register_autograd(lambda ctx, g: (_fetch(g, ctx.exchange), None), setup_context=_keep)


class Swap:
    """Messages among all ranks of a group, sent and received between construction and `finish`.

    `sent[q]` goes to rank q of the group, and `received[q]` is filled by rank q; tensors without numbers are skipped.
    All stay in memory until the end of `finish` or, after an exception, until `destroy_groups`. Otherwise a thread of
    the group could use memory that belongs to another tensor by then, and the next exchange could wait forever for a
    message that came for this one.
    """

    def __init__(self, sent: Sequence[Tensor], received: Sequence[Tensor], group: str, kind: str) -> None:
        self._sent, self._received = [parcel.contiguous() for parcel in sent], list(received)
        messages = []
        for peer, (parcel, place) in enumerate(zip(self._sent, self._received, strict=True)):
            if place.numel():
                messages.append(dist.P2POp(dist.irecv, place, group=process_group(group), group_peer=peer))
            if parcel.numel():
                messages.append(dist.P2POp(dist.isend, parcel, group=process_group(group), group_peer=peer))
                count_sent(kind, parcel)
        _UNDER_WAY.add(self)
        self._works = dist.batch_isend_irecv(messages) if messages else []

    def finish(self) -> list[Tensor]:
        """Wait for all messages; return the received tensors, in the order of the ranks."""
        for work in self._works:
            work.wait()
        _UNDER_WAY.discard(self)
        return self._received


_UNDER_WAY: set[Swap] = set()


def _cells(field: Tensor) -> Tensor:
    """Return a writable view (..., H W) of a field, which may have no cells."""
    return field.view(*field.shape[:-2], field.shape[-2] * field.shape[-1])


def to_compute_dtype(x: Tensor) -> Tensor:
    """Return `x` in the data type of autocast where it is on, so that ranks send no more bytes than they use."""
    kind = x.device.type
    if x.dtype is torch.float64 or not (torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)):
        return x
    return x.to(torch.get_autocast_dtype(kind))


def allsum(x: Tensor, domain: Domain) -> Tensor:
    """Return the sum of `x` over the ranks that share the domain; differentiable."""
    return sum_over(domain.sharers, x)


def sum_over(group: str, x: Tensor) -> Tensor:
    """Return the sum of `x` over the ranks of the group of this name, `x` itself for an empty name."""
    return _allsum(x, group) if group else x


def assemble(tile: Tensor, domain: Domain) -> Tensor:
    """Return the whole field (..., H, W) from the tiles of all ranks; too slow for every step."""
    if domain.ranks == 1:
        return tile
    field = tile.new_zeros(*tile.shape[:-2], *domain.shape)
    domain.cut(field).copy_(tile)
    return allsum(field, domain)


@torch.library.custom_op("deepweather::allsum", mutates_args=())
def _allsum(x: Tensor, group: str) -> Tensor:
    # all_reduce adds raw memory, so all ranks need the same memory order, whatever the strides of `x`.
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=process_group(group))
    count_sent("sum", x)
    return total


@_allsum.register_fake
def _(x: Tensor, group: str) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _keep_group(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[Tensor, str], output: Tensor) -> None:
    ctx.group = inputs[1]  # type: ignore[attr-defined]


_allsum.register_autograd(lambda ctx, g: (_allsum(g.contiguous(), ctx.group), None), setup_context=_keep_group)


def process_group(name: str) -> ProcessGroup:
    """Return the process group of this name."""
    return dist.distributed_c10d._resolve_process_group(name)  # type: ignore[arg-type]


def destroy_groups() -> None:
    """End all process groups and their threads, at exit; cyclic garbage may hold further references to them."""
    if dist.is_initialized():
        dist.destroy_process_group()
    _UNDER_WAY.clear()
    gc.collect()


def count_sent(kind: str, parcel: Tensor) -> None:
    """Add the bytes of a parcel that this rank sends to the counts of `count_sent_bytes`."""
    if _sent is not None:
        _sent[kind] += parcel.numel() * parcel.element_size()
