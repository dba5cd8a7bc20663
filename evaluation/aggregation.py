"""Weighted averages that can be added: over cells, forecasts, batches and processes.

A region is a field of weights, which covers area weighting, hemispheres and land alike. Every average is kept per
forecast (for lead times, seasons and the bootstrap) and per cell (for maps).
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
"""Latitude in degrees where the tropics end, as in the WMO's forecast verification."""


@dataclass(frozen=True)
class WeightedMean:
    """A weighted average as a sum of values and a sum of weights, which broadcast against each other.

    >>> (WeightedMean(np.array(6.0), np.array(2.0)) + WeightedMean(np.array(1.0), np.array(2.0))).value.item()
    1.75
    """

    total: np.ndarray
    weight: np.ndarray

    @classmethod
    def zeros(cls, *shape: int, bins: int | None = None) -> WeightedMean:
        """Return an empty average; with `bins`, of a histogram whose bins share one weight."""
        if bins is None:
            return cls(np.zeros(shape), np.zeros(shape))
        return cls(np.zeros((*shape, bins)), np.zeros((*shape, 1)))

    def __add__(self, other: WeightedMean) -> WeightedMean:
        return WeightedMean(self.total + other.total, self.weight + other.weight)

    def __getitem__(self, index: Any) -> WeightedMean:
        return WeightedMean(self.total[index], self.weight[index])

    def sum(self, axis: int | tuple[int, ...]) -> WeightedMean:
        """Merge the averages along `axis`."""
        return WeightedMean(self.total.sum(axis), self.weight.sum(axis))

    @property
    def value(self) -> np.ndarray:
        """The average; NaN where the weight is 0."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return self.total / np.where(self.weight > 0, self.weight, np.nan)


def region_weights(grid: Grid, land: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """Return the weights (H, W) of every region that has points on the grid.

    The weight of a cell is its area; in `unweighted` it is 1. `land` is the land fraction of each cell; a cell with at
    least one half is a land point.
    """
    area = np.broadcast_to(grid.weights[:, None], grid.shape)
    latitude = grid.cell_latitudes
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
    """All averages of one model, from which every score, interval, histogram and map is computed.

    `per_forecast[score]` has the axes (forecast, target, region), `histogram` one more for the bins and
    `per_cell[score]` (lead time, target, row, column); it is empty without `maps`. Tallies of different forecasts are
    merged by `+`. `members` is true if the model's forecasts are ensembles. `missing` counts the cells with an analysis
    where the model's forecast is not finite: an error, unless the model is `optional`.
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
        """Add a batch over (B, T, H, W); `rows` and `leads` are its indices on the forecast and lead axes.

        NaN truth has no weight. NaN forecasts where there is truth are refused: a model must not choose the cells that
        it is scored on. Sums are computed in double precision on the device of `truth` and moved to the CPU in one
        transfer. For `drawn` see `cell_scores.expected_squared_error`.
        """
        self.members = is_ensemble(forecast)
        values = torch.stack([value.double() for value in cell_scores(forecast, truth, drawn).values()])
        valid = ~truth.isnan()
        finite = values[CRPS].isfinite() & values[ERROR].isfinite()
        index = calibration_bin(forecast, truth, uniform, self.bins)
        counted = torch.cat([values.masked_fill(~valid, 0), valid[None].double()])
        weights = torch.from_numpy(self.weights).to(truth.device)
        parts = [
            (valid & ~finite).sum(dtype=torch.float64)[None],
            _by_region(counted, weights),
            torch.stack([_by_region((index == k) & valid, weights) for k in range(self.bins)]),
        ]
        lead_indices = sorted(set(leads.tolist())) if self.per_cell else []
        for lead_index in lead_indices:
            # Indices, not a mask: the size of a masked selection would be read back from the device.
            mine = torch.from_numpy(np.flatnonzero(leads == lead_index)).to(truth.device)
            parts.append(counted.index_select(1, mine).sum(1))
        missing, sums, bins, *maps = _to_numpy(parts)
        self._check(int(missing[0]))
        for k, score in enumerate(CELL_SCORES):
            mean = self.per_forecast[score]
            mean.total[rows] += sums[k]
            mean.weight[rows] += sums[-1]
            for lead_index, cells in zip(lead_indices, maps, strict=True):
                self.per_cell[score].total[lead_index] += cells[k]
                self.per_cell[score].weight[lead_index] += cells[-1]
        self.histogram.total[rows] += np.moveaxis(bins, 0, -1)
        self.histogram.weight[rows, ..., 0] += sums[-1]

    def _check(self, missing: int) -> None:
        self.missing += missing
        if missing and not self.optional:
            raise InputError(
                f"{self.name}: the forecast is not finite at {missing} points that have an analysis; "
                "leave this model out of the comparison, or train it on years with an analysis there"
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
        """Return the tally of the whole grid from the tallies of all tiles of `domain`, over the same forecasts."""

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


def _to_numpy(parts: Sequence[Tensor]) -> list[np.ndarray]:
    """Return tensors of one device as arrays, in a single transfer."""
    flat = torch.cat([part.flatten() for part in parts]).cpu().numpy()
    ends = np.cumsum([part.numel() for part in parts])
    return [piece.reshape(part.shape) for piece, part in zip(np.split(flat, ends[:-1]), parts, strict=True)]
