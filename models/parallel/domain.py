"""Domain: a grid dealt out to the ranks of a spatial group, one rectangle of cells to each.

A layer is told the domain it works on and sees only the cells of its own rank. A plain `Grid` is the domain of a
single rank, so a model that is written for one device is written for many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import Tensor

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid

Cuts = tuple[int, ...]
"""Where tiles end along an axis: tile k has the points from `cuts[k]` up to `cuts[k + 1]`."""


@dataclass(frozen=True)
class Domain:
    """`grid` in tiles: rank r of `group` has tile row r // n and tile column r % n, of n tile columns.

    `rank` is the own one. The grid's shape, weights and neighbourhood are those of the whole globe. `everyone` are all
    ranks that step together, those that have the same tile of other samples included.
    """

    grid: Grid
    row_cuts: Cuts
    column_cuts: Cuts
    rank: int = 0
    group: str = field(default="", compare=False, repr=False)
    everyone: str = field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        for name, cuts, size in zip(("rows", "columns"), (self.row_cuts, self.column_cuts), self.shape, strict=True):
            if cuts[0] != 0 or cuts[-1] != size or (np.diff(cuts) <= 0).any():
                raise InputError(
                    f"{len(cuts) - 1} ranks cannot share the {size} {name} of {self.grid} (tiles end at "
                    f"{list(cuts[1:])}); take fewer ranks in this direction, or a model with fewer coarse levels"
                )

    @classmethod
    def of(cls, grid: Grid | Domain) -> Domain:
        """Return a domain as it is, a grid as the domain of one rank."""
        return grid if isinstance(grid, Domain) else cls(grid, (0, grid.shape[0]), (0, grid.shape[1]))

    @classmethod
    def split(
        cls,
        grid: Grid,
        bands: int,
        sectors: int = 1,
        rank: int = 0,
        group: str = "",
        everyone: str = "",
    ) -> Domain:
        """Deal out `grid` to `bands` times `sectors` ranks, as evenly as whole rows and columns allow."""
        return cls(grid, _even(grid.shape[0], bands), _even(grid.shape[1], sectors), rank, group, everyone)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the whole grid."""
        return self.grid.shape

    @property
    def tiles(self) -> tuple[int, int]:
        """Tile rows and tile columns."""
        return len(self.row_cuts) - 1, len(self.column_cuts) - 1

    @property
    def ranks(self) -> int:
        """How many ranks share the grid."""
        return self.tiles[0] * self.tiles[1]

    @property
    def tile(self) -> tuple[slice, slice]:
        """The own rows and columns: `field[..., *domain.tile]` of a field on the whole grid."""
        return self.tile_of(self.rank)

    @property
    def own_shape(self) -> tuple[int, int]:
        """Rows and columns of the own tile."""
        rows, columns = self.tile
        return rows.stop - rows.start, columns.stop - columns.start

    @property
    def sharers(self) -> str:
        """Name of the group that shares the grid, none for one rank."""
        return self.group if self.ranks > 1 else ""

    @property
    def steppers(self) -> str:
        """Name of the group of all ranks that step together, or of those that share the grid if there are no others."""
        return self.everyone or self.sharers

    def tile_of(self, rank: int) -> tuple[slice, slice]:
        """Return rows and columns of any rank."""
        i, j = divmod(rank, self.tiles[1])
        return slice(*self.row_cuts[i : i + 2]), slice(*self.column_cuts[j : j + 2])

    def cut(self, field: Tensor) -> Tensor:
        """Return the own part of a field (..., H, W) on the whole grid."""
        return field[..., self.tile[0], self.tile[1]] if self.ranks > 1 else field

    def join(self, tiles: Sequence[np.ndarray]) -> np.ndarray:
        """Return the whole of a field (..., H, W) from the tiles of all ranks, in their order."""
        n = self.tiles[1]
        return np.block([list(tiles[k : k + n]) for k in range(0, self.ranks, n)])

    def coarsen(self) -> Domain:
        """Return the domain of every second row and column; a point is owned where its fine one is."""
        return replace(
            self, grid=self.grid.coarsen(), row_cuts=_halves(self.row_cuts), column_cuts=_halves(self.column_cuts)
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Domain:
        """Return the same: it is frozen, and its process group cannot be copied with a model."""
        return self


def _even(size: int, parts: int) -> Cuts:
    return tuple(round(k * size / parts) for k in range(parts + 1))


def _halves(cuts: Cuts) -> Cuts:
    return tuple((cut + 1) // 2 for cut in cuts)
