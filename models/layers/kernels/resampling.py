"""Weighted means at every second row and column, and their adjoint, which spreads each number over its neighbours.

A smooth halving of the resolution is the first, an interpolation to twice the resolution the second, and each is the
gradient of the other. cuDNN's kernels for convolutions of single channels take ten times as long.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_NUMBERS = 1024
"""Numbers of a row of the result that a program computes."""
_SIZES = ["H", "W", "h", "w", "top", "left"]
"""Arguments for whose values Triton must not compile the kernels again."""


def means_of_two(x: Tensor, shares: tuple[float, ...], before: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """Return the coarse maps (B, C, *size) of the fine maps `x`.

    Coarse row i has the `shares` of the fine rows from 2 i - before on; fine rows outside `x` are 0. So have columns.
    """
    return _resampled(_means, x, shares, before, size)


def spread_to_two(x: Tensor, shares: tuple[float, ...], before: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """Return the fine maps (B, C, *size) of the coarse maps `x`: the adjoint of `means_of_two`."""
    return _resampled(_spread, x, shares, before, size)


def _resampled(
    kernel: triton.JITFunction, x: Tensor, shares: tuple[float, ...], before: tuple[int, int], size: tuple[int, int]
) -> Tensor:
    (B, C), last = x.shape[:2], torch.channels_last
    x = x.contiguous(memory_format=last)
    found = torch.empty((B, C, *size), dtype=x.dtype, device=x.device, memory_format=last)
    # Shares are symmetric: one or two inner ones between two outer ones.
    kernel[B, size[0], triton.cdiv(size[1] * C, _NUMBERS)](
        x, found, *x.shape[2:], *size, *before, C, len(shares), shares[0], shares[1], _NUMBERS
    )
    return found


@triton.jit(do_not_specialize=_SIZES)
def _means(
    x, found, H, W, h, w, top, left,
    C: tl.constexpr, N: tl.constexpr, OUTER: tl.constexpr, INNER: tl.constexpr, NUMBERS: tl.constexpr,
):  # fmt: skip
    batch, row = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = tl.program_id(2) * NUMBERS + tl.arange(0, NUMBERS)
    inside, column, k = at < w * C, at // C, at % C
    total = tl.zeros((NUMBERS,), tl.float32)
    for p in tl.static_range(N):
        i = 2 * row + p - top
        if (i >= 0) & (i < H):
            for q in tl.static_range(N):
                j = 2 * column + q - left
                value = tl.load(x + (batch * H + i) * (W * C) + j * C + k, inside & (j >= 0) & (j < W), other=0.0)
                share = (OUTER if p == 0 or p == N - 1 else INNER) * (OUTER if q == 0 or q == N - 1 else INNER)
                total += share * value.to(tl.float32)
    tl.store(found + (batch * h + row) * (w * C) + at, total.to(found.dtype.element_ty), inside)


@triton.jit(do_not_specialize=_SIZES)
def _spread(
    x, found, H, W, h, w, top, left,
    C: tl.constexpr, N: tl.constexpr, OUTER: tl.constexpr, INNER: tl.constexpr, NUMBERS: tl.constexpr,
):  # fmt: skip
    batch, row = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = tl.program_id(2) * NUMBERS + tl.arange(0, NUMBERS)
    inside, column, k = at < w * C, at // C, at % C
    total = tl.zeros((NUMBERS,), tl.float32)
    for p in tl.static_range(N):
        i = row + top - p
        if (i >= 0) & (i % 2 == 0) & (i // 2 < H):
            for q in tl.static_range(N):
                j = column + left - q
                there = inside & (j >= 0) & (j % 2 == 0) & (j // 2 < W)
                value = tl.load(x + (batch * H + i // 2) * (W * C) + j // 2 * C + k, there, other=0.0)
                share = (OUTER if p == 0 or p == N - 1 else INNER) * (OUTER if q == 0 or q == N - 1 else INNER)
                total += share * value.to(tl.float32)
    tl.store(found + (batch * h + row) * (w * C) + at, total.to(found.dtype.element_ty), inside)
