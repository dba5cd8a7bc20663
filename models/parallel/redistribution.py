"""Redistribution: tensors of a channel axis, from tiles with all channels to merged tiles with some channels, and back.

Between wide layers every rank has all channels of its own tile. Inside a wide layer every rank has some channels of the
merged tile, which consists of the tiles of all ranks of the axis. Each function here sends every number at most once to
each rank that needs it. Its derivative is the function in the opposite direction.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from models.parallel.domain import ChannelAxis, Cuts, Domain
from models.parallel.exchange import Swap, to_compute_dtype

NOWHERE, CHANNELS, ROWS = 0, 1, 2
"""Axes of (B, C, H, W). To split at `NOWHERE` sends everything to every rank, to join at `NOWHERE` adds the tensors."""


def merge_tiles(x: Tensor, domain: Domain) -> Tensor:
    """Return (B, C, merged tile) from (B, C, tile)."""
    return _move(x, domain, NOWHERE, (), ROWS, domain.merged_rows())


def divide_channels(x: Tensor, domain: Domain) -> Tensor:
    """Return (B, this rank's channels, merged tile) from (B, C, tile)."""
    return _move(x, domain, CHANNELS, domain.channel_cuts(x.shape[1]), ROWS, domain.merged_rows())


def sum_channels(x: Tensor, domain: Domain) -> Tensor:
    """Return (B, this rank's channels, merged tile) of the sum over the ranks of `x` (B, C, merged tile)."""
    return _move(x, domain, CHANNELS, domain.channel_cuts(x.shape[1]), NOWHERE, ())


def sum_tiles(x: Tensor, domain: Domain) -> Tensor:
    """Return (B, C, tile) of the sum over the ranks of `x` (B, C, merged tile)."""
    return _move(x, domain, ROWS, domain.merged_rows(), NOWHERE, ())


def _move(x: Tensor, domain: Domain, split: int, split_cuts: Cuts, join: int, join_cuts: Cuts) -> Tensor:
    axis = domain.channel_axis
    assert isinstance(axis, ChannelAxis)
    x = to_compute_dtype(x)
    return _redistribute(x, split, split_cuts, join, join_cuts, axis.group, axis.ranks, domain.channel_rank, "channels")


# An operator, as in `exchange`: one node of autograd on every rank, and no graph break of a compiler.
@torch.library.custom_op("deepweather::redistribute", mutates_args=())
def _redistribute(
    x: Tensor, split: int, split_cuts: Sequence[int], join: int, join_cuts: Sequence[int], group: str, ranks: int,
    rank: int, kind: str,
) -> Tensor:  # fmt: skip
    pieces = [x.narrow(split, a, b - a) for a, b in pairwise(split_cuts)] if split else [x] * ranks
    shape, own, nothing = list(pieces[rank].shape), pieces[rank], x.new_empty(0)
    places = []
    for peer in range(ranks):
        if join:
            shape[join] = join_cuts[peer + 1] - join_cuts[peer]
        places.append(nothing if peer == rank else x.new_empty(shape))
    pieces[rank] = nothing
    received = Swap(pieces, places, group, kind).finish()
    received[rank] = own
    if join:
        return torch.cat(received, join)
    # Tensors are added in the order of the ranks, so that a sum does not depend on the order of arrival.
    total = received[0] + received[1]
    for piece in received[2:]:
        total += piece
    return total


@_redistribute.register_fake
def _(
    x: Tensor, split: int, split_cuts: Sequence[int], join: int, join_cuts: Sequence[int], group: str, ranks: int,
    rank: int, kind: str,
) -> Tensor:  # fmt: skip
    shape = list(x.shape)
    if split:
        shape[split] = split_cuts[rank + 1] - split_cuts[rank]
    if join:
        shape[join] = join_cuts[-1]
    return x.new_empty(shape)


def _keep(ctx: Any, inputs: tuple, output: Tensor) -> None:
    ctx.options = inputs[1:]


def _send_back(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    split, split_cuts, join, join_cuts, *rest, kind = ctx.options
    back = _redistribute(gradient, join, join_cuts, split, split_cuts, *rest, f"{kind} gradient")
    return back, *[None] * 8


_redistribute.register_autograd(_send_back, setup_context=_keep)
