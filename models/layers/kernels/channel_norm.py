"""Layer normalisation over the channels of each cell, followed by GELU, in one kernel for each direction.

PyTorch's kernel gives a row of numbers to a block of threads, which leaves most of them idle for 16 to 64 channels.
Here a program has a tile of cells and channels. The normalised numbers are not written to memory and not kept for the
backward pass, which computes them again.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

_NUMBERS = 2048
"""Numbers of the tile of a program."""
_PROGRAMS = 1024
"""Most programs of the backward pass; each adds up the gradients of the parameters over its tiles."""
_EPSILON = tl.constexpr(1e-5)
_ROOT_HALF = tl.constexpr(0.7071067811865476)
_DENSITY = tl.constexpr(0.3989422804014327)
"""1/√(2π), the normal density at 0."""


def channel_norm(x: Tensor, weight: Tensor, bias: Tensor, gelu: bool) -> Tensor:
    """Return the normalised maps of `x` (B, C, H, W), with channels last in memory and the type of `x`."""
    found: Tensor = _ChannelNorm.apply(x.contiguous(memory_format=torch.channels_last), weight, bias, gelu)
    return found


class _ChannelNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, gelu: bool) -> Tensor:
        cells, C, P, rows = _sizes(x)
        y = torch.empty_like(x)
        _forward[(triton.cdiv(cells, rows),)](x, weight, bias, y, cells, C, P, rows, gelu)
        ctx.save_for_backward(x, weight, bias)
        ctx.gelu = gelu
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias = ctx.saved_tensors
        cells, C, P, rows = _sizes(x)
        tiles = triton.cdiv(cells, rows)
        programs = min(tiles, _PROGRAMS)
        found = torch.empty_like(x)
        sums = torch.empty(2, programs, P, dtype=torch.float32, device=x.device)
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        _backward[(programs,)](
            x, weight, bias, gradient, found, sums, cells, triton.cdiv(tiles, programs), C, P, rows, ctx.gelu
        )
        for_weight, for_bias = sums.sum(1)[:, :C]
        return found, for_weight.to(weight), for_bias.to(bias), None


def _sizes(x: Tensor) -> tuple[int, int, int, int]:
    """Return the numbers of cells and channels of `x`, and the channels and cells of a tile, powers of two."""
    C = x.shape[1]
    P: int = triton.next_power_of_2(C)
    return x.numel() // C, C, P, max(1, _NUMBERS // P)


@triton.jit
def _units(x, weight, bias, tile, cells, C: tl.constexpr, P: tl.constexpr, ROWS: tl.constexpr):
    """Return the mask and the places of a tile, its normalised numbers, and those with weight and bias."""
    row, channel = tl.arange(0, ROWS), tl.arange(0, P)
    first = tile.to(tl.int64) * ROWS
    mask = (first + row < cells)[:, None] & (channel < C)[None, :]
    at = first * C + row[:, None] * C + channel[None, :]
    value = tl.load(x + at, mask, other=0.0).to(tl.float32)
    departure = tl.where(mask, value - (tl.sum(value, 1) / C)[:, None], 0.0)
    per_deviation = 1 / tl.sqrt(tl.sum(departure * departure, 1) / C + _EPSILON)
    normal = departure * per_deviation[:, None]
    factor = tl.load(weight + channel, channel < C, other=0.0).to(tl.float32)
    offset = tl.load(bias + channel, channel < C, other=0.0).to(tl.float32)
    return mask, at, per_deviation, normal, factor, normal * factor[None, :] + offset[None, :]


@triton.jit(do_not_specialize=["cells"])
def _forward(x, weight, bias, y, cells, C: tl.constexpr, P: tl.constexpr, ROWS: tl.constexpr, GELU: tl.constexpr):
    mask, at, _, _, _, unit = _units(x, weight, bias, tl.program_id(0), cells, C, P, ROWS)
    if GELU:
        unit = 0.5 * unit * (1 + tl.erf(unit * _ROOT_HALF))
    tl.store(y + at, unit.to(y.dtype.element_ty), mask)


@triton.jit(do_not_specialize=["cells", "steps"])
def _backward(
    x, weight, bias, gradient, found, sums, cells, steps,
    C: tl.constexpr, P: tl.constexpr, ROWS: tl.constexpr, GELU: tl.constexpr,
):  # fmt: skip
    program, programs = tl.program_id(0), tl.num_programs(0)
    for_weight, for_bias = tl.zeros((ROWS, P), tl.float32), tl.zeros((ROWS, P), tl.float32)
    for step in range(steps):
        mask, at, per_deviation, normal, factor, unit = _units(
            x, weight, bias, step * programs + program, cells, C, P, ROWS
        )
        later = tl.load(gradient + at, mask, other=0.0).to(tl.float32)
        if GELU:
            share = 0.5 * (1 + tl.erf(unit * _ROOT_HALF))
            later = later * (share + unit * _DENSITY * tl.exp(-0.5 * unit * unit))
        for_weight += later * normal
        for_bias += later
        later = later * factor[None, :]
        level, slope = tl.sum(later, 1) / C, tl.sum(later * normal, 1) / C
        own = per_deviation[:, None] * (later - level[:, None] - normal * slope[:, None])
        tl.store(found + at, own.to(found.dtype.element_ty), mask)
    channel = tl.arange(0, P)
    tl.store(sums + program * P + channel, tl.sum(for_weight, 0))
    tl.store(sums + (programs + program) * P + channel, tl.sum(for_bias, 0))
