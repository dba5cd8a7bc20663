"""Catalog: what a format tells about the fields in its files, and how their values are read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, Self

import numpy as np

from data_pipeline.grid import Grid
from data_pipeline.task import Variable

SINGLE, DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
"""Single precision is what models take; only double tells two members apart wherever the file does."""

Index = int | slice | np.ndarray
Window = tuple[Index, Index]
"""Rows and columns of a field."""


class FieldReader(Protocol):
    """Fields of one grid, counted from 0, whose values can be read; holds nothing open."""

    @property
    def grid(self) -> Grid:
        """Where the values lie; north first, west to east."""

    def read(self, wanted: np.ndarray, out: np.ndarray, window: Window) -> None:
        """Read the `window` of each field in `wanted` (...) into `out` (..., h, w); NaN where it is negative."""


class Catalog(Protocol):
    """The fields of the `wanted` variables in several files, one row for each."""

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files."""

    @property
    def wanted(self) -> tuple[Variable, ...]:
        """The variables, each once."""

    @property
    def rows(self) -> np.ndarray:
        """Where each field belongs: `variable` (its place in `wanted`), `file` (in `paths`), `init` (seconds since
        1970), `step` (minutes, negative if unknown) and `number`.
        """

    @property
    def source(self) -> FieldReader:
        """The fields' values, counted as in `rows`; an error if they do not share one grid."""

    def where(self, condition: np.ndarray) -> Self:
        """Return only the fields for which `condition` holds."""

    def place(self, row: int) -> str:
        """Return where a field stands, in words."""

    def units(self, name: str) -> tuple[str, str]:
        """Return units and long name of the variables called `name`; an error if files disagree."""

    def refuse_contradiction(self, first: int, second: int) -> None:
        """Refuse two fields for one place, unless they are the same."""


def listed(files: Sequence[Path]) -> str:
    """Return the name of one file, or of the first of many."""
    return str(files[0]) if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"
