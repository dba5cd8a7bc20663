"""Count missing values in the forecasts that `correct` reads, and describe them for the user."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from data_pipeline.task import Task
from data_pipeline.writing.product import Product

GAP_KINDS = (
    "lack the value of some member: their members are unchanged; the model read the mean of the training years there",
    "lack the value of some member, but no training sample does; the model read the mean of the training years there",
    "have no value in any training sample; the correction there is the raw ensemble",
)
"""The kinds of gaps: a target that only some members have; any other channel that is missing where all training samples
have it; a target that no training sample has."""


class Gaps:
    """Numbers of cells and forecasts with missing values, for each of `GAP_KINDS` and each channel of the task."""

    def __init__(self, task: Task) -> None:
        self._names, self._targets = [str(variable) for variable in task.channels], task.targets
        self._products: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(2, np.int64))
        self._cells, self._forecasts = np.zeros((2, len(GAP_KINDS), len(self._names)), np.int64)

    def add(self, cells: np.ndarray) -> None:
        """Add the result of `count_gaps` for one forecast."""
        self._cells += cells
        self._forecasts += cells > 0

    def add_products(self, products: Sequence[Product], cells: np.ndarray) -> None:
        """Add the number of cells (P,) of one forecast in which products are missing, but no raw member is."""
        for one, count in zip(products, cells.tolist(), strict=True):
            if count:
                self._products[f"{one.text} of {self._targets[one.target]}"] += np.array([count, 1])

    def sentences(self) -> list[str]:
        """Return one sentence for each kind and channel with missing values."""
        found = []
        for kind, cells, forecasts in zip(GAP_KINDS, self._cells.tolist(), self._forecasts.tolist(), strict=True):
            for name, c, f in zip(self._names, cells, forecasts, strict=True):
                if c:
                    found.append(f"{name}: {c} cells of {f} forecast{'s' * (f > 1)} {kind}")
        for name, counts in self._products.items():
            c, f = counts.tolist()
            found.append(
                f"{name} is missing in {c} cells of {f} forecast{'s' * (f > 1)}: the climate has too few past analyses "
                "there, or is dry"
            )
        return found


def count_gaps(mask: np.ndarray, raw: np.ndarray, always: np.ndarray, known: np.ndarray, task: Task) -> np.ndarray:
    """Return the number of cells (kind, C) of one forecast with each of `GAP_KINDS`, on this rank's tile.

    `mask` (C, H, W) and `raw` (M, T, H, W) come from `RawForecast`, `always` and `known` from the engine.
    """
    missing, targets = ~mask, list(task.target_channels)
    partial, unknown = np.zeros_like(missing), np.zeros_like(missing)
    partial[targets] = missing[targets] & np.isfinite(raw).any(0)
    unknown[targets] = ~missing[targets] & (known == 0)
    return np.stack([partial, missing & ~partial & (always != 0), unknown]).sum((-2, -1))
