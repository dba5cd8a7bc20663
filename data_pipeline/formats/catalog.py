"""Protocol of a file format: a `Catalog` lists the fields in its files, its `FieldReader` reads their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol, Self

import numpy as np

from data_pipeline.common.files import FileAddress
from data_pipeline.protocols import FieldReader
from data_pipeline.task import Variable

SINGLE, DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
"""Models take single precision; double precision keeps members distinct wherever the file does."""

Summary = Literal["", "mean", "std", "quantile"]
"""What a field is instead of a member (an empty text)."""
MEAN, STD = 0, 1
"""Numbers of a mean and of a standard deviation, in place of the number of a member."""
LEVEL_STEPS = 1_000_000_000
"""A quantile of level τ has the number τ times this, because numbers of members are whole."""


class Catalog(Protocol):
    """The fields of the `wanted` variables in several files, one row each."""

    @property
    def paths(self) -> tuple[FileAddress, ...]:
        """The files, or Zarr stores."""

    @property
    def wanted(self) -> tuple[Variable, ...]:
        """The variables, each once."""

    @property
    def rows(self) -> np.ndarray:
        """One row per field.

        `variable` and `file` are positions in `wanted` and `paths`; `init` is the start (seconds since 1970), `step`
        the lead time (minutes, negative if unknown), `number` the member. `interval` (minutes) is the length of the
        time interval that the field covers; it ends at the lead time. See `Meaning` for its special values.
        """

    @property
    def reader(self) -> FieldReader:
        """The reader of these fields, which it numbers as `rows`; fields on several grids raise `InputError`."""

    def where(self, condition: np.ndarray) -> Self:
        """Return a catalog of the fields for which `condition` holds."""

    def place(self, row: int) -> str:
        """Return the file of a field and the position in it, for error messages."""

    def units(self, name: str) -> tuple[str, str]:
        """Return units and long name of the variables called `name`; `InputError` if files disagree."""

    def levels(self, rows: np.ndarray) -> Mapping[str, int]:
        """Return the level of the fields in some `rows`, and their number by level; see `formats.levels`."""

    def refuse_contradiction(self, first: int, second: int) -> None:
        """Raise `InputError` for two fields with equal variable, time and member, unless their contents are equal."""


def describe_files(files: Sequence[FileAddress]) -> str:
    """Return the name of one file, or the name of the first file and the number of others."""
    return str(files[0]) if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"
