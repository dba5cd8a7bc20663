"""The forecasts and analyses of the training years, from which statistics are computed, as Dask arrays."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import xarray as xr
from dask.delayed import Delayed, delayed

from data_pipeline.archive import grid_of
from data_pipeline.common.errors import InputError
from data_pipeline.formats.datasets import select_variable
from data_pipeline.grid import Grid
from data_pipeline.protocols import ALL, DataSource
from data_pipeline.split import count_valid, verified_forecasts
from data_pipeline.task import Channel, Task, Variable

ForecastKey = tuple[int, int]
"""Positions of a forecast's start and lead time."""


@dataclass(frozen=True)
class TrainingForecasts:
    """The forecasts of `task` that are valid in `years` (first, last) and have an analysis."""

    source: DataSource
    task: Task
    years: tuple[int, int]

    @cached_property
    def grid(self) -> Grid:
        """The grid of ensemble and analysis; raises if they differ."""
        grid, analysis_grid = grid_of(self._forecasts), grid_of(self._analyses)
        if not grid.matches(analysis_grid):
            raise InputError(
                f"the ensemble has {grid}, the analysis has {analysis_grid}; interpolate one to the grid of the other"
            )
        return grid

    @cached_property
    def keys(self) -> list[tuple[int, int, int]]:
        """Positions (start, lead time, analysis) of all forecasts."""
        verified_keys = verified_forecasts(self.starts[self._complete], self.task.lead_times, self.times, self._years)
        positions = np.flatnonzero(self._complete).tolist()
        return [(positions[i], j, k) for i, j, k in verified_keys]

    @property
    def skipped(self) -> int:
        """Number of forecasts without a key, because a channel of `Task.further` has no field for their start."""
        return count_valid(self.starts[~self._complete], self.task.lead_times, self._years)

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
        self, variable: Variable, keys: Collection[ForecastKey], rows: slice = ALL, member: int | None = None
    ) -> dict[ForecastKey, Delayed]:
        """Return the delayed members (M, h, W) of a variable at each key.

        `rows` selects a band of latitudes, `member` the one member with that number, as (1, h, W).
        """
        array = select_variable(self._forecasts, variable).isel(latitude=rows)
        if member is not None:
            array = array.sel(number=[member])
        return self._chunks(array, keys, ("init_time", "lead_time"), f"{variable} {member} {rows}")

    def channel(
        self, channel: Channel, keys: Collection[ForecastKey], member: int | None = None
    ) -> dict[ForecastKey, Delayed]:
        """Return the delayed members (M, H, W) of a channel at each key.

        `member` selects the one member with that number, as (1, H, W). A channel of the analysis has one member.
        """
        variable, leads = channel.variable, self.task.lead_times
        if channel.origin == "lead":
            return self.members(variable, keys, member=member)
        opened = self._dataset(channel)
        at: dict[ForecastKey, tuple[int, ...]]
        axes: tuple[str, ...]
        if channel.origin == "analysis":
            array, axes = select_variable(opened, variable).expand_dims(number=1, axis=1), ("time",)
            at = {(i, j): (int(self._position(opened.time, i)),) for i, j in keys}
        else:
            array, axes = select_variable(opened, variable), ("init_time", "lead_time")
            array = array.sel(number=[member] if member is not None else list(self.numbers))
            lead_at = {lead: k for k, lead in enumerate(opened.lead_time.values.tolist())}
            at = {
                (i, j): (int(self._position(opened.init_time, i)), lead_at[channel.lead_time(leads[j])])
                for i, j in keys
            }
        chunks = self._chunks(array, list(dict.fromkeys(at.values())), axes, f"{channel} {member}")
        return {key: chunks[position] for key, position in at.items()}

    def truth(self, variable: Variable, positions: Collection[int], rows: slice = ALL) -> dict[int, Delayed]:
        """Return the delayed analysis (h, W) at each of the positions."""
        array = select_variable(self._analyses, variable).isel(latitude=rows)
        chunks = self._chunks(array, [(k,) for k in positions], ("time",), f"truth {variable} {rows}")
        return {k: chunk for (k,), chunk in chunks.items()}

    def _chunks(
        self, array: xr.DataArray, keys: Collection[tuple[int, ...]], axes: Sequence[str], label: str
    ) -> dict[Any, Delayed]:
        """Return the delayed parts of `array` at the positions along its first `axes`."""
        # With a token, Dask does not hash the positions of all messages.
        name = f"{self.source.fingerprint} {self.task.lead_times} {label}"
        chunks = array.chunk(dict.fromkeys(axes, 1), token=name).data.to_delayed()
        shape, flat = array.shape[len(axes) :], chunks.reshape(chunks.shape[: len(axes)])
        reshape = delayed(np.reshape, pure=True)
        return {key: reshape(flat[key], shape) for key in keys}

    @property
    def _years(self) -> range:
        return range(self.years[0], self.years[1] + 1)

    @cached_property
    def _complete(self) -> np.ndarray:
        """Whether each start has fields of all channels of `Task.further`, (starts,)."""
        complete = np.ones(len(self.starts), bool)
        for channel in self.task.further:
            opened = self._dataset(channel)
            times = (opened.time if channel.origin == "analysis" else opened.init_time).values
            complete &= np.isin(self.starts, times.astype("datetime64[s]"))
        return complete

    def _position(self, times: xr.DataArray, start: int) -> np.intp:
        """Return the position of a start, given by its position in `starts`, among the times of a channel."""
        return np.searchsorted(times.values.astype("datetime64[s]"), self.starts[start])

    def _dataset(self, channel: Channel) -> xr.Dataset:
        """Return the dataset that holds a channel of `Task.further`."""
        if channel.origin == "analysis":
            return self._at_start
        return self._at_other_leads[channel.origin, channel.hours]

    @cached_property
    def _at_start(self) -> xr.Dataset:
        return self.source.analyses(self.task.analysis)

    @cached_property
    def _at_other_leads(self) -> dict[tuple[str, int], xr.Dataset]:
        groups: dict[tuple[str, int], list[Channel]] = {}
        for channel in self.task.other_leads:
            groups.setdefault((channel.origin, channel.hours), []).append(channel)
        return {
            key: self.source.forecasts(
                [channel.variable for channel in channels],
                sorted({channels[0].lead_time(lead) for lead in self.task.lead_times}),
            )
            for key, channels in groups.items()
        }

    @cached_property
    def _forecasts(self) -> xr.Dataset:
        return self.source.forecasts(self.task.inputs, self.task.lead_times)

    @cached_property
    def _analyses(self) -> xr.Dataset:
        return self.source.analyses(self.task.targets)


def latitude_bands(rows: int, bytes_per_row: float, memory: float, multiple: int = 1) -> list[slice]:
    """Cut `rows` latitudes into bands of about `memory` bytes each, whose height is a multiple of `multiple`.

    >>> latitude_bands(5, bytes_per_row=10, memory=20)
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    height = max(int(memory / bytes_per_row) // multiple * multiple, multiple)
    return [slice(top, min(top + height, rows)) for top in range(0, rows, height)]
