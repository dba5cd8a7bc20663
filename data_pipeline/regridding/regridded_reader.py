"""RegriddedReader: the fields of another grid, by weights between the grids or from the cells of stations."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from data_pipeline.grid import Grid
from data_pipeline.grids.points import Points
from data_pipeline.grids.reduced_grid import ReducedGrid
from data_pipeline.protocols import ALL, FieldReader, IdentifiedReader, Window, fill_missing
from data_pipeline.regridding.stations import StationWeights, station_weights
from data_pipeline.regridding.weights import Method, Weights, weights_between

FIELDS_AT_ONCE = 16
"""Fields that are read before they are brought to the other grid; bounds the memory."""


@dataclass(frozen=True, eq=False)
class RegriddedReader:
    """Reads fields of another grid by the weights of `method`; `parities` has the parity of each field.

    Without a method, the grid is one of stations, whose cells have the weights.
    """

    source: FieldReader
    grid: Grid
    method: Method | None = None
    parities: np.ndarray | None = None

    def identity(self, wanted: np.ndarray) -> Hashable:
        """Return the identity of the source's fields, with target grid and method; see `IdentifiedReader`."""
        own = (
            self.source.identity(wanted) if isinstance(self.source, IdentifiedReader) else (id(self), wanted.tobytes())
        )
        return own, self.grid, self.method, None if self.parities is None else self.parities[wanted].tobytes()

    def read(self, wanted: np.ndarray, out: np.ndarray, window: Window) -> None:
        """Read the `window` of the fields with the numbers `wanted`; only the rows that it needs are read."""
        weights: Weights | StationWeights
        if self.method is None:
            assert isinstance(self.grid, Points)
            weights = station_weights(self.source.grid, self.grid)
        else:
            weights = weights_between(self.source.grid, self.grid, self.method)
        rows, columns = window
        selected = np.atleast_1d(np.arange(self.grid.shape[0])[rows])
        there = fill_missing(wanted, out)
        if not selected.size or not there.size:
            return
        height, width = self.source.grid.shape
        needed, offset = ALL, 0
        if not isinstance(self.source.grid, ReducedGrid):
            needed = weights.rows_needed(selected)
            height, offset = needed.stop - needed.start, needed.start * width
        one_row = np.ndim(np.arange(self.grid.shape[0])[rows]) == 0
        values = np.empty((min(FIELDS_AT_ONCE, len(there)), height, width), out.dtype)
        for first in range(0, len(there), FIELDS_AT_ONCE):
            part = there[first : first + FIELDS_AT_ONCE]
            numbers = wanted.ravel()[part]
            self.source.read(numbers, values[: len(part)], (needed, ALL))
            places = zip(*np.unravel_index(part, wanted.shape), strict=True)
            for place, number, field in zip(places, numbers, values[: len(part)], strict=True):
                parity = 1 if self.parities is None else int(self.parities[number])
                regular = weights.apply(field.ravel(), selected, parity, offset)
                out[(*place, ...)] = (regular[0] if one_row else regular)[..., columns]


def on_forecasts_grid(reader: FieldReader) -> FieldReader | None:
    """Return the reader of the same fields on the grid from whose cells stations read them; None for other readers."""
    if isinstance(reader, RegriddedReader) and reader.method is None:
        return reader.source
    return None
