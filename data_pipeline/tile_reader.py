"""Read a tile of one forecast into an array, and find the cells where all members have a value; without PyTorch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from data_pipeline.protocols import ALL, Fields, ReducingFields
from data_pipeline.pseudo_members import reduce_members


def read_tile(
    fields: Fields,
    init: int,
    lead: int,
    out: np.ndarray,
    rows: slice = ALL,
    columns: slice = ALL,
    members: Sequence[int] | None = None,
) -> None:
    """Fill `out` (M, V, h, w) with some rows and columns of a forecast; files are read by full rows."""
    with _full_rows(fields, out, columns) as whole:
        fields.read(init, lead, whole, rows, members)


def read_moments(
    fields: Fields,
    init: int,
    lead: int,
    out: np.ndarray,
    rows: slice = ALL,
    columns: slice = ALL,
    members: Sequence[int] | None = None,
) -> None:
    """Fill `out` (2, V, h, w) with some rows and columns of the pseudo-members of `members` (None: all)."""
    with _full_rows(fields, out, columns) as whole:
        if isinstance(fields, ReducingFields):
            fields.read_moments(init, lead, whole, rows, members)
        else:
            count = len(fields.numbers if members is None else members)
            reduce_members(lambda values: fields.read(init, lead, values, rows, members), count, whole)


@contextmanager
def _full_rows(fields: Fields, out: np.ndarray, columns: slice) -> Iterator[np.ndarray]:
    """Yield an array like `out` with full rows; at the end, copy its `columns` to `out`."""
    if out.shape[-1] == (width := fields.grid.shape[1]):
        yield out
        return
    whole = np.empty((*out.shape[:-1], width), out.dtype)
    yield whole
    out[...] = whole[..., columns]


def complete_cells(members: np.ndarray) -> np.ndarray:
    """Return where all members (M, ...) have a value."""
    with np.errstate(over="ignore", invalid="ignore"):
        # Most samples have no missing value. A sum detects this at memory speed, because NaN propagates.
        if np.isfinite(members.sum()):
            return np.ones(members.shape[1:], bool)
    return np.logical_and.reduce([np.isfinite(member) for member in members])
