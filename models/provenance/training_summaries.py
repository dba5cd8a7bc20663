"""TrainingSummaries: collect a corrector's envelope while its normaliser reads the training samples."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from data_pipeline.sample import Sample
from data_pipeline.sources.forecast_summary import SUMMARY_COLUMNS, join_tiles, summarise_tile
from data_pipeline.task import Task
from models.parallel.domain import Domain
from models.parallel.exchange import allsum
from models.provenance.envelope import Envelope


class TrainingSummaries:
    """Summaries of all samples on this rank's tile."""

    def __init__(self, domain: Domain) -> None:
        self._domain = domain
        self._rows: list[np.ndarray] = []
        self._times: list[tuple[int, int]] = []
        self._members = 0

    def watch(self, batches: Iterator[Sample]) -> Iterator[Sample]:
        """Yield all batches, and summarise their samples."""
        for batch in batches:
            self._add(batch)
            yield batch

    def _add(self, batch: Sample) -> None:
        grid = self._domain.grid
        self._members = batch.ensemble.shape[1]
        for ensemble, mask in zip(batch.ensemble.cpu().numpy(), batch.mask.cpu().numpy(), strict=True):
            self._rows.append(summarise_tile(ensemble, mask, grid.weights, *self._domain.tile, grid.shape))
        self._times += zip(batch.init_time.tolist(), batch.lead_time.tolist(), strict=True)

    def envelope(self, task: Task, members: int | None) -> Envelope | None:
        """Return the envelope of all ranks; `members` is the number of members if the samples are moments.

        All ranks of the domain call this together. None if there was no sample.
        """
        if not self._rows:
            return None
        own = np.stack(self._rows)
        tiles = torch.zeros(self._domain.ranks, *own.shape[:2], len(SUMMARY_COLUMNS), dtype=torch.float64)
        rank = self._domain.rank if self._domain.ranks > 1 else 0
        # A tile without any value has infinite extremes, which are the same on all ranks but would make sums NaN.
        tiles[rank] = torch.from_numpy(np.nan_to_num(own, posinf=BEYOND_ALL, neginf=-BEYOND_ALL))
        rows = join_tiles(list(allsum(tiles, self._domain).numpy()))
        starts, leads = np.array(self._times).T
        return envelope_of(task, rows, starts, leads, members or self._members)


def envelope_of(task: Task, rows: np.ndarray, init_time: np.ndarray, lead_time: np.ndarray, members: int) -> Envelope:
    """Return the envelope from the summaries (N, C, 6) of N forecasts of `task`, on the whole grid.

    It has no channel that says which members belong to a group: `check_groups` compares their shares.
    """
    names = [str(channel) for channel in task.channels[: len(task.channels) - len(task.memberships)]]
    return Envelope.of(names, rows[:, : len(names)], init_time, lead_time, members)


BEYOND_ALL = 1e300
"""Stands for an infinite extreme while ranks add their tiles."""
