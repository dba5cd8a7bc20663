"""The processes that score: this one with its threads, or the workers of a Dask cluster."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager

import torch

from data_pipeline.cluster import Cluster, Threads
from data_pipeline.common.errors import InputError
from data_pipeline.common.threads import BUDGET
from models.parallel.mesh import Mesh


def check_workers(cluster: Cluster, mesh: Mesh, device: torch.device) -> None:
    """Raise an `InputError` if the workers of a cluster would need a mesh or an accelerator."""
    if isinstance(cluster, Threads):
        return
    if mesh.ranks > 1:
        raise InputError(
            f"cluster has workers of its own, and mesh has {mesh.ranks} ranks; leave out one of them: "
            "mesh=[1,1] or cluster=threads"
        )
    if device.type != "cpu":
        raise InputError(f"workers of a cluster score on the CPU, but device is {device}; set device=cpu")


@contextmanager
def scoring_workers(cluster: Cluster) -> Iterator[Executor | None]:
    """Start the workers of `cluster`; yield None for threads of this process, whose number is then limited."""
    if not isinstance(cluster, Threads):
        with cluster.executor() as workers:
            yield workers
        return
    if cluster.workers is not None:
        BUDGET.limit(cluster.workers)
        torch.set_num_threads(cluster.workers)
    yield None
