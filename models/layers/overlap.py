"""Overlap: a convolution that computes while the cells it needs of other ranks are under way.

Forward, the whole window is computed with nothing in the cells of others; when they are there, the few outputs that
see them are computed again. Backward, what others wait for, the gradient of their cells, is computed first and sent;
the gradients of the own cells and of the weights follow while it travels. What is sent is what `Exchange` sends.

Both are operators of a PyTorch library with one exchange in each, as `Exchange` has: so a rank that overlaps and one
that does not, for its tile is mostly rim, understand each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from models.layers.rim import area, rim, strips
from models.parallel.exchange import EXCHANGES, Exchange, Swap, at_work

WORTHWHILE = {"cpu": 3e8, "cuda": 3e10}
"""Multiply-adds of a layer on one rank from which on overlap pays, by kind of device: decision 018."""


def overlapping_work(exchange: Exchange | None, weight: Tensor, stride: int) -> int:
    """Return the multiply-adds for a sample that a convolution may do while its halo is under way.

    None of them may if nothing is sent or received, or if more than a tenth of the outputs would be computed twice.
    """
    if exchange is None or not (exchange.plan.cells_sent or sum(exchange.plan.receives)):
        return 0
    kernel = weight.shape[-1]
    h, w = ((size - kernel) // stride + 1 for size in exchange.plan.shape)
    twice = sum(map(area, rim(exchange.plan, kernel, stride)))
    return h * w * weight.numel() if 10 * twice <= h * w else 0


def overlaps(work: int, device: torch.device) -> bool:
    """Return whether so many multiply-adds are done while the halo is under way; each rank may answer for itself."""
    return work >= WORTHWHILE.get(device.type, math.inf)


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, exchange: Exchange, stride: int, groups: int) -> Tensor:
    """Return the convolution (B, outputs, h, w) of the window that `exchange` makes of the tile `x` (B, C, H, W)."""
    exchange.check(x)
    bias = None if bias is None else at_work(bias)
    return _convolve(at_work(x), at_work(weight), bias, exchange.number, stride, groups)[0]


@torch.library.custom_op("deepweather::convolve", mutates_args=())
def _convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None, exchange: int, stride: int, groups: int
) -> tuple[Tensor, Tensor]:
    """Return the convolution and the window that it sees, which the backward pass needs."""
    this = EXCHANGES[exchange]
    under_way = this.send(x)
    window = this.begin(x)
    # Fast algorithms mix neighbouring cells: what is in the empty ones must be finite.
    window.flatten(-2).index_fill_(-1, this.indices(x.device).foreign_to, 0)
    y = functional.conv2d(window, weight, bias, stride, groups=groups)
    this.fill(window, under_way.finish())
    for strip in strips(this.plan, weight.shape[-1], stride, window.device):
        y[..., *strip.outputs] = functional.conv2d(window[..., *strip.inputs], weight, bias, stride, groups=groups)
    return y, window


@_convolve.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None, exchange: int, stride: int, groups: int) -> tuple[Tensor, Tensor]:
    window = x.new_empty(*x.shape[:-2], *EXCHANGES[exchange].plan.shape)
    return functional.conv2d(window, weight, bias, stride, groups=groups), window


@torch.library.custom_op("deepweather::convolve_backward", mutates_args=())
def _convolve_backward(
    gradient: Tensor, window: Tensor, weight: Tensor, exchange: int, stride: int, groups: int, wanted: Sequence[bool]
) -> list[Tensor]:
    """Return the gradients of x, weight and bias, as far as `wanted`."""
    this = EXCHANGES[exchange]
    under_way = _send_rim(this, gradient, window, weight, stride, groups) if wanted[0] else None
    found = _derivative(gradient, window, weight, stride, groups, wanted)
    if under_way is not None:
        found[0] = this.begin_back(found[0])
        this.add(found[0], under_way.finish())
    return [part for part, is_wanted in zip(found, wanted, strict=True) if is_wanted]


@_convolve_backward.register_fake
def _(
    gradient: Tensor, window: Tensor, weight: Tensor, exchange: int, stride: int, groups: int, wanted: Sequence[bool]
) -> list[Tensor]:
    shape = *window.shape[:-2], *EXCHANGES[exchange].domain.own_shape
    found = window.new_empty(shape), torch.empty_like(weight), weight.new_empty(weight.shape[0])
    return [part for part, is_wanted in zip(found, wanted, strict=True) if is_wanted]


def _send_rim(this: Exchange, gradient: Tensor, window: Tensor, weight: Tensor, stride: int, groups: int) -> Swap:
    """Compute the gradient of the cells received and start sending it back to whom they belong."""
    foreign = gradient.new_zeros(*window.shape[:-2], sum(this.plan.receives))
    for strip in strips(this.plan, weight.shape[-1], stride, window.device):
        part, _, _ = _derivative(
            gradient[..., *strip.outputs], window[..., *strip.inputs], weight, stride, groups, (True, False, False)
        )
        foreign.index_add_(-1, strip.received, part.flatten(-2).index_select(-1, strip.cells))
    return this.send_back(foreign)


def _derivative(
    gradient: Tensor, window: Tensor, weight: Tensor, stride: int, groups: int, wanted: Sequence[bool]
) -> list[Tensor]:
    return list(
        torch.ops.aten.convolution_backward(
            gradient, window, weight, [weight.shape[0]], [stride] * 2, [0, 0], [1, 1], False, [0, 0], groups, wanted
        )
    )


def _keep(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
    _, weight, _, *ctx.options = inputs
    y, window = output
    ctx.mark_non_differentiable(window)
    ctx.set_materialize_grads(False)  # else the window's, all zero, would be
    ctx.shape = y.shape
    ctx.save_for_backward(window, weight)


def _differentiate(ctx: Any, gradient: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    window, weight = ctx.saved_tensors
    # Where nothing depends on the output, the others wait for the exchange all the same.
    gradient = window.new_zeros(ctx.shape) if gradient is None else gradient
    wanted = ctx.needs_input_grad[:3]
    found: Iterator[Tensor] = iter(_convolve_backward(gradient, window, weight, *ctx.options, wanted))
    return *(next(found) if is_wanted else None for is_wanted in wanted), None, None, None


_convolve.register_autograd(_differentiate, setup_context=_keep)
