"""Weighted averages that can be added: over cells, forecasts, batches and processes.

A region is a field of weights, which covers area weighting, hemispheres and land alike. Every average is kept per
forecast (for lead times, seasons and intervals) and per cell (for maps).
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
from evaluation.scores.case import Case, is_ensemble
from evaluation.scores.score import Binned, CellStatistic, Settings
from models.parallel.domain import Domain


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


class Tally:
    """All averages of one model, from which every score, interval, diagram and map is computed.

    `per_forecast[statistic]` has the axes (forecast, target, region), and a last axis for a statistic of K numbers,
    which share one weight. `per_cell[statistic]` (lead time, target, row, column) exists for the statistics with a map;
    it is empty without `maps`. Tallies of different forecasts are merged by `+`. `members` is true if the model's
    forecasts are ensembles. `missing` counts the cells with an analysis where the model's forecast is not finite: an
    error, unless the model is `optional`. Such a forecast of an optional model has no weight: `absent` (forecast,
    target) is true, and comparisons leave the forecast out for all models.
    """

    def __init__(
        self,
        name: str,
        forecasts: int,
        settings: Settings,
        regions: Mapping[str, np.ndarray],
        statistics: Mapping[str, CellStatistic],
        maps: bool = True,
        optional: bool = False,
    ):
        self.name, self.settings, self.optional = name, settings, optional
        self.members, self.missing = False, 0
        self.weights = np.stack(list(regions.values()))
        self._statistics = dict(statistics)
        leads, targets = len(settings.task.lead_times), len(settings.task.targets)
        self.absent = np.zeros((forecasts, targets), bool)
        self.per_forecast = {
            name: WeightedMean.zeros(forecasts, targets, len(regions), bins=one.size(settings) if one.size else None)
            for name, one in statistics.items()
        }
        self.per_cell = {
            name: WeightedMean.zeros(leads, targets, *self.weights.shape[1:])
            for name, one in statistics.items()
            if maps and one.map
        }

    def add(self, rows: np.ndarray, leads: np.ndarray, case: Case) -> None:
        """Add a batch; `rows` and `leads` are its indices on the forecast and lead axes.

        NaN truth has no weight. NaN forecasts where there is truth are refused: a model must not choose the cells that
        it is scored on. Sums are computed in double precision on the device of the truth and moved to the CPU in one
        transfer.
        """
        self.members = is_ensemble(case.forecast)
        valid = case.valid
        finite = case.crps.isfinite() & case.error.isfinite()
        weights = torch.from_numpy(self.weights).to(valid.device)
        missing = (valid & ~finite).sum((-1, -2), dtype=torch.float64)
        valid = valid & (missing == 0)[..., None, None] if self.optional else valid
        parts = [missing, _by_region(valid.double(), weights)]
        lead_indices = sorted(set(leads.tolist())) if self.per_cell else []
        # Indices, not a mask: the size of a masked selection would be read back from the device.
        chosen = [torch.from_numpy(np.flatnonzero(leads == lead)).to(valid.device) for lead in lead_indices]
        parts += [valid.index_select(0, mine).sum(0, dtype=torch.float64) for mine in chosen]
        for name, statistic in self._statistics.items():
            found = statistic.cells(case)
            if isinstance(found, Binned):
                parts.append(_by_bin_and_region(found, valid, weights))
                continue
            counted = found.double().masked_fill(~valid, 0)
            sums = _by_region(counted, weights)
            parts.append(sums if statistic.size is None else sums.movedim(0, -1))
            if name in self.per_cell:
                parts += [counted.index_select(0, mine).sum(0) for mine in chosen]
        lost, area, *rest = _to_numpy(parts)
        self._check(int(lost.sum()))
        self.absent[rows] |= lost > 0
        cells, rest = rest[: len(chosen)], rest[len(chosen) :]
        for name, mean in self.per_forecast.items():
            mean.total[rows] += rest.pop(0)
            mean.weight[rows] += area.reshape(mean.weight[rows].shape)
            if name in self.per_cell:
                for lead, weight in zip(lead_indices, cells, strict=True):
                    self.per_cell[name].total[lead] += rest.pop(0)
                    self.per_cell[name].weight[lead] += weight

    @property
    def empty(self) -> np.ndarray:
        """Whether there is no scored cell of a target, (targets,)."""
        mean = next(iter(self.per_forecast.values()))
        counted: np.ndarray = mean.weight.sum(axis=tuple(range(2, mean.weight.ndim))).sum(0) == 0
        return counted

    def _check(self, missing: int) -> None:
        self.missing += missing
        if missing and not self.optional:
            raise InputError(
                f"{self.name}: the forecast is not finite at {missing} points that have an analysis; "
                "leave this model out of the comparison, or give it values there (train it on years with an analysis)"
            )

    def __add__(self, other: Tally) -> Tally:
        merged = copy.copy(self)
        merged.per_forecast = {s: mean + other.per_forecast[s] for s, mean in self.per_forecast.items()}
        merged.per_cell = {s: mean + other.per_cell[s] for s, mean in self.per_cell.items()}
        merged.members, merged.missing = self.members or other.members, self.missing + other.missing
        merged.absent = self.absent | other.absent
        return merged

    def __getstate__(self) -> dict[str, Any]:
        # Functions of statistics are not sent to other ranks: only sums are.
        return self.__dict__ | {"_statistics": {}}

    @classmethod
    def of_tiles(cls, tiles: Sequence[Tally], domain: Domain) -> Tally:
        """Return the tally of the whole grid from the tallies of all tiles of `domain`, over the same forecasts."""

        def joined(maps: Sequence[WeightedMean]) -> WeightedMean:
            return WeightedMean(domain.join([mean.total for mean in maps]), domain.join([mean.weight for mean in maps]))

        whole = copy.copy(tiles[0])
        whole.weights = domain.join([tile.weights for tile in tiles])
        whole.per_forecast = {s: reduce(add, [tile.per_forecast[s] for tile in tiles]) for s in whole.per_forecast}
        whole.absent = reduce(np.logical_or, [tile.absent for tile in tiles])
        for mean in whole.per_forecast.values() if whole.absent.any() else ():
            # Another tile of the forecast may be complete.
            mean.total[whole.absent] = mean.weight[whole.absent] = 0
        whole.per_cell = {s: joined([tile.per_cell[s] for tile in tiles]) for s in whole.per_cell}
        whole.members, whole.missing = any(tile.members for tile in tiles), sum(tile.missing for tile in tiles)
        return whole


def _by_bin_and_region(found: Binned, valid: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted sums (B, T, R, K) of a binned statistic."""
    if found.index.ndim > valid.ndim:
        pieces = zip(found.index, *found.values, strict=True)
        single = [Binned(index, found.bins, values) for index, *rest in pieces for values in [tuple(rest)]]
        return torch.cat([_by_bin_and_region(one, valid, weights) for one in single], -1)
    B, T = valid.shape[:2]
    forecast = torch.arange(B * T, device=valid.device).view(B, T, 1, 1)
    place = (forecast * found.bins + found.index.clamp(0, found.bins - 1)).flatten()
    sums = []
    for value in found.values:
        counted = value.double().masked_fill(~valid, 0)
        for region in weights:
            empty = torch.zeros(B * T * found.bins, dtype=torch.float64, device=valid.device)
            sums.append(empty.index_add_(0, place, (counted * region).flatten()).view(B, T, found.bins))
    R = len(weights)
    return torch.cat([torch.stack(sums[k * R : (k + 1) * R], 2) for k in range(len(found.values))], -1)


def _by_region(values: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted sums (..., R) of values (..., H, W) over the cells, for weights (R, H, W)."""
    return values.to(weights).flatten(-2) @ weights.flatten(1).T


def _to_numpy(parts: Sequence[Tensor]) -> list[np.ndarray]:
    """Return tensors of one device as arrays, in a single transfer."""
    flat = torch.cat([part.flatten() for part in parts]).cpu().numpy()
    ends = np.cumsum([part.numel() for part in parts])
    return [piece.reshape(part.shape) for piece, part in zip(np.split(flat, ends[:-1]), parts, strict=True)]
