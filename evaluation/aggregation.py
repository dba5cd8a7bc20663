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
import torch
from torch import Tensor

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from evaluation.cell_scores import CELL_SCORES, calibration_bin, cell_scores, is_ensemble
from models.distribution import Distribution
from models.parallel.domain import Domain

CRPS, ERROR = CELL_SCORES.index("crps"), CELL_SCORES.index("error")
TROPICS = 20.0
"""Latitude in degrees where the tropics end; the regions of the WMO's forecast verification."""


@dataclass(frozen=True)
class WeightedMean:
    """A weighted average not yet divided: sums of values and of weights, which broadcast against each other.

    >>> (WeightedMean(np.array(6.0), np.array(2.0)) + WeightedMean(np.array(1.0), np.array(2.0))).value.item()
    1.75
    """

    total: np.ndarray
    weight: np.ndarray

    @classmethod
    def zeros(cls, *shape: int, bins: int | None = None) -> WeightedMean:
        """Return the empty average; with `bins`, of a histogram whose bins share their weight."""
        if bins is None:
            return cls(np.zeros(shape), np.zeros(shape))
        return cls(np.zeros((*shape, bins)), np.zeros((*shape, 1)))

    def __add__(self, other: WeightedMean) -> WeightedMean:
        return WeightedMean(self.total + other.total, self.weight + other.weight)

    def __getitem__(self, index: Any) -> WeightedMean:
        return WeightedMean(self.total[index], self.weight[index])

    def sum(self, axis: int | tuple[int, ...]) -> WeightedMean:
        """Merge the averages along `axis` into one."""
        return WeightedMean(self.total.sum(axis), self.weight.sum(axis))

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
    """All averages of one model: every score, interval, histogram and map is made from them.

    `per_forecast[statistic]` has the axes (forecast, target, region), `histogram` one more for the bins and
    `per_cell[statistic]` (lead time, target, row, column), which there is only with `maps`. Tallies of different
    forecasts add up with `+`. `members` says whether the model's forecasts are ensembles. `missing` counts the cells
    with an analysis at which the model gives no number: they are an error, unless the model is `optional`.
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
        optional: bool = False,
    ):
        self.name, self.bins, self.optional = name, bins, optional
        self.members, self.missing = False, 0
        self.weights = np.stack(list(regions.values()))
        self.per_forecast = {s: WeightedMean.zeros(forecasts, targets, len(regions)) for s in CELL_SCORES}
        self.histogram = WeightedMean.zeros(forecasts, targets, len(regions), bins=bins)
        self.per_cell = {s: WeightedMean.zeros(leads, targets, *self.weights.shape[1:]) for s in CELL_SCORES if maps}

    def add(
        self,
        rows: np.ndarray,
        leads: np.ndarray,
        forecast: Distribution,
        truth: Tensor,
        uniform: Tensor,
        drawn: bool = True,
    ) -> None:
        """Count a batch over (B, T, H, W): `rows` and `leads` are its places on the forecast and lead axes.

        Truth that is NaN has no weight. A forecast that is NaN where there is truth is refused, for a model must not
        choose the cells that it is scored on. Sums are made on the device of `truth`, in double precision, and leave
        it in one transfer. For `drawn` see `statistics.expected_squared_error`.
        """
        self.members = is_ensemble(forecast)
        values = torch.stack([value.double() for value in cell_scores(forecast, truth, drawn).values()])
        valid = ~truth.isnan()
        known = values[CRPS].isfinite() & values[ERROR].isfinite()
        index = calibration_bin(forecast, truth, uniform, self.bins)
        counted = torch.cat([values.masked_fill(~valid, 0), valid[None].double()])
        weights = torch.from_numpy(self.weights).to(truth.device)
        parts = [
            (valid & ~known).sum(dtype=torch.float64)[None],
            _by_region(counted, weights),
            torch.stack([_by_region((index == k) & valid, weights) for k in range(self.bins)]),
        ]
        places = sorted(set(leads.tolist())) if self.per_cell else []
        for place in places:
            # Positions and not a mask, whose number of entries the device would have to tell first.
            mine = torch.from_numpy(np.flatnonzero(leads == place)).to(truth.device)
            parts.append(counted.index_select(1, mine).sum(1))
        missing, sums, bins, *maps = _moved(parts)
        self._check(int(missing[0]))
        for k, statistic in enumerate(CELL_SCORES):
            mean = self.per_forecast[statistic]
            mean.total[rows] += sums[k]
            mean.weight[rows] += sums[-1]
            for place, cells in zip(places, maps, strict=True):
                self.per_cell[statistic].total[place] += cells[k]
                self.per_cell[statistic].weight[place] += cells[-1]
        self.histogram.total[rows] += np.moveaxis(bins, 0, -1)
        self.histogram.weight[rows, ..., 0] += sums[-1]

    def _check(self, missing: int) -> None:
        self.missing += missing
        if missing and not self.optional:
            raise InputError(
                f"{self.name} gives no number at {missing} points where there is an analysis; "
                "leave these points out of the data or this model out of the comparison"
            )

    def __add__(self, other: Tally) -> Tally:
        merged = copy.copy(self)
        merged.per_forecast = {s: mean + other.per_forecast[s] for s, mean in self.per_forecast.items()}
        merged.histogram = self.histogram + other.histogram
        merged.per_cell = {s: mean + other.per_cell[s] for s, mean in self.per_cell.items()}
        merged.members, merged.missing = self.members or other.members, self.missing + other.missing
        return merged

    @classmethod
    def of_tiles(cls, tiles: Sequence[Tally], domain: Domain) -> Tally:
        """Return the tally of the whole grid from those of all tiles of `domain`, which saw the same forecasts."""

        def joined(maps: Sequence[WeightedMean]) -> WeightedMean:
            return WeightedMean(domain.join([mean.total for mean in maps]), domain.join([mean.weight for mean in maps]))

        whole = copy.copy(tiles[0])
        whole.weights = domain.join([tile.weights for tile in tiles])
        whole.per_forecast = {s: reduce(add, [tile.per_forecast[s] for tile in tiles]) for s in CELL_SCORES}
        whole.histogram = reduce(add, [tile.histogram for tile in tiles])
        whole.per_cell = {s: joined([tile.per_cell[s] for tile in tiles]) for s in whole.per_cell}
        whole.members, whole.missing = any(tile.members for tile in tiles), sum(tile.missing for tile in tiles)
        return whole


def _by_region(values: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted sums (..., R) of values (..., H, W) over the cells, for weights (R, H, W)."""
    return values.to(weights).flatten(-2) @ weights.flatten(1).T


def _moved(parts: Sequence[Tensor]) -> list[np.ndarray]:
    """Return tensors of one device as arrays, by a single transfer."""
    flat = torch.cat([part.flatten() for part in parts]).cpu().numpy()
    ends = np.cumsum([part.numel() for part in parts])
    return [piece.reshape(part.shape) for piece, part in zip(np.split(flat, ends[:-1]), parts, strict=True)]
