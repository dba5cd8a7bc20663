"""Reading of a tile of one forecast into an array, and where all members have a value; without PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from data_pipeline.protocols import ALL, Fields


def read_tile(
    fields: Fields,
    init: int,
    lead: int,
    out: np.ndarray,
    rows: slice = ALL,
    columns: slice = ALL,
    members: Sequence[int] | None = None,
) -> None:
    """Fill `out` (M, V, h, w) with rows and columns of a field; files are read by full rows."""
    if out.shape[-1] == (width := fields.grid.shape[1]):
        fields.read(init, lead, out, rows, members)
        return
    full_rows = np.empty((*out.shape[:-1], width), out.dtype)
    fields.read(init, lead, full_rows, rows, members)
    out[...] = full_rows[..., columns]


def complete_cells(members: np.ndarray) -> np.ndarray:
    """Return where all members (M, ...) have a value."""
    with np.errstate(over="ignore", invalid="ignore"):
        # Most samples have no missing value. A sum detects this at memory speed, because NaN propagates.
        if np.isfinite(members.sum()):
            return np.ones(members.shape[1:], bool)
    return np.logical_and.reduce([np.isfinite(member) for member in members])
