"""Factors of whole channels for dropout, in one kernel instead of some thirty; `layers.dropout` explains the hash."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_LOW_34, _LOW_37, _LOW_33 = (tl.constexpr((1 << bits) - 1) for bits in (34, 37, 33))
_FIRST, _SECOND = tl.constexpr(0xBF58476D1CE4E5B9 - (1 << 64)), tl.constexpr(0x94D049BB133111EB - (1 << 64))


def channel_factors(keys: Tensor, rows: int, C: int, first: int, limit: int, stretch: float, like: Tensor) -> Tensor:
    """Return factors (rows, C) in the type of `like`: `stretch` where the number of a channel reaches `limit`, else 0.

    `keys` (B,) belong to forecasts, each of which has rows / B consecutive rows. `first` numbers the first channel.
    """
    found = torch.empty(rows, C, dtype=like.dtype, device=like.device)
    _factors[(rows,)](keys, found, rows // len(keys), first, limit, stretch, C, triton.next_power_of_2(C))
    return found


@triton.jit
def _mixed(x):
    x = (x ^ ((x >> 30) & _LOW_34)) * _FIRST
    x = (x ^ ((x >> 27) & _LOW_37)) * _SECOND
    return x ^ ((x >> 31) & _LOW_33)


@triton.jit(do_not_specialize=["members", "first", "limit"])
def _factors(keys, found, members, first, limit, stretch, C: tl.constexpr, P: tl.constexpr):
    row, channel = tl.program_id(0), tl.arange(0, P)
    key = tl.load(keys + row // members)
    number = _mixed(key + _mixed((first + channel).to(tl.int64))) >> 32
    factor = tl.where(number >= limit, stretch, 0.0)
    tl.store(found + row * C + channel, factor.to(found.dtype.element_ty), channel < C)
