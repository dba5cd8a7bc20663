"""Clusters: where the long passes of `prepare` run. The same graph gives the same numbers on each of them.

    with Threads().running() as workers:
        list(workers.map(index, files))     # any function on any items
        dask.compute(graph)                 # any Dask graph

`workers` is an Executor as in `concurrent.futures`, so that what runs on it needs to know no cluster.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import dask
from dask.utils import parse_bytes

from data_pipeline.common.checks import check_integer
from data_pipeline.common.errors import InputError

if TYPE_CHECKING:
    from dask_jobqueue import SLURMCluster
    from distributed.deploy.cluster import Cluster as DistributedCluster


class Cluster(Protocol):
    """Somewhere to compute."""

    @property
    def at_once(self) -> int:
        """How many pieces of work are under way at the same time."""

    def running(self) -> AbstractContextManager[Executor]:
        """Start; inside the block Dask computes there, and what the block is given takes any other work."""


@dataclass(frozen=True)
class Threads:
    """Threads of this process, `workers` of them, by default one per processor that it may use."""

    workers: int | None = None

    def __post_init__(self) -> None:
        if self.workers is not None:
            check_integer("cluster.workers", self.workers, 1, 4096)

    @property
    def at_once(self) -> int:
        """How many threads there are."""
        return self.workers or processors()

    @contextmanager
    def running(self) -> Iterator[Executor]:
        """Start the threads."""
        with ThreadPoolExecutor(self.at_once) as pool, dask.config.set(scheduler="threads", pool=pool):
            try:
                yield pool
            except BaseException:
                # What has not begun never shall: Ctrl-C must not wait for all that is queued.
                pool.shutdown(wait=False, cancel_futures=True)
                raise


@dataclass(frozen=True)
class LocalProcesses:
    """`workers` processes of this machine with `threads` each, none of which may take more than `memory`."""

    workers: int = 2
    threads: int = 1
    memory: str | int = "4GB"

    def __post_init__(self) -> None:
        check_integer("cluster.workers", self.workers, 1, 4096)
        check_integer("cluster.threads", self.threads, 1, 4096)
        _memory(self.memory)

    @property
    def at_once(self) -> int:
        """How many threads there are in all processes."""
        return self.workers * self.threads

    @contextmanager
    def running(self) -> Iterator[Executor]:
        """Start the processes; none outlives this one."""
        from distributed import LocalCluster

        with (
            LocalCluster(
                n_workers=self.workers,
                threads_per_worker=self.threads,
                memory_limit=_memory(self.memory),
                dashboard_address=":0",
                silence_logs="ERROR",
            ) as cluster,
            _client(cluster) as workers,
        ):
            yield workers


@dataclass(frozen=True)
class Slurm:
    """`jobs` jobs of a Slurm queue with `cores` and `memory` each, that end after `walltime` (hours:minutes:seconds).

    `directives` are further options of sbatch, such as `--constraint=x`; `prologue` are shell commands before the
    worker starts, such as `module load x`; what jobs print goes to files in the folder `logs`. Workers must see the
    same files under the same paths as this process.
    """

    queue: str | None = None
    account: str | None = None
    cores: int = 8
    memory: str | int = "32GB"
    walltime: str = "02:00:00"
    jobs: int = 4
    directives: Sequence[str] = ()
    prologue: Sequence[str] = ()
    logs: str = "./slurm"

    def __post_init__(self) -> None:
        check_integer("cluster.cores", self.cores, 1, 4096)
        check_integer("cluster.jobs", self.jobs, 1, 4096)
        _memory(self.memory)
        if not isinstance(self.walltime, str) or not re.fullmatch(r"(\d+-)?\d+:\d\d:\d\d", self.walltime):
            raise InputError(f"cluster.walltime must be hours:minutes:seconds, such as 02:00:00, got {self.walltime!r}")
        for name in ("directives", "prologue"):
            if isinstance(getattr(self, name), str):
                raise InputError(f"cluster.{name} must be a list, got {getattr(self, name)!r}")
            object.__setattr__(self, name, tuple(getattr(self, name)))

    @property
    def at_once(self) -> int:
        """How many threads there are in all jobs."""
        return self.jobs * self.cores

    def job_script(self) -> str:
        """Return the script of one job, as it would be submitted."""
        with self._cluster() as cluster:
            return str(cluster.job_script())

    @contextmanager
    def running(self) -> Iterator[Executor]:
        """Submit the jobs and wait for the first of them."""
        if shutil.which("sbatch") is None:
            raise InputError(
                "cluster=slurm submits jobs with sbatch, which is not there; run on a machine of the cluster, "
                "or choose cluster=threads or cluster=local"
            )
        with self._cluster() as cluster:
            cluster.scale(jobs=self.jobs)
            print(f"cluster: {self.jobs} jobs submitted, waiting for the first to start", flush=True)
            with _client(cluster) as workers:
                yield workers

    def _cluster(self) -> SLURMCluster:
        from dask_jobqueue import SLURMCluster

        return SLURMCluster(
            queue=self.queue,
            account=self.account,
            cores=self.cores,
            processes=1,
            memory=str(self.memory),
            walltime=self.walltime,
            job_extra_directives=list(self.directives),
            job_script_prologue=list(self.prologue),
            log_directory=self.logs,
            scheduler_options={"dashboard_address": ":0"},
        )


@contextmanager
def _client(cluster: DistributedCluster) -> Iterator[Executor]:
    """Make `cluster` what Dask computes on."""
    from distributed import Client
    from distributed.scheduler import KilledWorker

    with Client(cluster) as client:
        client.wait_for_workers(1)
        try:
            yield client.get_executor(retries=0)
        except KilledWorker:
            raise InputError(
                "a worker of the cluster was killed several times, perhaps for want of memory: give cluster.memory more"
            ) from None


def processors() -> int:
    """How many processors this process may use, where the system says so."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _memory(value: str | int) -> int:
    """Return a size in bytes, given as such or with a unit."""
    try:
        count = parse_bytes(value) if isinstance(value, str) else value
    except ValueError:
        count = 0
    if isinstance(count, bool) or not isinstance(count, int) or count <= 0:
        raise InputError(f"cluster.memory must be a size such as 4GB, got {value!r}")
    return count
