"""One budget of threads for all pools of a process, within the processors that it may use."""

import multiprocessing
import os
import re
import threading
import time
from pathlib import Path

import pytest

from data_pipeline.common import machine_memory, threads
from data_pipeline.common.threads import BUDGET, in_threads, processors, processors_of_rank


class Busy:
    """Counts how many calls run at the same time."""

    def __init__(self):
        self.now = self.most = 0
        self.lock = threading.Lock()

    def __enter__(self):
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(0.01)

    def __exit__(self, *_):
        with self.lock:
            self.now -= 1


@pytest.fixture
def budget(monkeypatch):
    monkeypatch.setattr(BUDGET, "_total", 4)
    yield BUDGET
    assert BUDGET._lent == 0


def test_nested_pools_share_one_budget(budget):
    """Eight threads that each start a pool of eight would be 64."""
    busy = Busy()

    def leaf(k):
        with busy:
            return k

    outer = list(in_threads(lambda _: list(in_threads(leaf, range(8), 8)), range(8), 8))
    assert outer == [list(range(8))] * 8
    assert busy.most <= 4


def test_an_error_or_an_abandoned_loop_gives_the_threads_back(budget):
    with pytest.raises(ZeroDivisionError):
        list(in_threads(lambda k: 1 // k, [1, 0], 2))
    next(in_threads(abs, [-1, -2], 2))
    assert budget._lent == 0


def borrow_and_exit():
    with BUDGET.borrow(4) as count:
        os._exit(count)


def test_a_forked_process_starts_with_a_full_budget(budget):
    child = multiprocessing.get_context("fork").Process(target=borrow_and_exit)
    with budget.borrow(4), budget._lock:
        child.start()
        child.join(60)
    assert child.exitcode == 4


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, 64),
        ({"SLURM_CPUS_PER_TASK": "6"}, 6),
        ({"DEEPWEATHER_THREADS": "3", "SLURM_CPUS_PER_TASK": "6"}, 3),
        ({"SLURM_CPUS_PER_TASK": "none", "DEEPWEATHER_THREADS": "0"}, 64),
        ({"LOCAL_WORLD_SIZE": "8"}, 8),
        ({"LOCAL_WORLD_SIZE": "100"}, 1),
        ({"LOCAL_WORLD_SIZE": "4", "SLURM_STEP_NUM_TASKS": "4", "SLURM_CPUS_PER_TASK": "12"}, 12),
    ],
)
def test_processors_of_a_rank(monkeypatch, variables, expected):
    for name in ("SLURM_CPUS_PER_TASK", "DEEPWEATHER_THREADS", "LOCAL_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    monkeypatch.setattr(threads, "_quota", lambda: None)
    assert processors_of_rank() == expected
    monkeypatch.setattr(threads, "_quota", lambda: 2)
    assert processors() == 2


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/pod/run\n", {"pod/cpu.max": "150000 100000", "pod/run/cpu.max": "max 100000"}, 2),
        ("0::/pod/run\n", {"pod/cpu.max": "max 100000"}, None),
        ("0::/not/mounted/here\n", {"cpu.max": "400000 100000"}, 4),
        (
            "4:memory:/a\n3:cpu,cpuacct:/a\n",
            {"cpu/a/cpu.cfs_quota_us": "300000", "cpu/a/cpu.cfs_period_us": "100000", "cpu.max": "100000 100000"},
            3,
        ),
        ("3:cpu:/a\n", {"cpu/a/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_period_us": "100000"}, None),
        ("rubbish", {}, None),
    ],
)
def test_the_quota_of_the_control_group(tmp_path, monkeypatch, own, files, expected):
    (tmp_path / "cgroup").write_text(own)
    for name in ("PROCESS", "CGROUPS"):
        monkeypatch.setattr(machine_memory, name, tmp_path)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert threads._quota() == expected


def test_pools_are_made_in_one_place():
    """Threads that only wait for a network or for a file server's answer, as in Zarr, are not part of the budget."""
    root = Path(__file__).parents[3]
    packages = ("data_pipeline", "models", "training", "evaluation", "conf")
    made = [
        str(path.relative_to(root))
        for package in packages
        for path in (root / package).rglob("*.py")
        if re.search(r"ThreadPoolExecutor\(|ThreadPool\(", path.read_text())
    ]
    zarr = ["data_pipeline/formats/zarr/zarr_catalog.py", "data_pipeline/formats/zarr/zarr_store.py"]
    assert sorted(made) == ["data_pipeline/common/threads.py", *zarr]
