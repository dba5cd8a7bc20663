"""Protocols of data sources, which all packages use: archives, derived stores and generated data implement them.

`DataSource` opens forecasts, analyses and static fields. `Fields` reads the fields of samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

import numpy as np

from data_pipeline.dates import Dates
from data_pipeline.formulas.formula import Formula
from data_pipeline.grid import Grid
from data_pipeline.ledger import Omission
from data_pipeline.meaning import Meaning
from data_pipeline.task import Task, Variable

if TYPE_CHECKING:
    import xarray as xr

ALL = slice(None)

MissingPolicy = Literal["error", "mask", "drop"]
"""What happens to a forecast that lacks a field: an `InputError`, missing values (NaN), or it is left out."""


@dataclass(frozen=True)
class MissingFields:
    """The missing fields of one forecast: `count` of `of` fields, in these `channels`; member and file of the first."""

    channels: tuple[str, ...]
    number: int
    file: str
    count: int
    of: int


class Fields(Protocol):
    """Fields of some variables by start, lead time and member, read into an array of the caller.

    Opening reads no values. Analyses are forecasts with lead time 0 and one member; their start is their valid time.
    Implementations are thread-safe and can be pickled.
    """

    @property
    def grid(self) -> Grid:
        """The grid of the values; north first, west to east."""

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The variable of each channel C, in the requested order."""

    @property
    def init_times(self) -> np.ndarray:
        """Starts in increasing order, datetime64[s], UTC."""

    @property
    def lead_times(self) -> tuple[int, ...]:
        """Hours, in increasing order."""

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of the members M."""

    @property
    def meanings(self) -> tuple[Meaning, ...]:
        """Units, intervals and level of each channel."""

    @property
    def incomplete(self) -> Mapping[tuple[int, int], MissingFields]:
        """The missing fields of each forecast that lacks one, by the positions of its start and lead time."""

    def read(
        self, init: int, lead: int, out: np.ndarray, rows: slice = ALL, members: Sequence[int] | None = None
    ) -> None:
        """Fill `out` (M, C, h, W), float32 or float64, with the forecast at positions `init` and `lead`.

        `rows` (step 1) selects latitudes, `members` positions in `numbers`. Only the selection is read if the format
        allows it. Missing values are NaN.
        """


@runtime_checkable
class ReducingFields(Protocol):
    """`Fields` that can be read as moments, without memory for all members where the format allows it."""

    def read_moments(
        self, init: int, lead: int, out: np.ndarray, rows: slice = ALL, members: Sequence[int] | None = None
    ) -> None:
        """Fill `out` (2, C, h, W), float32, with the two pseudo-members of a forecast (`data_pipeline.pseudo_members`).

        They equal those of the members that `Fields.read` returns, bit for bit.
        """


Chunks = Literal["auto"] | None
"""`auto`: dask arrays with one chunk per start and lead time. None: values are read when they are indexed."""


class FieldSource(Protocol):
    """Opens the fields of samples: the part of `DataSource` that `inputs.input_fields` needs."""

    def ensemble_fields(self, variables: Sequence[Variable], lead_times: Sequence[int]) -> Fields:
        """Open the ensemble to read samples from; missing fields are NaN."""

    def analysis_fields(self, variables: Sequence[Variable]) -> Fields:
        """Open the analyses to read samples from; missing fields are NaN."""


@runtime_checkable
class FormulaSource(Protocol):
    """A source that holds the values of some formulas: `ensemble_fields` opens them like variables."""

    @property
    def formulas(self) -> Sequence[Formula]:
        """The formulas whose values it holds."""


class DataSource(FieldSource, Protocol):
    """Forecasts, the analyses that verify them, and static fields; opening reads no values."""

    @property
    def moments(self) -> int | None:
        """Number of members that two `pseudo_members` replace; None if all are stored."""

    @property
    def missing(self) -> MissingPolicy:
        """What `selection.select_forecasts` does with a forecast that lacks a field."""

    @property
    def omissions(self) -> Sequence[Omission]:
        """Forecasts that the source was made without, or with missing values; empty for files as they came."""

    @property
    def fingerprint(self) -> str:
        """A hash that changes when the files change."""

    @property
    def static(self) -> xr.Dataset:
        """All static fields, (latitude, longitude); empty if there are none."""

    def check_available(self, task: Task, dates: Dates, moments: bool) -> None:
        """Raise an `InputError` unless the source has the forecasts of `task` that are valid on `dates`.

        `moments`: mean and spread of the members suffice.
        """

    def forecasts(self, variables: Sequence[Variable], lead_times: Sequence[int], chunks: Chunks = None) -> xr.Dataset:
        """Open the ensemble as (init_time, lead_time, number, [level,] latitude, longitude); missing fields are NaN."""

    def analyses(self, variables: Sequence[Variable], chunks: Chunks = None) -> xr.Dataset:
        """Open the analyses as (time, [level,] latitude, longitude); missing fields are NaN."""


@runtime_checkable
class MeasuredDataset(Protocol):
    """A data set of samples that states their size, so that a fit reads as many at once as fit into memory."""

    @property
    def nbytes(self) -> int:
        """Bytes of one sample in memory."""
