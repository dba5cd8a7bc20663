"""Patches: a field cut into squares that do not overlap, on the whole globe or on the tiles of several ranks."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn

from data_pipeline.common.checks import check_integer
from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from models.layers.window import Intervals, Window
from models.parallel.domain import Cuts, Domain


class Patches(nn.Module):
    """The cells of each patch of `size` x `size` cells; a linear layer on them is a convolution of that stride.

    Patches start at the first row and column of the globe, on tiles too. A rest of fewer than `size` rows in the south
    or columns in the east belongs to no patch. `count` is the number of patches of the globe. A rank gets the patches
    whose first cell lies in its tile; on a small grid it may get none.
    """

    def __init__(self, grid: Grid | Domain, size: int) -> None:
        super().__init__()
        check_integer("model.size", size, 1)
        domain = Domain.of(grid)
        rows, columns = (_starts(cuts, size) for cuts in (domain.row_cuts, domain.column_cuts))
        self.count = rows[-1] * columns[-1]
        if not self.count:
            raise InputError(
                f"a layer that works on patches of {size} x {size} cells needs as many rows and columns, and got "
                f"{domain.grid}; take fewer coarse levels"
            )
        self._size = size
        self.window = Window(domain, _cells(rows, size), _cells(columns, size))

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to (B, own patches, C size size), patches row by row, channels first within each."""
        x, size = self.window(x), self._size
        B, C, h, w = x.shape
        x = x.reshape(B, C, h // size, size, w // size, size)
        return x.permute(0, 2, 4, 1, 3, 5).reshape(B, (h // size) * (w // size), C * size * size)


def _starts(cuts: Cuts, size: int) -> Cuts:
    """Return which patches start in each tile: the k-th has those from the k-th number up to the next."""
    return tuple(min(-(-cut // size), cuts[-1] // size) for cut in cuts)


def _cells(starts: Cuts, size: int) -> Intervals:
    return tuple((size * first, size * last) for first, last in pairwise(starts))
