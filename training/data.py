"""Data: what a network is trained on, through the caches that a run may use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from data_pipeline.prefetch.budget import Budget
from data_pipeline.prefetch.loader import Prefetcher
from data_pipeline.prefetch.stream import Stream
from data_pipeline.prefetch.tiers import Samples, Tiers
from training.schedule import Schedule


class Data(NamedTuple):
    """Training and validation samples: any one by its number, and batches that are read ahead."""

    train: Tiers
    val: Tiers
    train_batches: Prefetcher
    val_batches: Prefetcher


@contextmanager
def cached(train: Samples, val: Samples, budget: Budget, schedule: Schedule) -> Iterator[Data]:
    """Put the caches of `budget` before two data sets; threads and folders are given back at the end of the block."""
    shuffled = Stream(len(train), schedule.batch_size, schedule.epochs, schedule.seed)
    in_turn = Stream(len(val), schedule.batch_size, shuffled=False)
    mine, yours = budget.shares([len(samples) * samples.nbytes for samples in (train, val)])
    with (
        Tiers(train, mine, shuffled, name="train") as train_tiers,
        Tiers(val, yours, in_turn, name="val") as val_tiers,
        Prefetcher(train_tiers, shuffled) as train_batches,
        Prefetcher(val_tiers, in_turn) as val_batches,
    ):
        yield Data(train_tiers, val_tiers, train_batches, val_batches)
