"""Protocols of data sources, which all packages use: archives, derived stores and generated data implement them.

`DataSource` opens forecasts, analyses and static fields as `Fields`: a table of numbers, and the `FieldReader` of the
fields with these numbers. Every reader has the same `read`, into an array of the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

import numpy as np

from data_pipeline.dates import Dates
from data_pipeline.formulas.formula import Formula
from data_pipeline.grid import Grid
from data_pipeline.ledger import Omission
from data_pipeline.task import Task, Variable
from data_pipeline.variables.meaning import Meaning

if TYPE_CHECKING:
    import xarray as xr

ALL = slice(None)

Index = int | slice | np.ndarray
Window = tuple[Index, Index]
"""Rows and columns of a field."""
WHOLE: Window = (ALL, ALL)


class FieldReader(Protocol):
    """Reads fields on one grid, numbered from 0; keeps no file open, so that it can be sent to other processes.

    Implementations are thread-safe.
    """

    @property
    def grid(self) -> Grid:
        """The grid of the values; north first, west to east."""

    def read(self, wanted: np.ndarray, out: np.ndarray, window: Window) -> None:
        """Read the `window` of the fields with the numbers `wanted` (...) into `out` (..., h, w), float32 or float64.

        A negative number gives NaN. Only the window is read if the format allows it.
        """


@runtime_checkable
class IdentifiedReader(Protocol):
    """A `FieldReader` that says which of its fields another reader of the same files has, too."""

    def identity(self, wanted: np.ndarray) -> Hashable | None:
        """Return a value that is equal for two readers if the fields `wanted` have the same values in both, or None."""


@runtime_checkable
class MomentReader(Protocol):
    """A `FieldReader` that reduces members to moments while it reads them, without an array of all members."""

    def read_moments(self, wanted: np.ndarray, out: np.ndarray, window: Window) -> None:
        """Fill `out` (2, C, h, w), float32, with the pseudo-members of the fields `wanted` (M, C).

        The values are those of `pseudo_members` of the fields that `read` returns, bit for bit.
        """


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
    gone: tuple[int, ...] = ()
    """The members that lack all fields, if no other member lacks one."""


@dataclass(frozen=True, eq=False)
class Fields:
    """Fields of some variables by start, lead time and member; opening reads no values.

    `cells` (start, lead time, member, channel) are their numbers in `reader`, negative where a field is missing.
    Analyses are forecasts with lead time 0 and one member; their start is their valid time.

    `init_times` increase, datetime64[s], UTC; `lead_times` are hours, in increasing order; `numbers` are those of the
    members. `variables` and `meanings` have one entry for each channel, in the requested order.
    """

    reader: FieldReader
    variables: tuple[Variable, ...]
    init_times: np.ndarray
    lead_times: tuple[int, ...]
    numbers: tuple[int, ...]
    meanings: tuple[Meaning, ...]
    cells: np.ndarray
    find_incomplete: Callable[[], Mapping[tuple[int, int], MissingFields]] = dict
    """Returns `incomplete`."""

    @property
    def grid(self) -> Grid:
        """The grid of the values; north first, west to east."""
        return self.reader.grid

    @cached_property
    def incomplete(self) -> Mapping[tuple[int, int], MissingFields]:
        """The missing fields of each forecast that lacks one, by the positions of its start and lead time."""
        return self.find_incomplete()

    def read(self, wanted: np.ndarray, out: np.ndarray, window: Window = WHOLE) -> None:
        """Read some fields, such as `cells[init, lead]`, into `out` (M, C, h, w); see `FieldReader`."""
        self.reader.read(wanted, out, window)

    def identity(self, wanted: np.ndarray) -> Hashable | None:
        """Return a value that is the same for fields with the same values; None if they cannot be compared."""
        return None if self._identified is None or (wanted < 0).any() else self._identified.identity(wanted)

    @cached_property
    def _identified(self) -> IdentifiedReader | None:
        """The reader if its fields can be compared; the check of a protocol takes longer than to read a station."""
        return self.reader if isinstance(self.reader, IdentifiedReader) else None


def fill_missing(wanted: np.ndarray, out: np.ndarray) -> np.ndarray:
    """Set the fields of `out` (..., h, w) whose number in `wanted` (...) is negative to NaN.

    Returns the positions of the others in the flat `wanted`.
    """
    if out.shape[: wanted.ndim] != wanted.shape:
        raise ValueError(f"the array to fill is {out.shape}, the fields asked for are {wanted.shape}")
    out[wanted < 0] = np.nan
    return np.flatnonzero(wanted >= 0)


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
    def moments(self) -> tuple[int, ...] | None:
        """Numbers of the members that two `pseudo_members` replace; None if all are stored."""

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


@runtime_checkable
class MeasuredDataset(Protocol):
    """A data set of samples that states their size, so that a fit reads as many at once as fit into memory."""

    @property
    def nbytes(self) -> int:
        """Bytes of one sample in memory."""
