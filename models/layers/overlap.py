"""A convolution that computes while its halo is exchanged (docs/decisions/013-overlap-channels-automatic-mesh.md).

The forward pass convolves the whole window with zeros in the halo. When the halo has arrived, it computes the rim
again, the few outputs that depend on the halo. The backward pass first computes and sends the gradient of the halo; the
gradients of this rank's cells and of the weights follow during the transfer. The messages are the same as in
`Exchange`.

Both passes are operators of a PyTorch library with one exchange each, as in `Exchange`. So a rank that overlaps can
exchange halos with a rank that does not overlap because most of its tile is rim.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from models.parallel.exchange import EXCHANGES, Exchange, Swap, to_compute_dtype
from models.parallel.halo import HaloPlan
from models.parallel.memory_format import empty_field

Rectangle = tuple[slice, slice]
"""Rows and columns."""

WORTHWHILE = {"cpu": 3e8, "cuda": 3e10}
"""Multiply-adds of a layer on one rank above which overlap is faster, by kind of device (decision 013)."""


def overlapping_work(exchange: Exchange | None, weight: Tensor) -> int:
    """Return the multiply-adds per sample of a convolution that can overlap with its halo exchange, else 0.

    A convolution cannot overlap if nothing is sent or received, or if it would compute more than a tenth of its outputs
    twice.
    """
    if exchange is None or not (exchange.plan.cells_sent or sum(exchange.plan.receives)):
        return 0
    kernel = weight.shape[-1]
    h, w = (size - kernel + 1 for size in exchange.plan.shape)
    twice = sum(map(cell_count, rim(exchange.plan, kernel)))
    return h * w * weight.numel() if 10 * twice <= h * w else 0


def overlaps(work: int, device: torch.device) -> bool:
    """Return whether a layer of so many multiply-adds overlaps; the answers of ranks may differ."""
    return work >= WORTHWHILE.get(device.type, math.inf)


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, exchange: Exchange) -> Tensor:
    """Return the convolution (B, outputs, h, w) of the window that `exchange` makes of the tile `x` (B, C, H, W)."""
    exchange.check(x)
    bias = None if bias is None else to_compute_dtype(bias)
    return _convolve(to_compute_dtype(x), to_compute_dtype(weight), bias, exchange.number)[0]


@torch.library.custom_op("deepweather::convolve", mutates_args=())
def _convolve(x: Tensor, weight: Tensor, bias: Tensor | None, exchange: int) -> tuple[Tensor, Tensor]:
    """Return the convolution and its window, which the backward pass needs."""
    this = EXCHANGES[exchange]
    swap = this.send(x)
    window = this.begin(x)
    # Fast algorithms mix neighbouring cells, so cells without a value yet must be finite.
    window.flatten(-2).index_fill_(-1, this.indices(x.device).foreign_to, 0)
    y = functional.conv2d(window, weight, bias)
    this.fill(window, swap.finish())
    for strip in strips(this.plan, weight.shape[-1], window.device):
        y[..., *strip.outputs] = functional.conv2d(window[..., *strip.inputs], weight, bias)
    return y, window


@_convolve.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None, exchange: int) -> tuple[Tensor, Tensor]:
    window = empty_field(x, *EXCHANGES[exchange].plan.shape)
    return functional.conv2d(window, weight, bias), window


@torch.library.custom_op("deepweather::convolve_backward", mutates_args=())
def _convolve_backward(
    gradient: Tensor, window: Tensor, weight: Tensor, exchange: int, wanted: Sequence[bool]
) -> list[Tensor]:
    """Return those gradients of x, weight and bias that are `wanted`."""
    this = EXCHANGES[exchange]
    swap = _send_rim(this, gradient, window, weight) if wanted[0] else None
    found = convolution_gradients(gradient, window, weight, wanted)
    if wanted[1]:
        found[1] = found[1].contiguous()  # as in the function for fake tensors
    if swap is not None:
        found[0] = this.begin_back(found[0])
        this.add(found[0], swap.finish())
    return [part for part, is_wanted in zip(found, wanted, strict=True) if is_wanted]


@_convolve_backward.register_fake
def _(gradient: Tensor, window: Tensor, weight: Tensor, exchange: int, wanted: Sequence[bool]) -> list[Tensor]:
    found = (
        empty_field(window, *EXCHANGES[exchange].domain.own_shape),
        torch.empty_like(weight),
        weight.new_empty(weight.shape[0]),
    )
    return [part for part, is_wanted in zip(found, wanted, strict=True) if is_wanted]


def _send_rim(this: Exchange, gradient: Tensor, window: Tensor, weight: Tensor) -> Swap:
    """Compute the gradient of the received cells and start sending it to their owners."""
    foreign = gradient.new_zeros(*window.shape[:-2], sum(this.plan.receives))
    for strip in strips(this.plan, weight.shape[-1], window.device):
        part, _, _ = convolution_gradients(
            gradient[..., *strip.outputs], window[..., *strip.inputs], weight, (True, False, False)
        )
        foreign.index_add_(-1, strip.received, part.flatten(-2).index_select(-1, strip.cells))
    return this.send_back(foreign)


def convolution_gradients(
    gradient: Tensor, window: Tensor, weight: Tensor, wanted: Sequence[bool] = (True, True, True)
) -> list[Tensor]:
    """Return those gradients of window, weight and bias that are `wanted`, from the `gradient` of the convolution."""
    return list(
        torch.ops.aten.convolution_backward(
            gradient, window, weight, [weight.shape[0]], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, wanted
        )
    )


def _keep(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
    _, weight, _, ctx.exchange = inputs
    y, window = output
    ctx.mark_non_differentiable(window)
    ctx.set_materialize_grads(False)  # saves a window of zeros
    ctx.shape = y.shape
    ctx.save_for_backward(window, weight)


def _differentiate(ctx: Any, gradient: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    window, weight = ctx.saved_tensors
    # If nothing depends on the output, other ranks wait for the exchange nevertheless.
    gradient = window.new_zeros(ctx.shape) if gradient is None else gradient
    wanted = ctx.needs_input_grad[:3]
    found: Iterator[Tensor] = iter(_convolve_backward(gradient, window, weight, ctx.exchange, wanted))
    return *(next(found) if is_wanted else None for is_wanted in wanted), None


_convolve.register_autograd(_differentiate, setup_context=_keep)


@dataclass(frozen=True, eq=False)
class Strip:
    """A rectangle of outputs that depend on cells of other ranks, and the rectangle of the window they depend on.

    `cells` are the flat indices of these cells in the rectangle of the window, `received` their indices among the cells
    received.
    """

    outputs: Rectangle
    inputs: Rectangle
    cells: Tensor
    received: Tensor


@lru_cache(maxsize=512)
def strips(plan: HaloPlan, kernel: int, device: torch.device) -> tuple[Strip, ...]:
    """Return the strips of a convolution's outputs that depend on cells of other ranks."""
    row, column = np.divmod(plan.foreign_to, plan.shape[1])
    found = []
    for outputs in rim(plan, kernel):
        rows, columns = (slice(part.start, part.stop - 1 + kernel) for part in outputs)
        inside = (row >= rows.start) & (row < rows.stop) & (column >= columns.start) & (column < columns.stop)
        cells = (row - rows.start) * (columns.stop - columns.start) + column - columns.start
        places = (torch.from_numpy(part[inside]).to(device) for part in (cells, plan.foreign_from))
        found.append(Strip(outputs, (rows, columns), *places))
    return tuple(found)


def rim(plan: HaloPlan, kernel: int) -> list[Rectangle]:
    """Return the outputs that depend on cells of other ranks, as at most four rectangles along the edges."""
    h, w = (size - kernel + 1 for size in plan.shape)
    (top, bottom), (left, right) = (
        (first := min(low, count), max(high - kernel + 1, first))
        for (low, high), count in zip(_own_rectangle(plan), (h, w), strict=True)
    )
    rectangles = (
        (slice(0, top), slice(0, w)),
        (slice(bottom, h), slice(0, w)),
        (slice(top, bottom), slice(0, left)),
        (slice(top, bottom), slice(right, w)),
    )
    return [rectangle for rectangle in rectangles if cell_count(rectangle)]


def _own_rectangle(plan: HaloPlan) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the largest rectangle of the window without cells of other ranks, as (top, bottom), (left, right).

    It is the rectangle that window and tile share, extended by the sides that this rank's tile fills: across a pole, or
    around the globe where the tile has all longitudes.
    """
    foreign = np.zeros(plan.shape, bool)
    foreign.flat[plan.foreign_to] = True
    (top, bottom), (left, right) = ((part.start, part.stop) for part in plan.window)
    top = top if foreign[:top, left:right].any() else 0
    bottom = bottom if foreign[bottom:, left:right].any() else plan.shape[0]
    left = left if foreign[top:bottom, :left].any() else 0
    right = right if foreign[top:bottom, right:].any() else plan.shape[1]
    return (top, bottom), (left, right)


def cell_count(rectangle: Rectangle) -> int:
    """Return the number of cells of a rectangle."""
    rows, columns = rectangle
    return (rows.stop - rows.start) * (columns.stop - columns.start)
