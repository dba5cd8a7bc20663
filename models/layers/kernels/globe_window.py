"""Windows of a globe and their gradients, each in one kernel; `layers.padding.GlobeWindow` copies patch by patch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

_NUMBERS = 1024
"""Numbers of a row of the result that a program computes."""
_SIZES = ["H", "W", "h", "w", "start", "half"]
"""Arguments for whose values Triton must not compile the kernels again."""


@dataclass(frozen=True, eq=False)
class WindowTables:
    """Where the rows of a window come from, on one device.

    `sources` (h) has the row of the field for each row of the window, and -1 minus it for a row beyond a pole. `places`
    (H, n) has for each row of the field the rows of the window that copy it: 1 plus the row, negative if it lies beyond
    a pole, 0 for none. `start` is the field's column of the first column of the window.
    """

    sources: Tensor
    places: Tensor
    start: int
    periodic: bool
    shape: tuple[int, int]
    window: tuple[int, int]

    @classmethod
    def of(
        cls, rows: np.ndarray, beyond: np.ndarray, start: int, periodic: bool,
        shape: tuple[int, int], window: tuple[int, int], device: torch.device,
    ) -> WindowTables:  # fmt: skip
        """Return the tables of a window whose row i copies `rows[i]`, which lies `beyond` a pole or not."""
        places: list[list[int]] = [[] for _ in range(shape[0])]
        for place, (row, turned) in enumerate(zip(rows.tolist(), beyond.tolist(), strict=True), start=1):
            places[row].append(-place if turned else place)
        most = max(map(len, places))
        full = np.array([each + [0] * (most - len(each)) for each in places], np.int32)
        sources = np.where(beyond, -1 - rows, rows).astype(np.int32)
        on_device, by_row = torch.from_numpy(sources).to(device), torch.from_numpy(full).to(device)
        return cls(on_device, by_row, start, periodic, shape, window)

    def gather(self, x: Tensor, parity: Tensor | None) -> Tensor:
        """Return the window of `x` (B, C, H, W), with channels last in memory."""
        x, found = _last(x), _empty(x, *self.window)
        B, C, h, w = found.shape
        _gather[B, h, triton.cdiv(w * C, _NUMBERS)](
            x, self.sources, x if parity is None else parity, found, *self.shape, h, w, self.start,
            self.shape[1] // 2, C, self.periodic, parity is not None, _NUMBERS,
        )  # fmt: skip
        return found

    def scatter(self, gradient: Tensor, parity: Tensor | None) -> Tensor:
        """Return the gradient of the field (B, C, H, W) from the gradient of its window."""
        gradient, found = _last(gradient), _empty(gradient, *self.shape)
        (h, w), (B, C, H, W) = self.window, found.shape
        before = max(-self.start, 0)
        repeats = triton.cdiv(w, W) if self.periodic else before + max(self.start + w - W, 0) + 1
        _scatter[B, H, triton.cdiv(W * C, _NUMBERS)](
            gradient, self.places, gradient if parity is None else parity, found, H, W, h, w, self.start, before,
            W // 2, C, self.places.shape[1], repeats, self.periodic, parity is not None, _NUMBERS,
        )  # fmt: skip
        return found


def _last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def _empty(like: Tensor, rows: int, columns: int) -> Tensor:
    shape = *like.shape[:2], rows, columns
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)


@triton.jit(do_not_specialize=_SIZES)
def _gather(
    x, sources, signs, found, H, W, h, w, start, half,
    C: tl.constexpr, PERIODIC: tl.constexpr, SIGNED: tl.constexpr, NUMBERS: tl.constexpr,
):  # fmt: skip
    batch, i = tl.program_id(0), tl.program_id(1)
    at = tl.program_id(2) * NUMBERS + tl.arange(0, NUMBERS)
    inside = at < w * C
    column, k = at // C + start, at % C
    source = tl.load(sources + i)
    turned = source < 0
    row = tl.where(turned, -1 - source, source)
    column = column - tl.where(turned, half, 0)
    column = (column % W + W) % W if PERIODIC else tl.minimum(tl.maximum(column, 0), W - 1)
    value = tl.load(x + (batch.to(tl.int64) * H + row) * (W * C) + column * C + k, inside, other=0.0)
    if SIGNED:
        value = value * tl.where(turned, tl.load(signs + k, inside, other=1.0), 1.0).to(value.dtype)
    tl.store(found + (batch.to(tl.int64) * h + i) * (w * C) + at, value, inside)


@triton.jit(do_not_specialize=[*_SIZES, "before"])
def _scatter(
    gradient, places, signs, found, H, W, h, w, start, before, half, C: tl.constexpr, MOST: tl.constexpr,
    REPEATS: tl.constexpr, PERIODIC: tl.constexpr, SIGNED: tl.constexpr, NUMBERS: tl.constexpr,
):  # fmt: skip
    batch, row = tl.program_id(0), tl.program_id(1)
    at = tl.program_id(2) * NUMBERS + tl.arange(0, NUMBERS)
    inside = at < W * C
    column, k = at // C, at % C
    total = tl.zeros((NUMBERS,), tl.float32)
    for n in tl.static_range(MOST):
        place = tl.load(places + row * MOST + n)
        if place != 0:
            turned = place < 0
            i = tl.where(turned, -place, place) - 1
            first = column - start + tl.where(turned, half, 0)
            if PERIODIC:
                first = (first % W + W) % W
            for repeat in tl.static_range(REPEATS):
                if PERIODIC:
                    j = first + repeat * W
                    copied = inside & (j < w)
                else:
                    j = first + repeat - before
                    seen = tl.minimum(tl.maximum(j + start, 0), W - 1)
                    copied = inside & (j >= 0) & (j < w) & (seen == column)
                part = tl.load(gradient + (batch.to(tl.int64) * h + i) * (w * C) + j * C + k, copied, other=0.0)
                part = part.to(tl.float32)
                if SIGNED:
                    part = part * tl.where(turned, tl.load(signs + k, inside, other=1.0), 1.0)
                total += part
    tl.store(found + (batch.to(tl.int64) * H + row) * (W * C) + at, total.to(found.dtype.element_ty), inside)
