"""A residual block computed for a few rows of the batch at a time, which keeps little for the backward pass.

For every row of the batch, only the inputs of the block and the results of its two convolutions are kept. Joined and
interpolated maps, windows, norms and activations hold most of the memory and take little time: the backward pass
computes them again, for a few rows at a time (docs/decisions/014-layers.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from models.layers.norms import norm_gelu, norm_gelu_backward, normalised_blocks
from models.layers.overlap import convolution_gradients
from models.layers.padding import HaloPad
from models.parallel.memory_format import channels_last

NUMBERS_AT_ONCE = 1 << 22
"""Numbers of a block's input maps that are computed at once, 17 MB. Blocks with fewer numbers keep all their maps."""


class BlockWeights(NamedTuple):
    """Parameters of a residual block: two convolutions, each with a norm after it, and the skip connection."""

    first: Tensor
    first_bias: Tensor
    first_norm: Tensor
    first_offset: Tensor
    second: Tensor
    second_bias: Tensor
    second_norm: Tensor
    second_offset: Tensor
    skip: Tensor
    skip_bias: Tensor


@dataclass(frozen=True)
class RowBlock:
    """A residual block on the maps (B M, C, H, W) that `source` computes from the block's inputs.

    `windows` are the windows of the two convolutions, `size` is the number of rows of the batch that are computed at
    once, and `members` is the number of consecutive rows that belong to one forecast.
    """

    source: Callable[..., Tensor]
    windows: tuple[HaloPad, HaloPad]
    size: int
    members: int

    def __call__(
        self, inputs: tuple[Tensor, ...], weights: BlockWeights, kept: Tensor | None, shared: tuple[Tensor, ...]
    ) -> Tensor:
        """Return a(second(kept · a(first(z)))) + skip(z) for the maps z, where a is GELU of the norm.

        `kept` (B M, C, 1, 1) are the factors of dropout, or None without dropout. The maps `shared` (B, C, H, W), none
        or two, are added to the first convolution and to the skip connection of all members of a forecast.
        """
        result: Tensor = _InRows.apply(self, len(inputs), kept, *inputs, *weights, *shared)
        return result

    def rows(self, count: int) -> Iterator[tuple[slice, int]]:
        """Yield the slices of `count` rows that are computed at once, each with the number of its forecast."""
        for forecast, begin in enumerate(range(0, count, self.members)):
            for first in range(begin, begin + self.members, self.size):
                yield slice(first, min(first + self.size, begin + self.members)), forecast


class _InRows(torch.autograd.Function):
    """`RowBlock.__call__` with its gradient."""

    @staticmethod
    def forward(ctx: Any, block: RowBlock, count: int, kept: Tensor | None, *tensors: Tensor) -> Tensor:
        inputs, weights, shared = _divide(tensors, count)
        results: list[Tensor] = []
        for rows, forecast in block.rows(len(inputs[0])):
            z = block.source(*(each[rows] for each in inputs))
            first = functional.conv2d(block.windows[0](z), weights.first, weights.first_bias)
            skip = functional.conv2d(z, weights.skip, weights.skip_bias)
            if shared:
                first += shared[0][forecast]
                skip += shared[1][forecast]
            if not results:
                out = first.new_empty(len(inputs[0]), *first.shape[2:], len(weights.skip))
            first = channels_last(first)
            active = _activate(normalised_blocks(_cells(first), weights.first_norm, weights.first_offset), first)
            window = block.windows[1](active if kept is None else active * kept[rows])
            second = channels_last(functional.conv2d(window, weights.second, weights.second_bias))
            norm_gelu(normalised_blocks(_cells(second), weights.second_norm, weights.second_offset), out[rows])
            out[rows] += _cells(skip)
            results += [first, second]
        ctx.save_for_backward(*tensors, *results)
        ctx.block, ctx.count, ctx.kept, ctx.given = block, count, kept, len(tensors)
        return out.movedim(-1, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        block, kept, saved = ctx.block, ctx.kept, ctx.saved_tensors
        inputs, weights, shared = _divide(saved[: ctx.given], ctx.count)
        results, wanted = iter(saved[ctx.given :]), ctx.needs_input_grad[3 : 3 + ctx.count]
        goes_on = any(wanted), True, True
        for_inputs = [torch.empty_like(each) if want else None for each, want in zip(inputs, wanted, strict=True)]
        for_weights, for_shared = ([torch.zeros_like(each) for each in part] for part in (weights, shared))
        for rows, forecast in block.rows(len(gradient)):
            first, second, later = next(results), next(results), channels_last(gradient[rows])
            normal = list(normalised_blocks(_cells(first), weights.first_norm, weights.first_offset))
            with torch.enable_grad():
                parts = [each[rows].detach().requires_grad_(want) for each, want in zip(inputs, wanted, strict=True)]
                z = block.source(*parts)
                active = _activate(normal, first).requires_grad_()
                windows = block.windows[0](z), block.windows[1](active if kept is None else active * kept[rows])
            for_second, *sums = _through_norm(None, later, second, weights.second_norm, weights.second_offset)
            for_window, *more = convolution_gradients(for_second, windows[1], weights.second)
            found = [*more, *sums]
            (for_active,) = torch.autograd.grad(windows[1], active, for_window)
            for_first, *sums = _through_norm(normal, for_active, first, weights.first_norm, weights.first_offset)
            for_window, *more = convolution_gradients(for_first, windows[0], weights.first, wanted=goes_on)
            for_z, *last = convolution_gradients(later, z, weights.skip, wanted=goes_on)
            for total, each in zip(for_weights, [*more, *sums, *found, *last], strict=True):
                total += each
            for total, each in zip(for_shared, (for_first, later), strict=False):
                total[forecast] += each.sum(0)
            if any(wanted):
                own = [part for part in parts if part.requires_grad]
                slopes = iter(torch.autograd.grad([windows[0], z], own, [for_window, for_z]))
                for whole in for_inputs:
                    if whole is not None:
                        whole[rows] = next(slopes)
        return None, None, None, *for_inputs, *for_weights, *for_shared


def _divide(tensors: tuple[Tensor, ...], count: int) -> tuple[tuple[Tensor, ...], BlockWeights, tuple[Tensor, ...]]:
    """Return `count` inputs, the weights, and the shared maps."""
    last = count + len(BlockWeights._fields)
    return tensors[:count], BlockWeights(*tensors[count:last]), tensors[last:]


def _cells(x: Tensor) -> Tensor:
    """Return a view (B, H, W, C) of maps (B, C, H, W)."""
    return x.movedim(1, -1)


def _activate(normalised: Any, like: Tensor) -> Tensor:
    """Return GELU of normalised cells as maps."""
    return norm_gelu(normalised, torch.empty_like(_cells(like))).movedim(-1, 1)


def _through_norm(normalised: Any, gradient: Tensor, x: Tensor, weight: Tensor, offset: Tensor) -> list[Tensor]:
    """Return the gradients of maps `x`, weight and offset of a norm from the gradient of its activation."""
    cells = _cells(x)
    normalised = normalised_blocks(cells, weight, offset) if normalised is None else normalised
    found, *sums = norm_gelu_backward(normalised, _cells(gradient), cells, weight, offset)
    return [found.movedim(-1, 1), *sums]
