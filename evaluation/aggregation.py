"""Weighted averages that add up: over cells, forecasts, chunks and processes.

A region is a field of weights, so that area weighting, hemispheres and land all are the same thing. Every
average is kept per forecast (for leads, seasons and the bootstrap) and per cell (for maps).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import numpy as np
from torch import Tensor

from data_pipeline.errors import InputError
from data_pipeline.grid import Grid
from evaluation.statistics import STATISTICS, calibration_bin, cell_statistics
from models.distribution import Distribution
from models.spatial.domain import Domain

TROPICS = 20.0
"""Latitude in degrees where the tropics end; the regions of the WMO's forecast verification."""


@dataclass(frozen=True)
class Mean:
    """A weighted average not yet divided: sums of values and of weights, which broadcast against each other.

    >>> (Mean(np.array(6.0), np.array(2.0)) + Mean(np.array(1.0), np.array(2.0))).value.item()
    1.75
    """

    total: np.ndarray
    weight: np.ndarray

    @classmethod
    def zeros(cls, *shape: int, bins: int | None = None) -> Mean:
        """Return the empty average; with `bins`, of a histogram whose bins share their weight."""
        if bins is None:
            return cls(np.zeros(shape), np.zeros(shape))
        return cls(np.zeros((*shape, bins)), np.zeros((*shape, 1)))

    def __add__(self, other: Mean) -> Mean:
        return Mean(self.total + other.total, self.weight + other.weight)

    def __getitem__(self, index: Any) -> Mean:
        return Mean(self.total[index], self.weight[index])

    def sum(self, axis: int | tuple[int, ...]) -> Mean:
        """Merge the averages along `axis` into one."""
        return Mean(self.total.sum(axis), self.weight.sum(axis))

    @property
    def value(self) -> np.ndarray:
        """The average; NaN where nothing was counted."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return self.total / np.where(self.weight > 0, self.weight, np.nan)


def region_weights(grid: Grid, land: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """Return weights (H, W) for every region that has points on the grid.

    All follow the cell area but `unweighted`, in which every grid point counts once. `land` is the share of
    land in each cell; at least one half makes it a land point.
    """
    area = np.broadcast_to(grid.weights[:, None], grid.shape)
    latitude = np.array(grid.latitudes)[:, None]
    regions = {
        "global": area,
        "unweighted": np.ones(grid.shape),
        "north": area * (latitude >= TROPICS),
        "tropics": area * (abs(latitude) < TROPICS),
        "south": area * (latitude <= -TROPICS),
    }
    if land is not None:
        regions |= {"land": area * (land >= 0.5), "sea": area * (land < 0.5)}
    return {name: weights for name, weights in regions.items() if weights.any()}


class Tally:
    """All averages of one model: what every score, interval, histogram and map is made from.

    `per_forecast[statistic]` has the axes (forecast, target, region), `histogram` one more for the bins and
    `per_cell[statistic]` (lead time, target, row, column), which there is only with `maps`. Tallies of different
    forecasts add up with `+`.
    """

    def __init__(
        self,
        name: str,
        forecasts: int,
        leads: int,
        targets: int,
        regions: Mapping[str, np.ndarray],
        bins: int,
        maps: bool = True,
    ):
        self.name, self.bins = name, bins
        self.weights = np.stack(list(regions.values()))
        self.per_forecast = {s: Mean.zeros(forecasts, targets, len(regions)) for s in STATISTICS}
        self.histogram = Mean.zeros(forecasts, targets, len(regions), bins=bins)
        self.per_cell = {s: Mean.zeros(leads, targets, *self.weights.shape[1:]) for s in STATISTICS if maps}

    def add(self, rows: np.ndarray, leads: np.ndarray, forecast: Distribution, truth: Tensor, uniform: Tensor) -> None:
        """Count a batch over (B, T, H, W): `rows` and `leads` are its places on the forecast and lead axes.

        Truth that is NaN has no weight; a forecast that is NaN where there is truth is refused, for a model
        must not choose the cells that it is scored on.
        """
        valid = (~truth.isnan()).numpy()
        values = {s: v.double().numpy() for s, v in cell_statistics(forecast, truth).items()}
        if missing := np.count_nonzero(valid & ~np.isfinite(values["crps"] + values["error"])):
            raise InputError(
                f"{self.name} gives no number at {missing} points where there is an analysis; "
                "leave these points out of the data or this model out of the comparison"
            )
        weight = self._by_region(valid)
        for statistic, value in values.items():
            value = np.where(valid, value, 0.0)
            mean = self.per_forecast[statistic]
            mean.total[rows] += self._by_region(value)
            mean.weight[rows] += weight
            if cells := self.per_cell.get(statistic):
                # np.add.at, because a batch may hold one lead time several times.
                np.add.at(cells.total, leads, value)
                np.add.at(cells.weight, leads, valid)
        index = calibration_bin(forecast, truth, uniform, self.bins).numpy()
        for number in range(self.bins):
            self.histogram.total[rows, ..., number] += self._by_region((index == number) & valid)
        self.histogram.weight[rows, ..., 0] += weight

    def _by_region(self, values: np.ndarray) -> np.ndarray:
        return np.tensordot(values.astype(float), self.weights, axes=([2, 3], [1, 2]))

    def __add__(self, other: Tally) -> Tally:
        merged = copy.copy(self)
        merged.per_forecast = {s: mean + other.per_forecast[s] for s, mean in self.per_forecast.items()}
        merged.histogram = self.histogram + other.histogram
        merged.per_cell = {s: mean + other.per_cell[s] for s, mean in self.per_cell.items()}
        return merged

    @classmethod
    def of_tiles(cls, tiles: Sequence[Tally], domain: Domain) -> Tally:
        """Return the tally of the whole grid from those of all tiles of `domain`, which saw the same forecasts."""

        def joined(maps: Sequence[Mean]) -> Mean:
            return Mean(domain.join([mean.total for mean in maps]), domain.join([mean.weight for mean in maps]))

        whole = copy.copy(tiles[0])
        whole.weights = domain.join([tile.weights for tile in tiles])
        whole.per_forecast = {s: reduce(add, [tile.per_forecast[s] for tile in tiles]) for s in STATISTICS}
        whole.histogram = reduce(add, [tile.histogram for tile in tiles])
        whole.per_cell = {s: joined([tile.per_cell[s] for tile in tiles]) for s in whole.per_cell}
        return whole
