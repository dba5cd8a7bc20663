"""Read the fields of a catalog on another grid: at points that both grids share, or by weights between the grids."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.common.messages import say_once
from data_pipeline.formats.catalog import Catalog
from data_pipeline.formats.selected_points import SelectedPointsReader
from data_pipeline.grid import Grid
from data_pipeline.grids.points import Points, has_ids
from data_pipeline.grids.reduced_grid import ReducedGrid
from data_pipeline.protocols import FieldReader, Index, Window
from data_pipeline.regridding.grid_coverage import shared_points
from data_pipeline.regridding.regridded_reader import RegriddedReader
from data_pipeline.regridding.stations import station_weights
from data_pipeline.regridding.target import TargetGrid
from data_pipeline.regridding.weights import weights_between


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


def _index(positions: np.ndarray) -> Index:
    return int(positions) if positions.ndim == 0 else positions
