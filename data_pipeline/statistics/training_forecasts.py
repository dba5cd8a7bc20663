"""The forecasts and analyses of the training years as Dask arrays, from which statistics are computed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import xarray as xr
from dask.delayed import Delayed, delayed

from data_pipeline.common.errors import InputError
from data_pipeline.dates import Dates
from data_pipeline.formats.datasets import select_variable
from data_pipeline.grid import Grid
from data_pipeline.inputs import OpenedTask, open_task
from data_pipeline.ledger import Ledger
from data_pipeline.points import Points
from data_pipeline.protocols import ALL, DataSource, Fields
from data_pipeline.selection import Selection, select_forecasts
from data_pipeline.task import Task, Variable

ForecastKey = tuple[int, int]
"""Positions of a forecast's start and lead time."""


@dataclass(frozen=True)
class TrainingForecasts:
    """The forecasts of `task` that are valid on `dates` and can be used."""

    source: DataSource
    task: Task
    dates: Dates

    @cached_property
    def grid(self) -> Grid:
        """The grid of ensemble and analysis; an `InputError` for points."""
        if isinstance(grid := self.inputs.grid, Points):
            raise InputError(f"statistics are maps on a grid, and the data are {grid}; leave out statistics")
        return grid

    @cached_property
    def keys(self) -> list[tuple[int, int, int]]:
        """Positions (start, lead time, analysis) of all used forecasts; starts are positions in `starts`."""
        starts = np.searchsorted(self.starts, self.inputs.init_times).tolist()
        return [(starts[i], j, k) for i, j, k in self._selection.keys]

    @property
    def selected(self) -> list[tuple[int, int, int]]:
        """Positions (start, lead time, analysis) of all used forecasts in `inputs` and `truth`."""
        return self._selection.keys

    @property
    def ledger(self) -> Ledger:
        """The numbers of forecasts that are used and left out."""
        return self._selection.ledger

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of the members."""
        return tuple(self._forecasts.number.values.tolist())

    @cached_property
    def starts(self) -> np.ndarray:
        """All starts of the ensemble, datetime64[s]."""
        return self._forecasts.init_time.values.astype("datetime64[s]")

    @cached_property
    def times(self) -> np.ndarray:
        """The times of all analyses, datetime64[s]."""
        return self._analyses.time.values.astype("datetime64[s]")

    def members(
        self, variable: Variable, keys: Collection[ForecastKey], rows: slice = ALL
    ) -> dict[ForecastKey, Delayed]:
        """Return the delayed members (M, h, W) of a variable at each key; `rows` selects a band of latitudes."""
        array = select_variable(self._forecasts, variable).isel(latitude=rows)
        return self._chunks(array, keys, ("init_time", "lead_time"), f"{variable} {rows}")

    def _chunks(
        self, array: xr.DataArray, keys: Collection[tuple[int, ...]], axes: Sequence[str], label: str
    ) -> dict[Any, Delayed]:
        """Return the delayed parts of `array` at the positions along its first `axes`."""
        # The token saves Dask from hashing the positions of all messages.
        name = f"{self.source.fingerprint} {self.task.lead_times} {label}"
        chunks = array.chunk(dict.fromkeys(axes, 1), token=name).data.to_delayed()
        shape, flat = array.shape[len(axes) :], chunks.reshape(chunks.shape[: len(axes)])
        reshape = delayed(np.reshape, pure=True)
        return {key: reshape(flat[key], shape) for key in keys}

    @cached_property
    def _selection(self) -> Selection:
        return select_forecasts(self.source, self.task, self._opened, self.dates)

    @cached_property
    def _opened(self) -> OpenedTask:
        return open_task(self.source, self.task, self.dates)

    @property
    def inputs(self) -> Fields:
        """The fields of all channels of the task."""
        return self._opened.inputs

    @property
    def truth(self) -> Fields:
        """The analyses of the targets."""
        return self._opened.truth

    @cached_property
    def _forecasts(self) -> xr.Dataset:
        return self.source.forecasts(self.task.inputs, self.task.lead_times)

    @cached_property
    def _analyses(self) -> xr.Dataset:
        return self.source.analyses(self.task.targets)


def latitude_bands(rows: int, bytes_per_row: float, memory: float, multiple: int = 1) -> list[slice]:
    """Cut `rows` latitudes into bands of about `memory` bytes; the height of a band is a multiple of `multiple`.

    >>> latitude_bands(5, bytes_per_row=10, memory=20)
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    height = max(int(memory / bytes_per_row) // multiple * multiple, multiple)
    return [slice(top, min(top + height, rows)) for top in range(0, rows, height)]
