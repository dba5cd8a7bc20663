"""Read the fields of a catalog on another grid: at points that both grids share, or by weights between the grids."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.common.messages import say_once
from data_pipeline.formats.catalog import Catalog
from data_pipeline.formats.selected_points import SelectedPointsReader
from data_pipeline.grid import Grid
from data_pipeline.grids.points import Points, has_ids
from data_pipeline.grids.reduced_grid import ReducedGrid
from data_pipeline.protocols import ALL, FieldReader, IdentifiedReader, Index, Window, fill_missing
from data_pipeline.regridding.grid_coverage import shared_points
from data_pipeline.regridding.stations import StationWeights, station_weights
from data_pipeline.regridding.target import TargetGrid
from data_pipeline.regridding.weights import Method, Weights, weights_between

FIELDS_AT_ONCE = 16
"""Fields that are read before they are brought to the other grid; bounds the memory."""


def regridded(catalog: Catalog, target: TargetGrid | None) -> FieldReader:
    """Return the reader of the fields of a catalog on the grid of `target`: its own reader if it has this grid.

    None keeps the grid of the fields, which must then be regular.
    """
    reader = catalog.reader
    stations = target.grid if target and isinstance(target.grid, Points) and target.grid.cells else None
    if stations and not has_ids(reader.grid):
        station_weights(reader.grid, stations)  # raises where a cell is missing
        return RegriddedReader(reader, stations)
    if (target is None or target.method is None) and isinstance(reader.grid, ReducedGrid):
        raise InputError(
            f"{catalog.place(0)} is on {reader.grid}; it can be read on a regular grid, whose steps in degrees "
            "data.archive.grid sets: data.archive.grid=0.5, for example"
        )
    if target is None or target.grid.matches(reader.grid):
        return reader
    if isinstance(target.grid, Points) and isinstance(reader.grid, Points):
        selected = SelectedPointsReader.of(reader, target.grid)
        say_once(f"{catalog}: {selected.describe()}")
        return selected
    if target.method is None:
        if (points := shared_points(target.grid, reader.grid)) is None:
            return reader
        say_once(f"{catalog}: the grid of {reader.grid} is read at the points of {target.grid}")
        return SharedPointsReader(reader, target.grid, *points)
    weights_between(reader.grid, target.grid, target.method)  # raises where a grid is not covered
    say_once(f"{catalog}: fields are brought from {reader.grid} to {target.grid} by {target.method} weights")
    parities = np.array([variable.parity for variable in catalog.wanted], np.int8)
    return RegriddedReader(reader, target.grid, target.method, parities[catalog.rows["variable"]])


def on_forecasts_grid(reader: FieldReader) -> FieldReader | None:
    """Return the reader of the same fields on the grid from whose cells stations read them; None for other readers."""
    if isinstance(reader, RegriddedReader) and reader.method is None:
        return reader.source
    return None


@dataclass(frozen=True, eq=False)
class SharedPointsReader:
    """Reads fields at the points that two grids share: `rows` and `columns` of the source."""

    source: FieldReader
    grid: Grid
    rows: np.ndarray
    columns: np.ndarray

    def read(self, wanted: np.ndarray, out: np.ndarray, window: Window) -> None:
        """Read the `window` of the fields with the numbers `wanted`; see `FieldReader`."""
        rows, columns = window
        self.source.read(wanted, out, (_index(self.rows[rows]), _index(self.columns[columns])))


@dataclass(frozen=True, eq=False)
class RegriddedReader:
    """Reads fields of another grid by the weights of `method`; `parities` are those of all fields.

    Without a method, the grid is one of stations, which have cells.
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


def _index(positions: np.ndarray) -> Index:
    return int(positions) if positions.ndim == 0 else positions
