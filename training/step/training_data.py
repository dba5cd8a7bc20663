"""The batches of a training: `open_training_data` opens the data sets behind their caches."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from data_pipeline.prefetch.budget import Budget
from data_pipeline.prefetch.loader import Prefetcher
from data_pipeline.prefetch.order import SampleOrder
from data_pipeline.prefetch.socket_peers import SocketPeers
from data_pipeline.prefetch.tiers import Samples, Tiers, run_key
from models.parallel.interface import own_address
from models.parallel.mesh import Mesh
from training.run.trainer_options import TrainerOptions


class TrainingData(NamedTuple):
    """Training samples, and the training and validation batches of this rank, which are read ahead."""

    train: Tiers
    train_batches: Prefetcher
    val_batches: Prefetcher | None
    """None without validation."""


@contextmanager
def open_training_data(
    train: Samples, val: Samples | None, budget: Budget, options: TrainerOptions, mesh: Mesh
) -> Iterator[TrainingData]:
    """Open both data sets behind the caches of `budget`. Threads and folders are released at the end of the block."""
    size, rank = options.batch_size, mesh.data_rank
    shuffled = SampleOrder(len(train), size, options.epochs, options.seed, mesh.data)
    train_budget, *val_budget = budget.divide([len(samples) * samples.nbytes for samples in filter(None, (train, val))])
    names = [f"{name}-{mesh.spatial_rank}" if mesh.tiles > 1 else name for name in ("train", "val")]
    cached = train_budget.memory_bytes or train_budget.disk_bytes
    peers = _peers(mesh, run_key(train, shuffled)) if cached else None
    with ExitStack() as stack:
        train_tiers = stack.enter_context(Tiers(train, train_budget, shuffled, rank=rank, peers=peers, name=names[0]))
        val_batches = None
        if val is not None:
            in_turn = SampleOrder(len(val), size, ranks=mesh.data, shuffle=False)
            # Each rank reads the same validation samples in every epoch, so other ranks' caches would not help.
            val_tiers = stack.enter_context(Tiers(val, val_budget[0], in_turn, rank=rank, name=names[1]))
            val_batches = stack.enter_context(Prefetcher(val_tiers, in_turn, rank))
        train_batches = stack.enter_context(Prefetcher(train_tiers, shuffled, rank))
        yield TrainingData(train_tiers, train_batches, val_batches)


def _peers(mesh: Mesh, key: str) -> SocketPeers | None:
    """Return the ranks with the same tile and other samples, whose caches this rank can read; None without any."""
    if mesh.data == 1 or mesh.store is None:
        return None
    one_machine = mesh.local_ranks == mesh.ranks
    host = "127.0.0.1" if one_machine else own_address(os.environ.get("MASTER_ADDR", "127.0.0.1"))
    return SocketPeers.from_store(mesh.data_rank, mesh.data, mesh.store, key, host)
