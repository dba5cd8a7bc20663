"""Gaps: where forecasts that are corrected miss values, counted and put into sentences for the user."""

from __future__ import annotations

import torch
from torch import Tensor

from data_pipeline.sample import Sample
from data_pipeline.task import Task

KINDS = (
    "lack the value of some member: their members were left as they came; the model read the mean of the training "
    "years there",
    "lack the value of some member, which no training sample does; the model read the mean of the training years there",
    "have no value in any training sample; the correction there is the raw ensemble",
)
"""A target that only some members have; any other channel that is missing where the training samples always have it; a
target of which the model has learnt nothing."""


class Gaps:
    """Numbers of cells and of forecasts that miss values, of each of `KINDS` and for each channel of the task."""

    def __init__(self, task: Task) -> None:
        self._names = [str(variable) for variable in task.channels]
        self._cells, self._forecasts = torch.zeros(2, len(KINDS), len(self._names), dtype=torch.int64)

    def add(self, cells: Tensor) -> None:
        """Add what `gaps_of` found in one forecast."""
        self._cells += cells
        self._forecasts += cells > 0

    def sentences(self) -> list[str]:
        """Return one sentence for each kind and channel that misses values."""
        found = []
        for kind, cells, forecasts in zip(KINDS, self._cells.tolist(), self._forecasts.tolist(), strict=True):
            for name, c, f in zip(self._names, cells, forecasts, strict=True):
                if c:
                    found.append(f"{name}: {c} cells of {f} forecast{'s' * (f > 1)} {kind}")
        return found


def gaps_of(sample: Sample, raw: Tensor, always: Tensor, known: Tensor, task: Task) -> Tensor:
    """Return how many cells of one forecast are of each of `KINDS`, (kind, C), on the own tile.

    `raw` (M, T, H, W) are the raw members of the targets, NaN where missing. `always` (C, H, W) and `known` (T, H, W)
    are those of the normaliser.
    """
    missing, targets = ~sample.mask, list(task.target_channels)
    partial, unknown = torch.zeros_like(missing), torch.zeros_like(missing)
    partial[targets] = missing[targets] & raw.isfinite().any(0)
    unknown[targets] = ~missing[targets] & (known == 0)
    return torch.stack([partial, missing & ~partial & (always != 0), unknown]).sum((-2, -1))
