"""Normalization: the mean map of each input and the root mean square departure from it, as networks use them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import dask
import numpy as np
from dask.delayed import delayed

from data_pipeline.statistics.statistic import Axes, PartialMoments, Piece, merge_tree, variable_names
from data_pipeline.statistics.training_forecasts import TrainingForecasts


@dataclass(frozen=True)
class Normalization:
    """`location` (variable, latitude, longitude) and `scale` (variable), as `models.normalizer` defines them.

    The location is the mean of the ensemble over all forecasts, NaN in cells without a value. The scale is the square
    root of the area-weighted mean square of the members' departures from the location, 1 for a constant field. Cells of
    a forecast in which a member has no value are ignored.
    """

    name: ClassVar[str] = "normalization"

    def axes(self, training: TrainingForecasts) -> Axes:
        """Return the dimensions and coordinates of the computed variables."""
        names = variable_names(training.task.channels)
        return {"location": ("variable", "latitude", "longitude"), "scale": ("variable",)}, {"variable": names}

    def count_fields(self, training: TrainingForecasts) -> int:
        """Return the number of fields that are read."""
        return len(training.keys) * len(training.task.channels) * len(training.numbers)

    def count_pieces(self, training: TrainingForecasts, at_once: int) -> int:
        """Return the number of pieces that `compute` yields."""
        return len(training.task.channels)

    def compute(self, training: TrainingForecasts, at_once: int) -> Iterator[Piece]:
        """Yield each input channel."""
        weights = training.grid.weights[:, None]
        moments_of = delayed(_moments, pure=True)
        for k, channel in enumerate(training.task.channels):
            fields = training.channel(channel, [(i, j) for i, j, _ in training.keys])
            (moments,) = dask.compute(
                merge_tree([moments_of(members) for members in fields.values()], PartialMoments.merge)
            )
            area = (moments.number * weights).sum()
            scale = np.sqrt((moments.squares * weights).sum() / max(area, 1e-12))
            yield str(channel), {"location": ((k,), moments.mean_or_nan), "scale": ((k,), scale if scale > 0 else 1.0)}


def _moments(members: np.ndarray) -> PartialMoments:
    return PartialMoments.of(members, np.isfinite(members).all(0))
