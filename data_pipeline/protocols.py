"""Protocols: what every data source offers, whatever the format of its files.

`DataSource` is an archive as it came or a store derived from one; `Fields` are its fields, for samples.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal, Protocol

import numpy as np
import xarray as xr

from data_pipeline.grid import Grid
from data_pipeline.task import Channel, Variable

ALL = slice(None)


class Fields(Protocol):
    """Fields of some variables by start, lead time and member, read straight into an array of the caller's.

    Opening reads no values. Analyses are forecasts of lead time 0 with one member, whose start is the time for
    which they are valid. Reading is safe from several threads at once, and an object can be sent to other processes.
    """

    @property
    def grid(self) -> Grid:
        """Where the values lie; north first, west to east."""

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The channels C, in the order that was asked for."""

    @property
    def init_times(self) -> np.ndarray:
        """Starts in increasing order, datetime64[s], UTC."""

    @property
    def lead_times(self) -> tuple[int, ...]:
        """Hours, in increasing order."""

    @property
    def numbers(self) -> tuple[int, ...]:
        """The members M, by their numbers."""

    def read(
        self, init: int, lead: int, out: np.ndarray, rows: slice = ALL, members: Sequence[int] | None = None
    ) -> None:
        """Fill `out` (M, C, h, W), float32 or float64, with the forecast at positions `init` and `lead`.

        `rows` (step 1) chooses latitudes, `members` positions among `numbers`; no more is read than is asked for where
        the format allows it. What is missing is NaN.
        """


Chunks = Literal["auto"] | None
"""`auto`: dask arrays, one chunk per start and lead time; None: read when indexed."""


class DataSource(Protocol):
    """Forecasts, the analyses that verify them, fields that never change; opened cheaply, read lazily."""

    @property
    def moments(self) -> int | None:
        """How many members the two pseudo-members of `data_pipeline.moments` stand for; None: all are there."""

    @property
    def fingerprint(self) -> str:
        """Changes whenever the files of the archive change."""

    @property
    def static(self) -> xr.Dataset:
        """All static fields, (latitude, longitude); empty where there are none."""

    def check_available(self, years: Collection[int], moments: bool, further: Collection[Channel] = ()) -> None:
        """Refuse to be asked for what only the archive has: other years of valid time, members instead of moments.

        `moments` says that mean and spread of all members will do; `further` are the task's channels at other lead
        times and of the analysis.
        """

    def forecasts(self, variables: Sequence[Variable], lead_times: Sequence[int], chunks: Chunks = None) -> xr.Dataset:
        """Open the ensemble as (init_time, lead_time, number, [level,] latitude, longitude)."""

    def analyses(self, variables: Sequence[Variable], chunks: Chunks = None) -> xr.Dataset:
        """Open the truth as (time, [level,] latitude, longitude)."""

    def ensemble_fields(self, variables: Sequence[Variable], lead_times: Sequence[int]) -> Fields:
        """Open the ensemble to read samples from."""

    def analysis_fields(self, variables: Sequence[Variable]) -> Fields:
        """Open the truth to read samples from."""
