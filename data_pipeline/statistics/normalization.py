"""Normalization: per input the mean map and the typical departure from it, as networks take them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import dask
import numpy as np
from dask.delayed import delayed

from data_pipeline.statistics.merging import Spread, tree
from data_pipeline.statistics.statistic import Axes, Piece, variable_names
from data_pipeline.statistics.training import Training


@dataclass(frozen=True)
class Normalization:
    """`location` (variable, latitude, longitude) and `scale` (variable), as `models.normalizer` defines them.

    The location is the mean of the ensemble over all forecasts, NaN where there is none; the scale is the
    root of the area-weighted mean square of the members' departures from it, 1 for a field that never changes.
    A cell of a forecast counts where all members have a value.
    """

    name: ClassVar[str] = "normalization"

    def axes(self, training: Training) -> Axes:
        """Return the dimensions of what is computed."""
        names = variable_names(training.task.channels)
        return {"location": ("variable", "latitude", "longitude"), "scale": ("variable",)}, {"variable": names}

    def reads(self, training: Training) -> int:
        """Return how many fields are read."""
        return len(training.keys) * len(training.task.channels) * len(training.numbers)

    def steps(self, training: Training, at_once: int) -> int:
        """Return how many pieces `compute` yields."""
        return len(training.task.channels)

    def compute(self, training: Training, at_once: int) -> Iterator[Piece]:
        """Yield one variable after the other."""
        weights = training.grid.weights[:, None]
        of_members = delayed(_spread, pure=True)
        for k, channel in enumerate(training.task.channels):
            fields = training.channel(channel, [(i, j) for i, j, _ in training.keys])
            (spread,) = dask.compute(tree([of_members(members) for members in fields.values()], Spread.merge))
            area = (spread.number * weights).sum()
            scale = np.sqrt((spread.squares * weights).sum() / max(area, 1e-12))
            yield str(channel), {"location": ((k,), spread.known_mean), "scale": ((k,), scale if scale > 0 else 1.0)}


def _spread(members: np.ndarray) -> Spread:
    return Spread.of(members, np.isfinite(members).all(0))
