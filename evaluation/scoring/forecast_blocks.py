"""Read the forecasts that a process scores in blocks that fit into memory, ahead of the scoring."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any, TypeVar

import numpy as np
from torch.utils.data import Dataset, Subset

from data_pipeline.common.messages import say
from data_pipeline.common.threads import BudgetedPool
from data_pipeline.dataset import batches
from data_pipeline.prefetch.budget import Budget
from data_pipeline.prefetch.tiers import Tiers
from data_pipeline.sample import Sample

Ahead = TypeVar("Ahead")
WORKING_FIELDS = 60
"""Fields in double precision that scoring a target of a forecast keeps at the same time, besides its members."""
READERS = 2
"""Threads that read ahead."""


def forecast_bytes(sample: Sample) -> int:
    """Return the memory for scoring a forecast: its sample three times, and work on the members of its targets.

    The sample is read ahead, waits as part of a batch, and is scored. Members are subtracted from the truth, sorted and
    written as quantiles, in single precision.
    """
    size = sum(tensor.nbytes for tensor in (sample.ensemble, sample.mask, sample.target))
    targets = sample.target.numel()
    return 3 * size + targets * (4 * 3 * len(sample.ensemble) + 8 * WORKING_FIELDS)


def block_size(dataset: Any, batch_size: int, memory_bytes: int, together: int = 1) -> int:
    """Return the number of forecasts that are scored at a time: at most `batch_size`, and a multiple of `together`.

    A line is printed if so many forecasts need more than `memory_bytes`.
    """
    needed = together * forecast_bytes(dataset[0])
    if needed > memory_bytes:
        what = "one forecast" if together == 1 else f"the {together} lead times of a start together"
        say(f"scoring {what} takes about {needed:,} bytes, more than memory_bytes={memory_bytes:,}")
    return together * max(1, min(batch_size // together, memory_bytes // needed))


def whole_starts(init_times: np.ndarray, lead_times: int, groups: np.ndarray | None = None) -> np.ndarray:
    """Return for each forecast whether all `lead_times` of its start are there and in one group."""
    labels = np.zeros_like(init_times) if groups is None else groups
    both = np.stack([init_times, labels])
    _, place, count = np.unique(both, axis=1, return_inverse=True, return_counts=True)
    whole: np.ndarray = (count == lead_times)[place.reshape(-1)]
    return whole


def read_blocks(
    dataset: Any, rows: np.ndarray, size: int, groups: np.ndarray | None = None
) -> Generator[tuple[np.ndarray, Sample], None, None]:
    """Yield the forecasts `rows` in batches of up to `size` with their rows; all forecasts of a batch are of one group.

    Threads read the next batch meanwhile, unless the data set does not state the size of its samples.
    """
    labels = np.zeros(len(dataset), int) if groups is None else groups
    for label in np.unique(labels[rows]):
        mine = rows[labels[rows] == label]
        for number, batch in enumerate(batches(_read_ahead(dataset, mine, size), size)):
            yield mine[number * size :][:size], batch


def one_ahead(items: Iterator[Ahead]) -> Generator[Ahead, None, None]:
    """Yield the items; a thread makes the next one meanwhile."""
    with BudgetedPool(1) as pool:
        latest = pool.submit(next, items, None)
        while (item := latest.result()) is not None:
            latest = pool.submit(next, items, None)
            yield item


def _read_ahead(dataset: Any, rows: np.ndarray, size: int) -> Dataset[Sample]:
    if not all(hasattr(dataset, name) for name in ("nbytes", "static", "fingerprint")):
        return Subset(dataset, rows.tolist())
    samples = _Rows(dataset, rows)
    staging = (size + 1) * (samples.nbytes + 2**16)
    return Tiers(samples, Budget(staging_bytes=staging, memory_bytes=0, threads=READERS))


class _Rows:
    """Some samples of a data set."""

    def __init__(self, dataset: Any, rows: np.ndarray) -> None:
        self._dataset, self._rows = dataset, rows
        self.static, self.fingerprint, self.nbytes = dataset.static, dataset.fingerprint, dataset.nbytes

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Sample:
        sample: Sample = self._dataset[int(self._rows[index])]
        return sample
