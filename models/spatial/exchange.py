"""Exchange: the two operations by which the ranks of a spatial group talk, `fetch` and `allsum`, both differentiable.

They are operators of a PyTorch library, so that `torch.compile` passes them by without a break, and autograd has one
node for each exchange on every rank, also on one that only sends: then the exchanges of the backward pass match.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from weakref import WeakValueDictionary

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from models.spatial.domain import Domain
from models.spatial.plan import Plan, Windows, make_plan

_sent: Counter[str] | None = None


@contextmanager
def counting() -> Iterator[Counter[str]]:
    """Count within this block the bytes that this rank sends, by kind: halo, halo gradient, sum."""
    global _sent
    before, _sent = _sent, Counter()
    try:
        yield _sent
    finally:
        _sent = before


class Exchange:
    """One pattern of exchange on one domain; made once with the layer that needs it.

    `windows` says what each tile row and tile column needs to see. Beyond the edges of the grid the sphere goes on,
    or, with `beyond_zero`, all is zero.
    """

    def __init__(self, domain: Domain, windows: Windows, beyond_zero: bool = False) -> None:
        self.domain, self.group = domain, domain.group
        self.plan = make_plan(domain, windows, beyond_zero)
        self._indices: dict[torch.device, Indices] = {}
        self._number = next(_numbers)
        _EXCHANGES[self._number] = self

    def __call__(self, x: Tensor) -> Tensor:
        """Return the own window (..., h, w) of a field of which every rank has its tile (..., H, W)."""
        if x.shape[-2:] != self.domain.own_shape:
            raise ValueError(
                f"rank {self.domain.rank} of {self.domain.ranks} has a field of {tuple(x.shape[-2:])} cells where its "
                f"tile of {self.domain.grid} has {self.domain.own_shape}"
            )
        if torch.is_autocast_enabled(x.device.type):
            # What is computed with is what travels.
            x = x.to(torch.get_autocast_dtype(x.device.type))
        return _fetch(x, self._number)

    def indices(self, device: torch.device) -> Indices:
        """Return the plan's indices as tensors on `device`."""
        if device not in self._indices:
            self._indices[device] = Indices(self.plan, device)
        return self._indices[device]

    def __deepcopy__(self, memo: dict) -> Exchange:
        """Return the same: nothing in it changes."""
        return self


class Indices:
    """The index arrays of a plan on one device."""

    def __init__(self, plan: Plan, device: torch.device) -> None:
        self.own_to, self.own_from, self.foreign_to, self.foreign_from = (
            torch.from_numpy(array).to(device)
            for array in (plan.own_to, plan.own_from, plan.foreign_to, plan.foreign_from)
        )
        self.sends = [torch.from_numpy(cells).to(device) for cells in plan.sends]


_EXCHANGES: WeakValueDictionary[int, Exchange] = WeakValueDictionary()
"""By number, for an operator of a library takes no objects."""
_numbers = count()


@torch.library.custom_op("deepweather::fetch", mutates_args=())
def _fetch(x: Tensor, exchange: int) -> Tensor:
    this = _EXCHANGES[exchange]
    plan, index, flat = this.plan, this.indices(x.device), x.flatten(-2)
    parcels = [flat.index_select(-1, cells) for cells in index.sends]
    received = _swap(parcels, plan.receives, this.group, "halo")
    window = (x.new_empty if plan.whole else x.new_zeros)(*x.shape[:-2], *plan.shape)
    window[..., *plan.window] = x[..., *plan.tile]
    rim = window.view(*x.shape[:-2], -1)
    rim.index_copy_(-1, index.own_to, flat.index_select(-1, index.own_from))
    if len(index.foreign_to):
        rim.index_copy_(-1, index.foreign_to, received.index_select(-1, index.foreign_from))
    return window


@_fetch.register_fake
def _(x: Tensor, exchange: int) -> Tensor:
    return x.new_empty(*x.shape[:-2], *_EXCHANGES[exchange].plan.shape)


@torch.library.custom_op("deepweather::fetch_adjoint", mutates_args=())
def _fetch_adjoint(gradient: Tensor, exchange: int) -> Tensor:
    this = _EXCHANGES[exchange]
    plan, index, rim = this.plan, this.indices(gradient.device), gradient.flatten(-2)
    tile = gradient.new_zeros(*gradient.shape[:-2], *this.domain.own_shape)
    tile[..., *plan.tile] = gradient[..., *plan.window]
    flat = tile.view(*tile.shape[:-2], -1)
    flat.index_add_(-1, index.own_from, rim.index_select(-1, index.own_to))
    foreign = gradient.new_zeros(*gradient.shape[:-2], sum(plan.receives))
    if len(index.foreign_to):
        foreign.index_add_(-1, index.foreign_from, rim.index_select(-1, index.foreign_to))
    counts = [len(cells) for cells in index.sends]
    returned = _swap(list(foreign.split(plan.receives, -1)), counts, this.group, "halo gradient")
    for cells, part in zip(index.sends, returned.split(counts, -1), strict=True):
        if len(cells):
            flat.index_add_(-1, cells, part)
    return tile


@_fetch_adjoint.register_fake
def _(gradient: Tensor, exchange: int) -> Tensor:
    return gradient.new_empty(*gradient.shape[:-2], *_EXCHANGES[exchange].domain.own_shape)


def _keep(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[Tensor, int], output: Tensor) -> None:
    ctx.exchange = inputs[1]  # type: ignore[attr-defined]


_fetch.register_autograd(lambda ctx, g: (_fetch_adjoint(g.contiguous(), ctx.exchange), None), setup_context=_keep)
_fetch_adjoint.register_autograd(lambda ctx, g: (_fetch(g.contiguous(), ctx.exchange), None), setup_context=_keep)


def _swap(parcels: list[Tensor], counts: list[int] | tuple[int, ...], group: ProcessGroup | None, kind: str) -> Tensor:
    """Send `parcels[q]` (..., n) to rank q of the group and return what comes, `counts[q]` cells from rank q."""
    like = parcels[0]
    received = [like.new_empty(*like.shape[:-1], count) for count in counts]
    operations = []
    for peer, (parcel, place) in enumerate(zip(parcels, received, strict=True)):
        if place.numel():
            operations.append(dist.P2POp(dist.irecv, place, group=group, group_peer=peer))
        if parcel.numel():
            operations.append(dist.P2POp(dist.isend, parcel.contiguous(), group=group, group_peer=peer))
            _count(kind, parcel)
    for work in dist.batch_isend_irecv(operations) if operations else ():
        work.wait()
    return torch.cat(received, -1)


def allsum(x: Tensor, domain: Domain) -> Tensor:
    """Return the sum of `x` over the ranks that share the domain."""
    return _allsum(x, domain.group.group_name) if domain.ranks > 1 and domain.group else x


def assemble(tile: Tensor, domain: Domain) -> Tensor:
    """Return the whole field (..., H, W) of which every rank has its tile; for what is fitted, not for every step."""
    if domain.ranks == 1:
        return tile
    field = tile.new_zeros(*tile.shape[:-2], *domain.shape)
    domain.cut(field).copy_(tile)
    return allsum(field, domain)


@torch.library.custom_op("deepweather::allsum", mutates_args=())
def _allsum(x: Tensor, group: str) -> Tensor:
    total = x.clone()
    dist.all_reduce(total, group=dist.distributed_c10d._resolve_process_group(group))  # type: ignore[arg-type]
    _count("sum", x)
    return total


@_allsum.register_fake
def _(x: Tensor, group: str) -> Tensor:
    return torch.empty_like(x)


def _keep_group(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[Tensor, str], output: Tensor) -> None:
    ctx.group = inputs[1]  # type: ignore[attr-defined]


_allsum.register_autograd(lambda ctx, g: (_allsum(g.contiguous(), ctx.group), None), setup_context=_keep_group)


def _count(kind: str, parcel: Tensor) -> None:
    if _sent is not None:
        _sent[kind] += parcel.numel() * parcel.element_size()
