"""Clusters: the same results on threads and processes, and the job scripts for Slurm."""

import os
import threading

import dask
import dask.array as da
import numpy as np
import pytest

from data_pipeline.cluster import LocalProcesses, Slurm, Threads
from data_pipeline.common.errors import InputError
from data_pipeline.common.threads import processors


@pytest.fixture(scope="module")
def local():
    """One cluster of processes for all tests, because its start takes seconds."""
    with LocalProcesses(workers=1, threads=1, memory="2GB").executor() as workers:
        yield workers


def graph():
    values = da.random.default_rng(0).normal(size=(40, 50, 60), chunks=(1, 50, 60)).astype(np.float32)
    return (values - values.mean(0)).std(0)


def process_and_thread(_):
    return os.getpid(), threading.get_ident()


def refuse(item):
    raise InputError(f"{item} is damaged")


def test_a_graph_has_the_same_result_on_every_cluster(local):
    there = graph().compute()  # the client of `local` is Dask's default
    with Threads(2).executor():
        here = graph().compute()
    with Threads(1).executor():
        alone = graph().compute()
    assert np.array_equal(here, there)
    assert np.array_equal(here, alone)


def test_functions_run_in_the_workers_and_their_exceptions_are_raised_unchanged(local):
    assert os.getpid() not in {process for process, _ in local.map(process_and_thread, range(8))}
    with pytest.raises(InputError, match=r"^7 is damaged$"):
        list(local.map(refuse, [7]))
    with Threads(1).executor() as workers:
        ((process, mine),) = set(workers.map(process_and_thread, range(8)))
        assert process == os.getpid()
        assert mine != threading.get_ident()
        blocks = da.zeros(4, chunks=1).map_blocks(lambda block: block + threading.get_ident(), dtype="i8")
        assert set(blocks.compute().tolist()) == {mine}, "Dask computes in the threads of the block"


def test_a_killed_worker_is_reported():
    """At once: by default, Dask starts three more workers before it gives up."""
    at_once = dask.config.set({"distributed.scheduler.allowed-failures": 0})
    sentence = r"a worker of the cluster was killed .* increase cluster\.memory"
    with at_once, pytest.raises(InputError, match=sentence), LocalProcesses(workers=1).executor() as workers:
        list(workers.map(os._exit, [1]))


def test_an_exception_cancels_queued_work():
    done = []
    with pytest.raises(InputError), Threads(1).executor() as workers:
        list(workers.map(lambda item: refuse(item) if item == 0 else done.append(item), range(1000)))
    assert len(done) < 1000


def test_the_default_is_one_thread_per_processor():
    assert Threads().at_once == processors() == len(os.sched_getaffinity(0))
    assert LocalProcesses(workers=3, threads=2).at_once == 6
    assert Slurm(jobs=3, cores=4).at_once == 12


def test_the_job_script_has_the_options(tmp_path):
    slurm = Slurm(
        partition="gpu", account="meteo", cores=4, memory="7GiB", walltime="00:30:00",
        directives=["--constraint=mc"], prologue=["module load eccodes"], logs=f"{tmp_path}/logs",
    )  # fmt: skip
    with slurm._cluster() as cluster:
        lines = cluster.job_script().splitlines()
    for wanted in (
        "#SBATCH -p gpu", "#SBATCH -A meteo", "#SBATCH --cpus-per-task=4", "#SBATCH --mem=7G", "#SBATCH -t 00:30:00",
        "#SBATCH --constraint=mc", "module load eccodes", f"#SBATCH -o {tmp_path}/logs/dask-worker-%J.out",
    ):  # fmt: skip
        assert wanted in lines
    assert "--nthreads 4" in lines[-1]


def test_slurm_needs_sbatch(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InputError, match=r"cluster=slurm needs the command sbatch.* choose cluster=threads"):
        Slurm().executor().__enter__()


def test_wrong_options_are_refused():
    for cluster, options, sentence in (
        (Threads, {"workers": 0}, "cluster.workers must be a whole number from 1 to 4096, got 0"),
        (LocalProcesses, {"workers": "two"}, "cluster.workers must be a whole number"),
        (LocalProcesses, {"memory": "much"}, "cluster.memory must be a size such as 4GB or 16GiB, got 'much'"),
        (Slurm, {"walltime": "2h"}, "cluster.walltime must be hours:minutes:seconds, such as 02:00:00, got '2h'"),
        (Slurm, {"directives": "--exclusive"}, "cluster.directives must be a list, got '--exclusive'"),
    ):
        with pytest.raises(InputError, match=sentence):
            cluster(**options)
