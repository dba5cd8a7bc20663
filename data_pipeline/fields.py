"""Fields: what every data source offers for samples, whatever the format of its files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from data_pipeline.grid import Grid
from data_pipeline.task import Variable

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
