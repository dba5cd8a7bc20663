"""Read fields at points: of a curvilinear grid, or points that the files have in another order, or only some of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.grids.points import Points
from data_pipeline.protocols import ALL, FieldReader, Window


@dataclass(frozen=True, eq=False)
class SelectedPointsReader:
    """Reads fields of `source` on the points of `grid`; `positions` are those in the source, -1 for a point without."""

    source: FieldReader
    grid: Points
    positions: np.ndarray
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, source: FieldReader, points: Points) -> SelectedPointsReader:
        """Find the points in `source`; an `InputError` if there are none."""
        assert isinstance(source.grid, Points)
        found = points.found_in(source.grid)
        if (found.positions < 0).all():
            raise InputError(
                f"no station has the id of another: {points} ({points.ids[0]}, ...) and {source.grid} "
                f"({source.grid.ids[0]}, ...); give the same stations the same ids in all files"
            )
        return cls(source, points, found.positions, found.notes)

    def describe(self) -> str:
        """Return how many points of both sets are used, for messages."""
        if not self.grid.ids:
            return f"its {len(self.positions)} points are those of the ensemble in another order"
        found, others = int((self.positions >= 0).sum()), self.source.grid.shape[0]
        first = self.grid.ids[int((self.positions < 0).argmax())]
        lacking = "" if found == len(self.positions) else f", the first without is {first}"
        unused = f"; {others - found} of {others} stations are not used" if others > found else ""
        notes = "".join(f"; {note}" for note in self.notes)
        return f"found at {found} of {len(self.positions)} stations of the ensemble{lacking}{unused}{notes}"

    def read(self, wanted: np.ndarray, out: np.ndarray, window: Window) -> None:
        """Read the `window` of the fields with the numbers `wanted`; NaN at points that the source lacks."""
        positions = self.positions[window[0]]
        known = positions[positions >= 0]
        first, last = (int(known.min()), int(known.max()) + 1) if known.size else (0, 0)
        values = np.full((*wanted.shape, last - first + 1, 1), np.nan, out.dtype)  # the last one stays missing
        if known.size:
            self.source.read(wanted, values[..., :-1, :], (slice(first, last), ALL))
        out[...] = values[..., np.where(positions < 0, last, positions) - first, :][..., window[1]]


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
