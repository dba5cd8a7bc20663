"""Padding on the sphere: the cells around a tile that a layer needs, from the globe or from other ranks.

Longitude is periodic and rows continue across the poles; nothing is cropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from data_pipeline.grid import Grid
from models.layers.kernels.choice import usable
from models.parallel.domain import Domain
from models.parallel.exchange import Exchange
from models.parallel.halo import Interval, Intervals, row_sources
from models.parallel.memory_format import empty_field


class HaloPad(nn.Module):
    """Pad this rank's tile (..., H, W) to the window (..., h, w) of a layer, with the halo from other ranks.

    `rows` and `columns` are the intervals of the globe that each tile row and tile column needs. With `beyond_zero`,
    cells beyond the edges are zero: beyond both poles, and beyond all four edges of an area.

    `parity` has 1 for each input channel that keeps its sign across a pole and -1 for each that changes it, such as the
    eastward wind. Rows beyond a pole are multiplied by it. Without `parity`, all channels keep their sign. Only
    physical fields have a parity; channels of a hidden layer mix fields, so they have none.
    """

    parity: Tensor | None

    def __init__(
        self,
        grid: Grid | Domain,
        rows: Intervals,
        columns: Intervals,
        beyond_zero: bool = False,
        parity: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self.domain = Domain.of(grid)
        self.exchange = Exchange(self.domain, (rows, columns), beyond_zero) if self.domain.ranks > 1 else None
        # This raises if a row lies beyond the opposite pole.
        row_sources(self.domain.grid, np.array([rows[0][0], rows[-1][1] - 1]))
        H, W = self.domain.shape
        self.sides = -rows[0][0], rows[-1][1] - H, -columns[0][0], columns[-1][1] - W
        self.beyond_zero = beyond_zero
        whole = (rows[0][0], rows[-1][1]), (columns[0][0], columns[-1][1])
        self._globe = None if self.exchange or beyond_zero else GlobeWindow(self.domain.grid, *whole)
        # The buffer is equal on all ranks, so that models match; it is not saved.
        changes = -1 in parity and not beyond_zero
        self.register_buffer("parity", torch.tensor(parity).float() if changes else None, persistent=False)
        top, bottom = rows[self.domain.rank // self.domain.tiles[1]]
        reach = {0: max(-top, 0), -1: max(bottom - H, 0)}
        self.changed = tuple(
            width if changes and self.domain.grid.across_pole(end) is not None else 0 for end, width in reach.items()
        )
        """Numbers of rows of the window beyond the north and beyond the south pole that change sign."""

    def forward(self, x: Tensor) -> Tensor:
        """Map a tile (..., H, W) to its window (..., h, w); with `parity`, a tile is (..., C, H, W)."""
        if self._globe and not torch.compiler.is_compiling():
            return self._globe(x, self.parity)
        window = self._seen(x)
        if self.parity is None or not any(self.changed):
            return window
        sign, (north, south) = self.parity.to(window)[:, None, None], self.changed
        last = window.shape[-2] - south
        parts = window[..., :north, :] * sign, window[..., north:last, :], window[..., last:, :] * sign
        return torch.cat(parts, dim=-2)

    def _seen(self, x: Tensor) -> Tensor:
        """Return the window without changes of sign."""
        if self.exchange:
            return self.exchange(x)
        north, south, west, east = self.sides
        if self.beyond_zero:
            if self.domain.grid.periodic:  # no edge in longitude
                x, west, east = pad(x, self.domain.grid, 0, 0, west, east), 0, 0
            return functional.pad(x, (west, east, north, south))
        return pad(x, self.domain.grid, north, south, west, east)


@dataclass(frozen=True)
class Patch:
    """Cells of a window that are copied together: rectangles of equal size in the window and in the field.

    An axis of the field is read backwards if it is `flipped`. If the field's rectangle is one row or column, it is
    repeated in the window. `turned` cells lie beyond a pole.
    """

    window: tuple[slice, slice]
    field: tuple[slice, slice]
    flipped: tuple[int, ...]
    turned: bool


class GlobeWindow:
    """A window of a whole globe or area, any rectangle of rows and columns, also beyond the edges.

    The cells are copied once, with a backward pass of one copy (docs/decisions/014-layers.md).
    """

    def __init__(self, grid: Grid, rows: Interval, columns: Interval) -> None:
        (H, W), half = grid.shape, grid.shape[1] // 2
        self.shape = max(rows[1] - rows[0], 0), max(columns[1] - columns[0], 0)
        self.moves = rows != (0, H) or columns != (0, W)
        """Whether the window differs from the field."""
        found, turned = row_sources(grid, np.arange(*rows))
        self._rows, self._start, self._grid = (found, turned), columns[0], grid
        self._tables: dict[torch.device, Any] = {}
        along = np.arange(*columns)
        self.patches: list[Patch] = []
        for beyond in (False, True):
            column = along - half if beyond else along
            column = column % W if grid.periodic else column.clip(0, W - 1)
            for (place, row), (where, source) in product(_runs(found, turned == beyond), _runs(column)):
                flipped = tuple(axis for axis, part in ((-2, row), (-1, source)) if part[1] < 0)
                cells = _covered(row), _covered(source)
                self.patches.append(Patch((place, where), cells, flipped, beyond))
        # The largest patch comes first: if it is the whole field, its copy replaces zeros.
        self.patches.sort(key=lambda patch: -_area(patch.window))

    def __call__(self, x: Tensor, parity: Tensor | None = None) -> Tensor:
        """Return the window (..., h, w) of a field (..., H, W); turned cells are multiplied by `parity` (C)."""
        return _Windowed.apply(x, self, parity) if self.moves else x

    def gather(self, x: Tensor, parity: Tensor | None = None) -> Tensor:
        """Return the window without a gradient."""
        if x.ndim == 4 and usable(x):
            return self._on(x.device).gather(x, parity)
        window = empty_field(x, *self.shape)
        for patch in self.patches:
            cells = x[..., *patch.field]
            cells = cells.flip(patch.flipped) if patch.flipped else cells
            target = window[..., *patch.window]
            if patch.turned and parity is not None:
                torch.mul(cells, _signs(parity, cells), out=target)
            else:
                target.copy_(cells)
        return window

    def scatter(self, gradient: Tensor, parity: Tensor | None, rows: int, columns: int) -> Tensor:
        """Return the gradient of a field of `rows` and `columns` from the gradient of its window."""
        if gradient.ndim == 4 and usable(gradient):
            return self._on(gradient.device).scatter(gradient, parity)
        field = empty_field(gradient, rows, columns)
        # If the first patch covers the field, its copy takes the place of zeros.
        covers = _covers(self.patches[:1], rows, columns)
        if covers:
            field.copy_(gradient[..., *self.patches[0].window])
        else:
            field.zero_()
        self.add_back(field, gradient, parity, int(covers))
        return field

    def add_back(self, field: Tensor, gradient: Tensor, parity: Tensor | None = None, first: int = 0) -> None:
        """Add the gradient of the window to the gradient of the field, from the patch number `first` on."""
        for patch in self.patches[first:]:
            cells, target = gradient[..., *patch.window], field[..., *patch.field]
            cells = cells.flip(patch.flipped) if patch.flipped else cells
            if patch.turned and parity is not None:
                cells = cells * _signs(parity, cells)
            repeated = [axis for axis in (-2, -1) if target.shape[axis] < cells.shape[axis]]
            target.add_(cells.sum(repeated, keepdim=True) if repeated else cells)

    def _on(self, device: torch.device) -> Any:
        """Return the tables of the kernel on `device`, which are copied there once."""
        from models.layers.kernels.globe_window import WindowTables

        if device not in self._tables:
            grid = self._grid
            self._tables[device] = WindowTables.of(
                *self._rows, self._start, grid.periodic, grid.shape, self.shape, device
            )
        return self._tables[device]

    def __deepcopy__(self, memo: dict[int, Any]) -> GlobeWindow:
        """Return the same object, which never changes."""
        return self


class _Windowed(torch.autograd.Function):
    """`GlobeWindow.gather` with its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, window: GlobeWindow, parity: Tensor | None) -> Tensor:
        ctx.window, ctx.parity, ctx.shape = window, parity, x.shape[-2:]
        return window.gather(x, parity)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _Scattered.apply(gradient, ctx.window, ctx.parity, ctx.shape), None, None


class _Scattered(torch.autograd.Function):
    """`GlobeWindow.scatter`; its gradient is the window again."""

    @staticmethod
    def forward(
        ctx: Any, gradient: Tensor, window: GlobeWindow, parity: Tensor | None, shape: tuple[int, int]
    ) -> Tensor:
        ctx.window, ctx.parity = window, parity
        return window.scatter(gradient, parity, *shape)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return _Windowed.apply(gradient, ctx.window, ctx.parity), None, None, None


def _runs(sources: np.ndarray, among: np.ndarray | None = None) -> list[tuple[slice, tuple[int, int, int]]]:
    """Return runs of places whose sources increase, decrease or repeat: the places, first source, step, length."""
    places = np.arange(len(sources)) if among is None else np.flatnonzero(among)
    runs: list[list[int]] = []
    for place in places.tolist():
        value = int(sources[place])
        if runs and place == runs[-1][0] + runs[-1][3]:
            start, first, step, length = runs[-1]
            last = first + step * (length - 1)
            if abs(value - last) <= 1 and (length == 1 or value - last == step):
                runs[-1] = [start, first, value - last, length + 1]
                continue
        runs.append([place, value, 1, 1])
    return [(slice(start, start + n), (first, step, n)) for start, first, step, n in runs]


def _covered(run: tuple[int, int, int]) -> slice:
    """Return the sources of a run, in increasing order."""
    first, step, length = run
    last = first + step * (length - 1)
    return slice(min(first, last), max(first, last) + 1)


def _covers(patches: Sequence[Patch], rows: int, columns: int) -> bool:
    """Return whether the only patch is the whole field as it is."""
    if not patches or patches[0].flipped or patches[0].turned:
        return False
    whole = slice(0, rows), slice(0, columns)
    return patches[0].field == whole and _area(patches[0].window) == rows * columns


def _area(rectangle: tuple[slice, slice]) -> int:
    rows, columns = rectangle
    return (rows.stop - rows.start) * (columns.stop - columns.start)


def _signs(parity: Tensor, like: Tensor) -> Tensor:
    return parity.to(like)[:, None, None]


def pad(x: Tensor, grid: Grid, north: int, south: int, west: int, east: int) -> Tensor:
    """Return the whole globe `x` (..., H, W) with more rows and columns, continued on the sphere.

    Rows beyond a pole mirror the rows before it, shifted by half a turn (rounded to columns, if their number is odd).
    At the edge of a limited area the last row or column is repeated. A negative number removes rows.
    """
    if not any((north, south, west, east)):
        return x
    H, W = grid.shape
    x = torch.cat(
        [
            _rows_beyond(x, grid, 0, north),
            x[..., max(-north, 0) : H + min(south, 0), :],
            _rows_beyond(x, grid, -1, south),
        ],
        dim=-2,
    )
    inner = x[..., max(-west, 0) : W + min(east, 0)]
    west, east = max(west, 0), max(east, 0)
    if grid.periodic:
        return torch.cat([x[..., W - west :], inner, x[..., :east]], dim=-1)
    first, last, shape = x[..., :1], x[..., -1:], [-1] * (x.ndim - 1)
    return torch.cat([first.expand(*shape, west), inner, last.expand(*shape, east)], dim=-1)


def _rows_beyond(x: Tensor, grid: Grid, end: int, width: int) -> Tensor:
    if width <= 0:
        return x[..., :0, :]
    mirror = grid.across_pole(end)
    edge = x[..., :1, :] if end == 0 else x[..., -1:, :]
    if mirror is None:
        return edge.expand(*[-1] * (x.ndim - 2), width, -1)
    rows = (
        x[..., mirror : mirror + width, :]
        if end == 0
        else x[..., x.shape[-2] - mirror - width : x.shape[-2] - mirror, :]
    )
    # Not `roll`: in compiled code PyTorch 2.13 expects another layout of its result than the kernel gives.
    turn, rows = x.shape[-1] // 2, rows.flip(-2)
    return torch.cat([rows[..., x.shape[-1] - turn :], rows[..., : x.shape[-1] - turn]], dim=-1)
