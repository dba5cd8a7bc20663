"""Data: what a network is trained on, through the caches that a run may use."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from data_pipeline.prefetch.budget import Budget
from data_pipeline.prefetch.loader import Prefetcher
from data_pipeline.prefetch.order import SampleOrder
from data_pipeline.prefetch.peers import SocketPeers
from data_pipeline.prefetch.tiers import Samples, Tiers, run_key
from models.parallel.mesh import Mesh
from training.schedule import Schedule


class Data(NamedTuple):
    """Training and validation samples: any one by its number, and the own share of batches that are read ahead."""

    train: Tiers
    val: Tiers
    train_batches: Prefetcher
    val_batches: Prefetcher


@contextmanager
def cached(train: Samples, val: Samples, budget: Budget, schedule: Schedule, mesh: Mesh) -> Iterator[Data]:
    """Put the caches of `budget` before two data sets; threads and folders are given back at the end of the block."""
    size, rank = schedule.batch_size, mesh.data_rank
    shuffled = SampleOrder(len(train), size, schedule.epochs, schedule.seed, mesh.data)
    in_turn = SampleOrder(len(val), size, ranks=mesh.data, shuffle=False)
    mine, yours = budget.divide([len(samples) * samples.nbytes for samples in (train, val)])
    names = [f"{name}-{mesh.spatial_rank}" if mesh.tiles > 1 else name for name in ("train", "val")]
    peers = _peers(mesh, run_key(train, shuffled)) if mine.memory_bytes or mine.disk_bytes else None
    with (
        Tiers(train, mine, shuffled, rank=rank, peers=peers, name=names[0]) as train_tiers,
        # Always the same ranks read the same of these: there is nothing to ask of peers.
        Tiers(val, yours, in_turn, rank=rank, name=names[1]) as val_tiers,
        Prefetcher(train_tiers, shuffled, rank) as train_batches,
        Prefetcher(val_tiers, in_turn, rank) as val_batches,
    ):
        yield Data(train_tiers, val_tiers, train_batches, val_batches)


def _peers(mesh: Mesh, key: str) -> SocketPeers | None:
    """Return the ranks with the same tile of other samples, whose caches may be asked."""
    if mesh.data == 1 or mesh.store is None:
        return None
    # Where all ranks are of one machine its name need not mean anything.
    host = "127.0.0.1" if mesh.local_ranks == mesh.ranks else socket.gethostname()
    return SocketPeers.from_store(mesh.data_rank, mesh.data, mesh.store, key, host)
