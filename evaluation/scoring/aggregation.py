"""Weighted averages that can be added: over cells, forecasts, batches and processes.

A region is a field of weights, which covers area weighting, hemispheres and land alike. Every average is kept per
forecast (for lead times, seasons and intervals) and per cell (for maps).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import torch
from torch import Tensor

from data_pipeline.common.errors import InputError
from evaluation.kernels.region_sums import RegionSums, add_known, count_missing
from evaluation.scores.case import Case, is_ensemble
from evaluation.scores.score import Binned, CellStatistic, Settings
from models.layers.kernels.choice import on_gpu

IN_BLOCKS, BLOCKS = ("crps", "crps_fair"), " in blocks"
"""Statistics that are also summed in blocks of dates, and the ending of the names of these sums."""


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

    With `blocks`, the number of a block of dates of each forecast or -1, CRPS sums of each block are kept too.
    """

    def __init__(
        self,
        name: str,
        forecasts: int,
        settings: Settings,
        regions: RegionSums | Mapping[str, np.ndarray],
        statistics: Mapping[str, CellStatistic],
        maps: bool = True,
        optional: bool = False,
        blocks: np.ndarray | None = None,
    ):
        self.name, self.settings, self.optional = name, settings, optional
        self.members, self.missing = False, 0
        self._regions, self._statistics = RegionSums.of(regions), dict(statistics)
        leads, targets = len(settings.task.lead_times), len(settings.task.targets)
        self.absent = np.zeros((forecasts, targets), bool)
        shape = forecasts, targets, self._regions.count
        fields = leads, targets, *self._regions.weights.shape[1:]
        # All statistics have the same weights, because they are averaged over the same cells.
        self._sums = {s: np.zeros((*shape, *one.shape(settings))) for s, one in statistics.items()}
        self._weight = np.zeros(shape)
        self._maps = {s: np.zeros(fields) for s, one in statistics.items() if maps and one.map}
        self._map_weight = np.zeros(fields if self._maps else 0)
        self.blocks = blocks
        if self._maps and blocks is not None:
            each = blocks.max() + 1, *fields[1:]
            self._maps |= {f"{s}{BLOCKS}": np.zeros(each) for s in IN_BLOCKS if s in statistics}
            self._maps[f"weight{BLOCKS}"] = np.zeros(each, np.float32)

    @property
    def is_joint(self) -> bool:
        """Whether a statistic depends on which member has which value."""
        return any(statistic.joint for statistic in self._statistics.values())

    @property
    def per_forecast(self) -> dict[str, WeightedMean]:
        """Averages of each forecast."""
        return {statistic: self.forecast_mean(statistic) for statistic in self._sums}

    def forecast_mean(self, statistic: str) -> WeightedMean:
        """Return the averages of one statistic over each forecast."""
        sums = self._sums[statistic]
        return WeightedMean(sums, self._weight if sums.ndim == self._weight.ndim else self._weight[..., None])

    @property
    def per_cell(self) -> dict[str, WeightedMean]:
        """Averages of each cell."""
        return {s: WeightedMean(sums, self._map_weight) for s, sums in self._maps.items() if not s.endswith(BLOCKS)}

    def per_block(self, statistic: str) -> WeightedMean | None:
        """Return the averages (block, target, H, W) of a statistic in blocks of dates, None without `blocks`."""
        if f"weight{BLOCKS}" not in self._maps:
            return None
        return WeightedMean(self._maps[f"{statistic}{BLOCKS}"], self._maps[f"weight{BLOCKS}"])

    def _in_block(self, statistic: str, row: int) -> np.ndarray | None:
        """Return the sums of the block of dates of the forecast `row`, None if it has no block."""
        sums = self._maps.get(f"{statistic}{BLOCKS}")
        return None if sums is None or self.blocks is None or self.blocks[row] < 0 else sums[self.blocks[row]]

    def add(self, rows: np.ndarray, leads: np.ndarray, case: Case) -> None:
        """Add a batch; `rows` and `leads` are its indices on the forecast and lead axes.

        NaN truth has no weight. NaN forecasts where there is truth are refused: a model must not choose the cells that
        it is scored on. Sums are computed in double precision on the device of the truth.
        """
        self.members = is_ensemble(case.forecast)
        if case.truth.device.type == "cpu":
            self._add_compiled(rows, leads, case)
        else:
            self._add_on_device(rows, leads, case)

    def _add_compiled(self, rows: np.ndarray, leads: np.ndarray, case: Case) -> None:
        truth = case.truth.contiguous().numpy()
        missing = count_missing(_floats(case.crps), _floats(case.error), truth)
        self._check(int(missing.sum()))
        if missing.any():
            self.absent[rows] |= missing > 0
            truth = np.where((missing > 0)[..., None, None], np.nan, truth)
        self._weight[rows] += self._regions.sum(np.ones_like(truth), truth)
        for name, statistic in self._statistics.items():
            found = statistic.cells(case)
            if isinstance(found, Binned):
                parts = [
                    self._regions.sum_bins(one.index.numpy(), _floats(value), truth, one.bins)
                    for one in found.each()
                    for value in one.values
                ]
                self._sums[name][rows] += np.concatenate(parts, -1)
                continue
            values = _floats(found)
            if statistic.size is None:
                sums = self._regions.sum(values, truth)
            else:
                sums = np.stack([self._regions.sum(one, truth) for one in values], -1)
            self._sums[name][rows] += sums
            if name in self._maps:
                for one, lead in enumerate(leads):
                    add_known(values[one].ravel(), truth[one].ravel(), self._maps[name][lead].reshape(-1))
                    if (block := self._in_block(name, rows[one])) is not None:
                        add_known(values[one].ravel(), truth[one].ravel(), block.reshape(-1))
        if self._maps:
            for one, lead in enumerate(leads):
                self._map_weight[lead] += ~np.isnan(truth[one])
                if (block := self._in_block("weight", rows[one])) is not None:
                    block += ~np.isnan(truth[one])

    def _add_on_device(self, rows: np.ndarray, leads: np.ndarray, case: Case) -> None:
        # All sums are moved to the CPU in one transfer: each transfer waits for the device.
        valid = case.valid
        finite = case.crps.isfinite() & case.error.isfinite()
        weights = torch.from_numpy(self._regions.weights).to(valid.device)
        missing = (valid & ~finite).sum((-1, -2), dtype=torch.float64)
        valid = valid & (missing == 0)[..., None, None] if self.optional else valid
        parts = [missing, _by_region(valid.double(), weights)]
        lead_indices = sorted(set(leads.tolist())) if self._maps else []
        # Indices, not a mask: the size of a masked selection would be read back from the device.
        chosen = [torch.from_numpy(np.flatnonzero(leads == lead)).to(valid.device) for lead in lead_indices]
        parts += [valid.index_select(0, mine).sum(0, dtype=torch.float64) for mine in chosen]
        in_block = [one for one, row in enumerate(rows) if self._in_block("weight", row) is not None]
        parts += [valid[one].double() for one in in_block]
        for name, statistic in self._statistics.items():
            found = statistic.cells(case)
            if isinstance(found, Binned):
                parts.append(torch.cat([_by_bin_and_region(one, valid, weights) for one in found.each()], -1))
                continue
            counted = found.double().masked_fill(~valid, 0)
            sums = _by_region(counted, weights)
            parts.append(sums if statistic.size is None else sums.movedim(0, -1))
            if name in self._maps:
                parts += [counted.index_select(0, mine).sum(0) for mine in chosen]
                parts += [counted[one] for one in in_block if name in IN_BLOCKS]
        lost, area, *rest = _to_numpy(parts)
        self._check(int(lost.sum()))
        self.absent[rows] |= lost > 0
        self._weight[rows] += area
        for lead in lead_indices:
            self._map_weight[lead] += rest.pop(0)
        for one in in_block:
            self._in_block("weight", rows[one])[...] += rest.pop(0)  # type: ignore[index]
        for name in self._statistics:
            self._sums[name][rows] += rest.pop(0)
            if name in self._maps:
                for lead in lead_indices:
                    self._maps[name][lead] += rest.pop(0)
                for one in in_block if name in IN_BLOCKS else ():
                    self._in_block(name, rows[one])[...] += rest.pop(0)  # type: ignore[index]

    @property
    def empty(self) -> np.ndarray:
        """Whether a target has no scored cell, (targets,)."""
        counted: np.ndarray = self._weight.sum((0, 2)) == 0
        return counted

    def _check(self, missing: int) -> None:
        self.missing += missing
        if missing and not self.optional:
            raise InputError(
                f"{self.name}: the forecast is not finite at {missing} points that have an analysis; "
                "leave this model out of the comparison, or give it values there (train it on years with an analysis)"
            )

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all sums by name, for `restore`."""
        return {
            "weight": self._weight, "absent": self.absent, "map weight": self._map_weight,
            "members": np.array(self.members), "missing": np.array(self.missing),
            **{f"sum {name}": sums for name, sums in self._sums.items()},
            **{f"map {name}": sums for name, sums in self._maps.items()},
        }  # fmt: skip

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Replace all sums by the sums in `arrays`."""
        self._weight, self.absent, self._map_weight = (arrays[name] for name in ("weight", "absent", "map weight"))
        self.members, self.missing = bool(arrays["members"]), int(arrays["missing"])
        self._sums = {name: arrays[f"sum {name}"] for name in self._sums}
        self._maps = {name: arrays[f"map {name}"] for name in self._maps}

    def __add__(self, other: Tally) -> Tally:
        return self.merge([self, other], lambda maps: reduce(add, maps))

    def __copy__(self) -> Tally:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def __getstate__(self) -> dict[str, Any]:
        # Only sums are sent to other ranks: not the functions of statistics, not the weights of all cells.
        return self.__dict__ | {"_statistics": {}, "_regions": None}

    @staticmethod
    def merge(parts: Sequence[Tally], join: Callable[[list[np.ndarray]], np.ndarray]) -> Tally:
        """Return the sum of tallies of tiles or of other forecasts, whose maps are joined by `join`."""
        whole = copy.copy(parts[0])
        whole._sums = {s: reduce(add, [part._sums[s] for part in parts]) for s in whole._sums}
        whole._weight = reduce(add, [part._weight for part in parts])
        whole.absent = reduce(np.logical_or, [part.absent for part in parts])
        for sums in (whole._weight, *whole._sums.values()) if whole.absent.any() else ():
            sums[whole.absent] = 0  # another tile of the forecast may be complete
        whole._maps = {s: join([part._maps[s] for part in parts]) for s in whole._maps}
        if whole._maps:
            whole._map_weight = join([part._map_weight for part in parts])
        whole.members, whole.missing = any(part.members for part in parts), sum(part.missing for part in parts)
        return whole


def _floats(values: Tensor) -> np.ndarray:
    """Return values as a contiguous array of a floating type."""
    return (values if values.is_floating_point() else values.double()).contiguous().numpy()


def _by_bin_and_region(found: Binned, valid: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted sums (B, T, R, K) of a statistic over (B, T, H, W)."""
    (B, T), R = valid.shape[:2], len(weights)
    if on_gpu(weights):
        from evaluation.kernels.gpu_scores import bin_sums

        values = torch.stack([value.double().masked_fill(~valid, 0).view(B * T, -1) for value in found.values])
        index = found.index.expand(valid.shape).reshape(B * T, -1)
        return bin_sums(index, values, weights.view(R, -1), found.bins).reshape(B, T, R, -1)
    forecast = torch.arange(B * T, device=valid.device).view(B, T, 1, 1)
    place = (forecast * found.bins + found.index.clamp(0, found.bins - 1)).flatten()
    sums = []
    for value in found.values:
        counted = value.double().masked_fill(~valid, 0)
        for region in weights:
            empty = torch.zeros(B * T * found.bins, dtype=torch.float64, device=valid.device)
            sums.append(empty.index_add_(0, place, (counted * region).flatten()).view(B, T, found.bins))
    return torch.cat([torch.stack(sums[k * R : (k + 1) * R], 2) for k in range(len(found.values))], -1)


def _by_region(values: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted sums (..., R) of values (..., H, W) over the cells, for weights (R, H, W)."""
    return values.to(weights).flatten(-2) @ weights.flatten(1).T


def _to_numpy(parts: Sequence[Tensor]) -> list[np.ndarray]:
    """Return tensors of one device as arrays, in a single transfer."""
    flat = torch.cat([part.flatten() for part in parts]).cpu().numpy()
    ends = np.cumsum([part.numel() for part in parts])
    return [piece.reshape(part.shape) for piece, part in zip(np.split(flat, ends[:-1]), parts, strict=True)]
