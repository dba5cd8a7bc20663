"""Statistic: what each kind of statistic offers, so that one function can compute, write and report any of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np

from data_pipeline.statistics.training import Training
from data_pipeline.task import Channel, Variable

ROWS_OF_A_CHUNK = 16
"""Rows of latitude that lie together; bands are multiples of it, so that each chunk is written once."""

Axes = tuple[dict[str, tuple[str, ...]], dict[str, Sequence[Any] | np.ndarray]]
"""The dimensions of each variable of a file, and the coordinates besides latitude and longitude."""
Piece = tuple[str, dict[str, tuple[tuple[Any, ...], Any]]]
"""What has been computed, in words, and for each variable of the file where it belongs and the values."""


class Statistic(Protocol):
    """One kind of statistic, with its options as dataclass fields."""

    name: ClassVar[str]

    def axes(self, training: Training) -> Axes:
        """Return the dimensions of what is computed; refuse options that do not fit the data."""

    def reads(self, training: Training) -> int:
        """Return how many fields are read."""

    def steps(self, training: Training, at_once: int) -> int:
        """Return how many pieces `compute` yields."""

    def compute(self, training: Training, at_once: int) -> Iterator[Piece]:
        """Yield the values piece by piece, with memory for `at_once` computations at a time."""


def variable_names(variables: Iterable[Variable | Channel]) -> np.ndarray:
    """Return variables or channels as a coordinate."""
    return np.array([str(variable) for variable in variables], dtype=object)
