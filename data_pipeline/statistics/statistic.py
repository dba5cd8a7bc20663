"""The protocol of statistics, such as the climate of the extreme forecast index."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np

from data_pipeline.common.checks import check_integer
from data_pipeline.common.errors import InputError
from data_pipeline.statistics.training_forecasts import TrainingForecasts
from data_pipeline.task import Variable

ROWS_OF_A_CHUNK = 16
"""Latitudes in a chunk of a file. The height of a band is a multiple of it, so that each chunk is written once."""

Axes = tuple[dict[str, tuple[str, ...]], dict[str, Sequence[Any] | np.ndarray]]
"""Dimensions of each variable of a file, and its coordinates other than latitude and longitude."""
Piece = tuple[str, dict[str, tuple[tuple[Any, ...], Any]]]
"""A description for the progress line, and for each variable of the file the index and values to write."""


class Statistic(Protocol):
    """A statistic; its dataclass fields are options, `name` names its file, `precision` is the type of its values."""

    name: ClassVar[str]
    precision: ClassVar[type]

    def axes(self, training: TrainingForecasts) -> Axes:
        """Return the dimensions and coordinates of the computed variables; raise if options do not fit the data."""

    def count_fields(self, training: TrainingForecasts) -> int:
        """Return the number of fields that are read."""

    def count_pieces(self, training: TrainingForecasts, at_once: int) -> int:
        """Return the number of pieces that `compute` yields."""

    def compute(self, training: TrainingForecasts, at_once: int) -> Iterator[Piece]:
        """Yield the values piece by piece; memory must hold `at_once` computations at a time."""


def check_window(name: str, value: int, largest: int) -> None:
    """Raise unless `value` is an odd number from 1 to `largest`."""
    check_integer(name, value, 1, largest)
    if value % 2 == 0:
        raise InputError(f"{name} must be odd, so that the window has a centre; got {value}")


def variable_names(variables: Iterable[Variable]) -> np.ndarray:
    """Return the names of variables as a coordinate."""
    return np.array([str(variable) for variable in variables], dtype=object)
