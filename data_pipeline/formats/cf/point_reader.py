"""PointReader: reads rows and columns of a file as points in one column."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from data_pipeline.grids.points import Points
from data_pipeline.protocols import ALL, FieldReader, Window


@dataclass(frozen=True, eq=False)
class PointReader:
    """Reads fields (H, W) of `source`, a curvilinear or projected grid with `columns` W, as points (H W, 1)."""

    grid: Points
    source: FieldReader
    columns: int

    def read(self, wanted: np.ndarray, out: np.ndarray, window: Window) -> None:
        """Read the `window` of the fields with the numbers `wanted`; read only the rows of the file that it needs."""
        points = np.arange(self.grid.shape[0])[window[0]]
        if not points.size:
            return
        first, last = int(points.min()) // self.columns, int(points.max()) // self.columns + 1
        values = np.empty((*wanted.shape, last - first, self.columns), out.dtype)
        self.source.read(wanted, values, (slice(first, last), ALL))
        values = values.reshape(*wanted.shape, -1, 1)
        begin = first * self.columns
        consecutive = isinstance(window[0], slice) and window[0].step in (None, 1)
        rows = slice(int(points[0]) - begin, int(points[-1]) - begin + 1) if consecutive else points - begin
        out[...] = values[..., rows, :][..., window[1]]
