"""Clusters: where `prepare` computes statistics. Results do not depend on the cluster.

    with Threads().executor() as workers:
        list(workers.map(index, files))     # any function on any items
        dask.compute(graph)                 # any Dask graph

`workers` is an Executor as in `concurrent.futures`, so code that uses it does not depend on the kind of cluster.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import dask

from data_pipeline.common.checks import check_integer, check_walltime, size_in_bytes
from data_pipeline.common.errors import InputError
from data_pipeline.common.messages import say
from data_pipeline.common.threads import THREADS_VARIABLE, BudgetedPool, processors

if TYPE_CHECKING:
    from dask_jobqueue import SLURMCluster
    from distributed.deploy.cluster import Cluster as DistributedCluster


class Cluster(Protocol):
    """A place to run Dask graphs and functions."""

    @property
    def at_once(self) -> int:
        """Number of tasks that run at the same time."""

    def executor(self) -> AbstractContextManager[Executor]:
        """Start the workers; in the `with` block, Dask uses them, and the Executor runs other work on them."""


@dataclass(frozen=True)
class Threads:
    """Threads of this process; the default number of `workers` is one per available processor."""

    workers: int | None = None

    def __post_init__(self) -> None:
        if self.workers is not None:
            check_integer("cluster.workers", self.workers, 1, 4096)

    @property
    def at_once(self) -> int:
        """Number of threads."""
        return self.workers or processors()

    @contextmanager
    def executor(self) -> Iterator[Executor]:
        """Start the threads."""
        with BudgetedPool(self.at_once) as pool, dask.config.set(scheduler="threads", pool=pool):
            try:
                yield pool
            except BaseException:
                # Cancel queued work, so that Ctrl-C does not wait for it.
                pool.shutdown(wait=False, cancel_futures=True)
                raise


@dataclass(frozen=True)
class LocalProcesses:
    """`workers` processes on this machine with `threads` each; `memory` is the limit of each process."""

    workers: int = 2
    threads: int = 1
    memory: str | int = "4GB"

    def __post_init__(self) -> None:
        check_integer("cluster.workers", self.workers, 1, 4096)
        check_integer("cluster.threads", self.threads, 1, 4096)
        size_in_bytes("cluster.memory", self.memory)

    @property
    def at_once(self) -> int:
        """Number of threads in all processes."""
        return self.workers * self.threads

    @contextmanager
    def executor(self) -> Iterator[Executor]:
        """Start the processes; they end with this process."""
        from distributed import LocalCluster

        with (
            LocalCluster(
                n_workers=self.workers,
                threads_per_worker=self.threads,
                memory_limit=size_in_bytes("cluster.memory", self.memory),
                dashboard_address=":0",
                silence_logs="ERROR",
                env={THREADS_VARIABLE: str(self.threads)},
            ) as cluster,
            _client(cluster) as workers,
        ):
            yield workers


@dataclass(frozen=True)
class Slurm:
    """Slurm jobs with `cores` and `memory` each; they end after `walltime` (hours:minutes:seconds).

    `directives` are further options of sbatch, such as `--constraint=x`. `prologue` are shell commands that run before
    the worker, such as `module load x`. `logs` is the folder of the jobs' output. Workers must see the same files under
    the same paths as this process.
    """

    partition: str | None = None
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
        size_in_bytes("cluster.memory", self.memory)
        check_walltime("cluster.walltime", self.walltime)
        for name in ("directives", "prologue"):
            if isinstance(getattr(self, name), str):
                raise InputError(f"cluster.{name} must be a list, got {getattr(self, name)!r}")
            object.__setattr__(self, name, tuple(getattr(self, name)))

    @property
    def at_once(self) -> int:
        """Number of threads in all jobs."""
        return self.jobs * self.cores

    @contextmanager
    def executor(self) -> Iterator[Executor]:
        """Submit the jobs and wait until the first one starts."""
        if shutil.which("sbatch") is None:
            raise InputError(
                "cluster=slurm needs the command sbatch, which was not found; run on a machine of the cluster, "
                "or choose cluster=threads or cluster=local"
            )
        with self._cluster() as cluster:
            cluster.scale(jobs=self.jobs)
            say(f"cluster: {self.jobs} jobs submitted, waiting for the first to start")
            with _client(cluster) as workers:
                yield workers

    def _cluster(self) -> SLURMCluster:
        from dask_jobqueue import SLURMCluster

        return SLURMCluster(
            queue=self.partition,
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
    """Make Dask compute on `cluster`; yield an Executor that runs work there."""
    from distributed import Client
    from distributed.scheduler import KilledWorker

    with Client(cluster) as client:
        client.wait_for_workers(1)
        try:
            yield client.get_executor(retries=0)
        except KilledWorker:
            raise InputError(
                "a worker of the cluster was killed several times, perhaps for lack of memory; increase cluster.memory"
            ) from None
