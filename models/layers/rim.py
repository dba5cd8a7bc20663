"""Rim: which outputs of a convolution see cells of other ranks, and of what they are computed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from models.parallel.plan import Plan

Block = tuple[slice, slice]
"""Rows and columns."""


@dataclass(frozen=True, eq=False)
class Strip:
    """A block of outputs that see cells of others, the block of the window that it is computed from, and these cells.

    `cells` are their places in the flattened block, `received` those among the cells received.
    """

    outputs: Block
    inputs: Block
    cells: Tensor
    received: Tensor


@lru_cache(maxsize=512)
def strips(plan: Plan, kernel: int, stride: int, device: torch.device) -> tuple[Strip, ...]:
    """Return all that see cells of others."""
    row, column = np.divmod(plan.foreign_to, plan.shape[1])
    found = []
    for outputs in rim(plan, kernel, stride):
        rows, columns = (slice(part.start * stride, (part.stop - 1) * stride + kernel) for part in outputs)
        inside = (row >= rows.start) & (row < rows.stop) & (column >= columns.start) & (column < columns.stop)
        cells = (row - rows.start) * (columns.stop - columns.start) + column - columns.start
        places = (torch.from_numpy(part[inside]).to(device) for part in (cells, plan.foreign_from))
        found.append(Strip(outputs, (rows, columns), *places))
    return tuple(found)


def rim(plan: Plan, kernel: int, stride: int) -> list[Block]:
    """Return the outputs that see cells of others, in at most four blocks along the edges."""
    h, w = ((size - kernel) // stride + 1 for size in plan.shape)
    (top, bottom), (left, right) = (
        (first := min(-(-low // stride), count), max((high - kernel) // stride + 1, first))
        for (low, high), count in zip(_free_of_others(plan), (h, w), strict=True)
    )
    blocks = (
        (slice(0, top), slice(0, w)),
        (slice(bottom, h), slice(0, w)),
        (slice(top, bottom), slice(0, left)),
        (slice(top, bottom), slice(right, w)),
    )
    return [block for block in blocks if area(block)]


def _free_of_others(plan: Plan) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the largest block of the window, as rows and columns from and to, that needs nobody.

    It is the block that window and tile share, and beyond it the sides that the own tile fills: across its own pole,
    or round the globe where all longitudes are its own.
    """
    foreign = np.zeros(plan.shape, bool)
    foreign.flat[plan.foreign_to] = True
    (top, bottom), (left, right) = ((part.start, part.stop) for part in plan.window)
    top = top if foreign[:top, left:right].any() else 0
    bottom = bottom if foreign[bottom:, left:right].any() else plan.shape[0]
    left = left if foreign[top:bottom, :left].any() else 0
    right = right if foreign[top:bottom, right:].any() else plan.shape[1]
    return (top, bottom), (left, right)


def area(block: Block) -> int:
    """Return how many cells a block has."""
    rows, columns = block
    return (rows.stop - rows.start) * (columns.stop - columns.start)
