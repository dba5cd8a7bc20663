"""Domain: a grid split into rectangular tiles, one for each rank of a spatial group.

Layers are built on a domain and hold only the cells of their own tile. A plain `Grid` is the domain of a single rank,
so that one implementation serves one device and many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid

if TYPE_CHECKING:
    from torch import Tensor

Field = TypeVar("Field", "Tensor", np.ndarray)

Cuts = tuple[int, ...]
"""Ends of tiles along an axis: tile k has the points `cuts[k]` to `cuts[k + 1] - 1`."""


@dataclass(frozen=True)
class ChannelAxis:
    """Ranks that divide the channels of wide layers: `ranks` neighbouring tiles of a tile column, from north to south.

    `group` is the group of these ranks. `across` is the group of the ranks with the same channels of other tiles.
    """

    ranks: int
    group: str = field(default="", compare=False, repr=False)
    across: str = field(default="", compare=False, repr=False)


@dataclass(frozen=True)
class Domain:
    """`grid` in tiles: rank r of `group` has tile row r // n and tile column r % n, of n tile columns.

    `rank` is the rank of this process. `grid` is the whole globe. `everyone` is the group of all ranks that step
    together, also ranks with the same tile of other samples. With a `channel_axis`, wide layers divide channels instead
    of rows.

    >>> Domain.split(Grid.regular(5, 8), bands=2, sectors=2, rank=3).tile
    (slice(2, 5, None), slice(4, 8, None))
    """

    grid: Grid
    row_cuts: Cuts
    column_cuts: Cuts
    rank: int = 0
    group: str = field(default="", compare=False, repr=False)
    everyone: str = field(default="", compare=False, repr=False)
    channel_axis: ChannelAxis | None = None

    def __post_init__(self) -> None:
        for name, cuts, size in zip(("rows", "columns"), (self.row_cuts, self.column_cuts), self.shape, strict=True):
            if cuts[0] != 0 or cuts[-1] != size or (np.diff(cuts) <= 0).any():
                raise InputError(
                    f"{len(cuts) - 1} ranks cannot share the {size} {name} of {self.grid} (tiles end at "
                    f"{list(cuts[1:])}); take fewer ranks in this direction, or a model with fewer coarse levels"
                )

    @classmethod
    def of(cls, grid: Grid | Domain) -> Domain:
        """Return a domain itself, a grid as the domain of one rank."""
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
        channel_axis: ChannelAxis | None = None,
    ) -> Domain:
        """Return `grid` split among `bands` times `sectors` ranks, as evenly as possible."""
        rows, columns = even_cuts(grid.shape[0], bands), even_cuts(grid.shape[1], sectors)
        return cls(grid, rows, columns, rank, group, everyone, channel_axis)

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
        """Number of ranks that share the grid."""
        return self.tiles[0] * self.tiles[1]

    @property
    def tile(self) -> tuple[slice, slice]:
        """Rows and columns of this rank's tile: `field[..., *domain.tile]` of a field on the whole grid."""
        return self.tile_of(self.rank)

    @property
    def own_shape(self) -> tuple[int, int]:
        """Rows and columns of this rank's tile."""
        rows, columns = self.tile
        return rows.stop - rows.start, columns.stop - columns.start

    @property
    def sharers(self) -> str:
        """Name of the group of ranks that share the grid, empty for one rank."""
        return self.group if self.ranks > 1 else ""

    @property
    def steppers(self) -> str:
        """Name of the group of all ranks that step together; or of the ranks that share the grid."""
        return self.everyone or self.sharers

    @property
    def cuts(self) -> Cuts:
        """First rows and first columns of all tiles."""
        return self.row_cuts[:-1] + self.column_cuts[:-1]

    def tile_of(self, rank: int) -> tuple[slice, slice]:
        """Return rows and columns of the tile of `rank`."""
        i, j = divmod(rank, self.tiles[1])
        return slice(*self.row_cuts[i : i + 2]), slice(*self.column_cuts[j : j + 2])

    def cut(self, field: Field) -> Field:
        """Return this rank's tile of a field (..., H, W) on the whole grid."""
        return field[..., self.tile[0], self.tile[1]] if self.ranks > 1 else field

    def join(self, tiles: Sequence[np.ndarray]) -> np.ndarray:
        """Return a whole field (..., H, W) from the tiles of all ranks, in their order; a single tile is not copied."""
        if len(tiles) == 1:
            return tiles[0]
        n = self.tiles[1]
        return np.block([list(tiles[k : k + n]) for k in range(0, self.ranks, n)])

    def coarsen(self) -> Domain:
        """Return the domain of every second row and column; a coarse point stays on the rank of its fine point."""
        return replace(
            self, grid=self.grid.coarsen(), row_cuts=_halves(self.row_cuts), column_cuts=_halves(self.column_cuts)
        )

    @property
    def channel_rank(self) -> int:
        """Number of this rank among the ranks of its channel axis."""
        return self.rank // self.tiles[1] % (self.channel_axis.ranks if self.channel_axis else 1)

    def merge(self) -> Domain:
        """Return the domain of wide layers, in which the tiles of the ranks of a channel axis are one tile."""
        axis = self.channel_axis
        if axis is None:
            return self
        row, column = divmod(self.rank, self.tiles[1])
        return replace(
            self,
            row_cuts=self.row_cuts[:: axis.ranks],
            rank=row // axis.ranks * self.tiles[1] + column,
            group=axis.across,
            channel_axis=None,
        )

    def merged_rows(self) -> Cuts:
        """Return the ends of the tiles of a channel axis, counted from the first row of the merged tile."""
        ranks = self.channel_axis.ranks if self.channel_axis else 1
        first = self.rank // self.tiles[1] // ranks * ranks
        cuts = self.row_cuts[first : first + ranks + 1]
        return tuple(cut - cuts[0] for cut in cuts)

    def channel_cuts(self, channels: int) -> Cuts:
        """Return the ends of the shares of `channels` that the ranks of the channel axis have."""
        ranks = self.channel_axis.ranks if self.channel_axis else 1
        if channels < ranks:
            raise InputError(
                f"{ranks} ranks cannot divide the {channels} channels of a layer; take fewer ranks on the channel axis "
                "of trainer.mesh, or a larger model.width"
            )
        return even_cuts(channels, ranks)

    def own_channels(self, channels: int) -> slice:
        """Return which of `channels` this rank has in wide layers."""
        cuts = self.channel_cuts(channels)
        return slice(*cuts[self.channel_rank : self.channel_rank + 2])

    def __deepcopy__(self, memo: dict[int, Any]) -> Domain:
        """Return the same object: it is immutable, and process groups cannot be copied with a model."""
        return self


def even_cuts(size: int, parts: int) -> Cuts:
    """Return the ends of `parts` parts of `size` points, as even as possible."""
    return tuple(round(k * size / parts) for k in range(parts + 1))


def _halves(cuts: Cuts) -> Cuts:
    return tuple((cut + 1) // 2 for cut in cuts)
