"""Source: what samples are made from, be it an archive as it came or a store derived from one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal, Protocol

import xarray as xr

from data_pipeline.fields import Fields
from data_pipeline.task import Channel, Variable

Chunks = Literal["auto"] | None
"""`auto`: dask arrays, one chunk per start and lead time; None: read when indexed."""


class Source(Protocol):
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

    def refuse(self, years: Collection[int], moments: bool, further: Collection[Channel] = ()) -> None:
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
