"""The arithmetic of attention among the members of a forecast, for blocks of cells that stay in the processor's cache.

In every cell, for the members' channels x and the matrices of a layer,

    n = normalised x,   q, k, v = Q n, K n, V n,   x + O sum_j softmax_j(<q_i, k_j> / sqrt(d)) v_j.

The M x M matrices of a cell are too small for one matrix product per cell. Cells are the fastest axis of all arrays
here, so that every operation works on a long row of cells with vector instructions: a product of two matrices is a sum
of products of rows. Only the input is kept for the backward pass, which computes all else again
(docs/decisions/014-layers.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

WEIGHTS_AT_ONCE = 2**16
"""Weights of attention (heads x members x members x cells) in a block: 256 KB, a part of a core's second cache."""
GPU_WEIGHTS_AT_ONCE = 2**25
"""`WEIGHTS_AT_ONCE` on other devices, where every operation on a block is a kernel."""
SHORTEST_ROW = 256
"""Smallest number of cells in a block: on shorter rows, starting an operation takes longer than its arithmetic."""


def attend(
    x: Tensor, members: int, heads: int, mix: Tensor, offset: Tensor, last: Tensor, last_offset: Tensor, eps: float
) -> Tensor:
    """Return x plus its attention, (B M, C, H, W); each `members` consecutive maps of `x` are one forecast.

    `mix` (3 C, C) holds Q / sqrt(d), K and V, `last` (C, C) holds O. `mix` and `offset` include the factors and offsets
    of the normalisation. Numbers are computed in single precision at least.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    matrices = (matrix.to(wide) for matrix in (mix, offset, last, last_offset))
    with _without_autocast(x):
        return _attend(_dense(x), *matrices, heads, members, eps)


@torch.library.custom_op("deepweather::attend", mutates_args=())
def _attend(
    x: Tensor, mix: Tensor, offset: Tensor, last: Tensor, last_offset: Tensor, heads: int, members: int, eps: float
) -> Tensor:
    """Return the result for all cells, block by block."""
    found = torch.empty_like(x)
    for cells, result in zip(_blocks(x, heads, members), _blocks(found, heads, members), strict=True):
        cells = cells.to(mix.dtype, memory_format=torch.contiguous_format)
        attention = _Attention(cells, mix, offset, heads, eps)
        mixed = torch.addmm(last_offset[:, None], last, attention.mixed_values().view(len(last), -1))
        torch.add(cells, mixed.view(cells.shape), out=result)
    return found


@_attend.register_fake
def _(
    x: Tensor, mix: Tensor, offset: Tensor, last: Tensor, last_offset: Tensor, heads: int, members: int, eps: float
) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("deepweather::attend_backward", mutates_args=())
def _attend_backward(
    gradient: Tensor, x: Tensor, mix: Tensor, offset: Tensor, last: Tensor, heads: int, members: int, eps: float
) -> list[Tensor]:
    """Return the gradients of x, mix, offset, last and the offset of last."""
    for_x, sums = torch.empty_like(x), [torch.zeros_like(m) for m in (mix, offset, last, offset[: len(last)])]
    for_mix, for_offset, for_last, for_last_offset = sums
    parts = (_blocks(tensor, heads, members) for tensor in (x, gradient, for_x))
    for cells, slope, result in zip(*parts, strict=True):
        cells, own = (part.to(mix.dtype, memory_format=torch.contiguous_format) for part in (cells, slope))
        attention = _Attention(cells, mix, offset, heads, eps)
        values = attention.mixed_values()
        flat = own.flatten(1)
        for_last.addmm_(flat, values.view(len(last), -1).T)
        for_last_offset += flat.sum(1)
        inner = attention.backward((last.T @ flat).view(values.shape), values).flatten(1)
        for_mix.addmm_(inner, attention.normal.flatten(1).T)
        for_offset += inner.sum(1)
        torch.add(own, attention.before_norm((mix.T @ inner).view(cells.shape)), out=result)
    return [for_x, *sums]


@_attend_backward.register_fake
def _(
    gradient: Tensor, x: Tensor, mix: Tensor, offset: Tensor, last: Tensor, heads: int, members: int, eps: float
) -> list[Tensor]:
    return [torch.empty_like(tensor) for tensor in (x, mix, offset, last, offset[: len(last)])]


def _keep(ctx: Any, inputs: tuple, output: Tensor) -> None:
    x, mix, offset, last, _, *ctx.options = inputs
    ctx.save_for_backward(x, mix, offset, last)


def _differentiate(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    with _without_autocast(gradient):
        found = _attend_backward(_dense(gradient), *ctx.saved_tensors, *ctx.options)
    return *found, None, None, None


_attend.register_autograd(_differentiate, setup_context=_keep)


def _dense(x: Tensor) -> Tensor:
    """Return a field whose rows of cells have one stride, in either of PyTorch's memory formats."""
    return x if x.is_contiguous(memory_format=torch.channels_last) else x.contiguous()


def _without_autocast(x: Tensor) -> AbstractContextManager[Any]:
    kind = x.device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()


def _blocks(x: Tensor, heads: int, members: int) -> Iterator[Tensor]:
    """Yield views (C, M, n) of consecutive cells of every forecast of `x`, (B M, C, H, W)."""
    values = WEIGHTS_AT_ONCE if x.device.type == "cpu" else GPU_WEIGHTS_AT_ONCE
    size = max(values // (heads * members * members), SHORTEST_ROW)
    for forecast in x.flatten(-2).unflatten(0, (-1, members)).transpose(1, 2):
        yield from forecast.split(size, -1)


class _Attention:
    """Attention in one block of cells: `normal` (C, M, n), queries, keys and values (heads, d, M, n).

    `weights` (heads, M, M, n) is the softmax, with the member that attends before the member it attends to.
    """

    def __init__(self, cells: Tensor, mix: Tensor, offset: Tensor, heads: int, eps: float) -> None:
        normal = cells - cells.mean(0)
        self._per_deviation = normal.square().mean(0).add_(eps).rsqrt_()
        self.normal = normal.mul_(self._per_deviation)
        mixed = torch.addmm(offset[:, None], mix, normal.flatten(1))
        self.query, self.key, self.value = mixed.view(3, heads, -1, *normal.shape[1:])
        products = _products(self.query, self.key)
        products -= products.amax(2, keepdim=True)
        self.weights = products.exp_()
        self.weights /= products.sum(2, keepdim=True)

    def mixed_values(self) -> Tensor:
        """Return the values, averaged with the weights, (heads, d, M, n)."""
        return _averages(self.weights, self.value)

    def backward(self, gradient: Tensor, values: Tensor) -> Tensor:
        """Return gradients of queries, keys and values, (3, heads, d, M, n), from the gradient of mixed `values`."""
        found = torch.empty(3, *gradient.shape, dtype=gradient.dtype, device=gradient.device)
        slopes = _products(gradient, self.value)
        slopes -= (gradient * values).sum(1)[:, :, None]
        slopes *= self.weights
        _averages(slopes, self.key, out=found[0])
        _averages(slopes.transpose(1, 2), self.query, out=found[1])
        _averages(self.weights.transpose(1, 2), gradient, out=found[2])
        return found.flatten(0, 2)

    def before_norm(self, gradient: Tensor) -> Tensor:
        """Return the gradient of the cells from the gradient of `normal`, (C, M, n)."""
        gradient -= gradient.mean(0)
        along = (gradient * self.normal).mean(0)
        return gradient.addcmul_(self.normal, along, value=-1).mul_(self._per_deviation)


def _products(first: Tensor, second: Tensor) -> Tensor:
    """Return <first_i, second_j>, (heads, M, M, n), of vectors (heads, d, M, n)."""
    found = first[:, 0, :, None] * second[:, 0, None]
    for i in range(1, first.shape[1]):
        found.addcmul_(first[:, i, :, None], second[:, i, None])
    return found


def _averages(weights: Tensor, vectors: Tensor, out: Tensor | None = None) -> Tensor:
    """Return sum_j weights_ij vectors_j, (heads, d, M, n), for weights (heads, M, M, n)."""
    found = torch.mul(weights[:, None, :, 0], vectors[:, :, None, 0], out=out)
    for j in range(1, weights.shape[2]):
        found.addcmul_(weights[:, None, :, j], vectors[:, :, None, j])
    return found
