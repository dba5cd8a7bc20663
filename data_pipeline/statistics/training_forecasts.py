"""The forecasts and analyses of the training years, from which statistics are computed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.dates import Dates
from data_pipeline.grid import Grid
from data_pipeline.grids.points import Points
from data_pipeline.ledger import Ledger
from data_pipeline.protocols import ALL, DataSource, Fields
from data_pipeline.samples.inputs import OpenedTask, open_task
from data_pipeline.samples.selection import Selection, select_forecasts
from data_pipeline.task import Task

if TYPE_CHECKING:
    from dask.delayed import Delayed

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

    @property
    def keys(self) -> list[tuple[int, int, int]]:
        """Positions (start, lead time, analysis) of all forecasts in `inputs` and `truth`."""
        return self._selection.keys

    @property
    def ledger(self) -> Ledger:
        """The numbers of forecasts that are used and left out."""
        return self._selection.ledger

    def members(self, target: int, keys: Collection[ForecastKey], rows: slice = ALL) -> dict[ForecastKey, Delayed]:
        """Return the delayed members (M, h, W) of a target of the task at each key, in a band of latitudes."""
        from dask.delayed import delayed

        # Dask neither hashes nor copies the positions of all messages.
        fields, read = delayed(self.inputs, pure=False, traverse=False), delayed(_members, pure=False)
        channel = self.task.target_channels[target]
        return {key: read(fields, key, channel, rows) for key in keys}

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


def _members(fields: Fields, key: ForecastKey, channel: int, rows: slice) -> np.ndarray:
    """Return rows of all members of a channel, (M, h, W)."""
    wanted, (height, width) = fields.cells[key][:, channel, None], fields.grid.shape
    out = np.empty((len(wanted), 1, len(range(height)[rows]), width), np.float32)
    fields.read(wanted, out, (rows, ALL))
    return out[:, 0]


def latitude_bands(rows: int, bytes_per_row: float, memory: float, multiple: int = 1) -> list[slice]:
    """Cut `rows` latitudes into bands of about `memory` bytes; the height of a band is a multiple of `multiple`.

    >>> latitude_bands(5, bytes_per_row=10, memory=20)
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    height = max(int(memory / bytes_per_row) // multiple * multiple, multiple)
    return [slice(top, min(top + height, rows)) for top in range(0, rows, height)]
