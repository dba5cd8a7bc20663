"""Training: the forecasts and analyses that statistics may be taken of, as Dask arrays."""

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
from data_pipeline.formats.datasets import select
from data_pipeline.grid import Grid
from data_pipeline.protocols import ALL, DataSource
from data_pipeline.split import valid_in, verified
from data_pipeline.task import Channel, Task, Variable

Key = tuple[int, int]
"""Positions of a start and a lead time."""


@dataclass(frozen=True)
class Training:
    """The forecasts of `task` that are valid in the training `years`, first and last, and have an analysis."""

    source: DataSource
    task: Task
    years: tuple[int, int]

    @cached_property
    def grid(self) -> Grid:
        """Where all values lie."""
        grid, other = grid_of(self._forecasts), grid_of(self._analyses)
        if not grid.matches(other):
            raise InputError(f"the ensemble has {grid}, the analysis {other}; bring both to one grid first")
        return grid

    @cached_property
    def keys(self) -> list[tuple[int, int, int]]:
        """Positions (start, lead time, analysis) of all forecasts."""
        found = verified(self.starts[self._complete], self.task.lead_times, self.times, self._years)
        positions = np.flatnonzero(self._complete).tolist()
        return [(positions[i], j, k) for i, j, k in found]

    @property
    def left_out(self) -> int:
        """How many forecasts are no keys because a channel of `Task.further` has no field for their start."""
        return valid_in(self.starts[~self._complete], self.task.lead_times, self._years)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The members, by their numbers."""
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
        self, variable: Variable, keys: Collection[Key], rows: slice = ALL, only: int | None = None
    ) -> dict[Key, Delayed]:
        """Return the members (M, h, W) at each of the positions (start, lead time), to be computed.

        `rows` takes a band of latitudes, `only` the one member of that number, as (1, h, W).
        """
        array = select(self._forecasts, variable).isel(latitude=rows)
        if only is not None:
            array = array.sel(number=[only])
        return self._chunks(array, keys, ("init_time", "lead_time"), f"{variable} {only} {rows}")

    def channel(self, channel: Channel, keys: Collection[Key], only: int | None = None) -> dict[Key, Delayed]:
        """Return the members (M, H, W) of a channel at each of the positions (start, lead time), to be computed.

        `only` takes the one member of that number, as (1, H, W). A channel of the analysis has but one.
        """
        variable, leads = channel.variable, self.task.lead_times
        if channel.origin == "lead":
            return self.members(variable, keys, only=only)
        opened = self._opened(channel)
        at: dict[Key, tuple[int, ...]]
        axes: tuple[str, ...]
        if channel.origin == "analysis":
            array, axes = select(opened, variable).expand_dims(number=1, axis=1), ("time",)
            at = {(i, j): (int(self._position(opened.time, i)),) for i, j in keys}
        else:
            array, axes = select(opened, variable), ("init_time", "lead_time")
            array = array.sel(number=[only] if only is not None else list(self.numbers))
            lead_at = {lead: k for k, lead in enumerate(opened.lead_time.values.tolist())}
            at = {
                (i, j): (int(self._position(opened.init_time, i)), lead_at[channel.lead_time(leads[j])])
                for i, j in keys
            }
        chunks = self._chunks(array, list(dict.fromkeys(at.values())), axes, f"{channel} {only}")
        return {key: chunks[position] for key, position in at.items()}

    def truth(self, variable: Variable, positions: Collection[int], rows: slice = ALL) -> dict[int, Delayed]:
        """Return the analysis (h, W) at each of the positions, to be computed."""
        array = select(self._analyses, variable).isel(latitude=rows)
        chunks = self._chunks(array, [(k,) for k in positions], ("time",), f"truth {variable} {rows}")
        return {k: chunk for (k,), chunk in chunks.items()}

    def _chunks(
        self, array: xr.DataArray, keys: Collection[tuple[int, ...]], axes: Sequence[str], what: str
    ) -> dict[Any, Delayed]:
        """Return the parts of `array` at the positions along its first `axes`."""
        # A name of its own spares Dask from hashing the positions of all messages.
        name = f"{self.source.fingerprint} {self.task.lead_times} {what}"
        chunks = array.chunk(dict.fromkeys(axes, 1), token=name).data.to_delayed()
        shape, flat = array.shape[len(axes) :], chunks.reshape(chunks.shape[: len(axes)])
        reshape = delayed(np.reshape, pure=True)
        return {key: reshape(flat[key], shape) for key in keys}

    @property
    def _years(self) -> range:
        return range(self.years[0], self.years[1] + 1)

    @cached_property
    def _complete(self) -> np.ndarray:
        """Which starts have fields of all channels of `Task.further`, (starts,)."""
        complete = np.ones(len(self.starts), bool)
        for channel in self.task.further:
            opened = self._opened(channel)
            times = (opened.time if channel.origin == "analysis" else opened.init_time).values
            complete &= np.isin(self.starts, times.astype("datetime64[s]"))
        return complete

    def _position(self, times: xr.DataArray, start: int) -> np.intp:
        """Return where a start, given by its position, is among the times of a channel."""
        return np.searchsorted(times.values.astype("datetime64[s]"), self.starts[start])

    def _opened(self, channel: Channel) -> xr.Dataset:
        """Return the dataset in which a channel of `Task.further` is."""
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


def bands(rows: int, bytes_per_row: float, memory: float, multiple: int = 1) -> list[slice]:
    """Cut `rows` latitudes into bands that take about `memory` bytes each, of a `multiple` of rows."""
    height = max(int(memory / bytes_per_row) // multiple * multiple, multiple)
    return [slice(top, min(top + height, rows)) for top in range(0, rows, height)]
