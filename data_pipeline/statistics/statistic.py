"""The protocol of statistics, and the mean and standard deviation of many values from those of their parts.

Sums of squares lose all digits where a mean is large and a spread small, as for geopotential. Means and sums of squared
departures from them do not (Chan, Golub and LeVeque 1983, doi:10.1080/00031305.1983.10483115).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import numpy as np
from dask.delayed import Delayed, delayed

from data_pipeline.common.checks import check_integer
from data_pipeline.common.errors import InputError
from data_pipeline.statistics.training_forecasts import TrainingForecasts
from data_pipeline.task import Channel, Variable

Merged = TypeVar("Merged")

FAN_IN = 8
"""Number of parts merged at once: a compromise between memory and the depth of the tree."""
ROWS_OF_A_CHUNK = 16
"""Latitudes in a chunk of a file. Bands are multiples of it, so that each chunk is written once."""

Axes = tuple[dict[str, tuple[str, ...]], dict[str, Sequence[Any] | np.ndarray]]
"""Dimensions of each variable of a file, and its coordinates other than latitude and longitude."""
Piece = tuple[str, dict[str, tuple[tuple[Any, ...], Any]]]
"""Description for the progress line, and the index and values for each variable of the file."""


class Statistic(Protocol):
    """A statistic, whose options are dataclass fields; `name` is the name of its file."""

    name: ClassVar[str]

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


def variable_names(variables: Iterable[Variable | Channel]) -> np.ndarray:
    """Return the names of variables or channels as a coordinate."""
    return np.array([str(variable) for variable in variables], dtype=object)


class PartialMoments(NamedTuple):
    """Number, mean and sum of squared departures of a part of the values, in double precision, for each cell."""

    number: np.ndarray
    mean: np.ndarray
    squares: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray, valid: np.ndarray) -> PartialMoments:
        """Return the moments of the values (N, ...) that are `valid`; mean and squares are 0 in cells without any."""
        count = np.broadcast_to(valid, values.shape).sum(0, dtype=np.float64)
        divisor = np.maximum(count, 1)
        mean = np.sum(values, axis=0, dtype=np.float64, where=valid) / divisor
        squares = np.sum(np.square(values - mean, dtype=np.float64), axis=0, where=valid)
        return cls(count, mean, squares)

    @classmethod
    def merge(cls, parts: Sequence[PartialMoments]) -> PartialMoments:
        """Return the moments of the values of all `parts` together."""
        count = np.sum([part.number for part in parts], axis=0)
        divisor = np.maximum(count, 1)
        mean = np.sum([part.number * part.mean for part in parts], axis=0) / divisor
        squares = np.sum([part.squares + part.number * np.square(part.mean - mean) for part in parts], axis=0)
        return cls(count, mean, squares)

    @property
    def std(self) -> np.ndarray:
        """Standard deviation (divisor N); NaN in cells without a value."""
        return np.sqrt(np.where(self.number > 0, self.squares / np.maximum(self.number, 1), np.nan))

    @property
    def mean_or_nan(self) -> np.ndarray:
        """The mean; NaN in cells without a value."""
        return np.where(self.number > 0, self.mean, np.nan)


def merge_tree(parts: Sequence[Delayed], merge: Callable[[Sequence[Merged]], Merged]) -> Delayed:
    """Return the graph that merges `parts`, `FAN_IN` at a time.

    Dask processes the graph depth first, so that memory holds only a few parts of each level. The order of merging is
    fixed, so that results do not depend on the cluster.
    """
    parts = list(parts)
    merge_some = delayed(merge, pure=True)
    while len(parts) > 1:
        parts = [merge_some(parts[k : k + FAN_IN]) for k in range(0, len(parts), FAN_IN)]
    return parts[0]
