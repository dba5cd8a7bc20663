"""Patches: non-overlapping squares of cells, as in vision transformers."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn

from data_pipeline.common.checks import check_integer
from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from models.layers.padding import HaloPad
from models.parallel.domain import Cuts, Domain
from models.parallel.halo import Intervals


class Patches(nn.Module):
    """The cells of each patch of `size` x `size` cells; a linear layer on them is a convolution of stride `size`.

    Patches start at the first row and column of the globe, also on tiles. Remaining rows in the south or columns in the
    east, fewer than `size`, belong to no patch. `count` is the number of patches of the globe. A rank has the patches
    whose first cell lies in its tile, on a small grid perhaps none.
    """

    def __init__(self, grid: Grid | Domain, size: int) -> None:
        super().__init__()
        check_integer("model.size", size, 1)
        domain = Domain.of(grid)
        rows, columns = (_starts(cuts, size) for cuts in (domain.row_cuts, domain.column_cuts))
        self.count = rows[-1] * columns[-1]
        if not self.count:
            raise InputError(
                f"a layer with patches of {size} x {size} cells needs {size} rows and columns or more, got "
                f"{domain.grid}; take fewer coarse levels"
            )
        self._size = size
        self.window = HaloPad(domain, _cells(rows, size), _cells(columns, size))

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, C, H, W) to (B, this rank's patches, C size size), patches row by row, channels first within each."""
        x, size = self.window(x), self._size
        B, C, h, w = x.shape
        x = x.reshape(B, C, h // size, size, w // size, size)
        return x.permute(0, 2, 4, 1, 3, 5).reshape(B, (h // size) * (w // size), C * size * size)


def _starts(cuts: Cuts, size: int) -> Cuts:
    """Return the first patch of each tile, and at the end the number of patches."""
    return tuple(min(-(-cut // size), cuts[-1] // size) for cut in cuts)


def _cells(starts: Cuts, size: int) -> Intervals:
    return tuple((size * first, size * last) for first, last in pairwise(starts))
