"""Threads of this process: how many processors it may use, and one budget that all its thread pools share.

    for result in in_threads(function, items, 8):     # at most 8 threads, fewer if others are busy
        ...

Pools nest: a thread of Dask or of the prefetcher may read a file with several threads. Each pool borrows from the
budget, so that all pools together have about as many busy threads as there are processors. The threads of PyTorch are
not part of the budget; `join_mesh` limits them to the same number.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from data_pipeline.common.machine_memory import control_groups

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

THREADS_VARIABLE = "DEEPWEATHER_THREADS"
"""Environment variable: an upper limit for the threads of this process."""


def processors() -> int:
    """Number of processors that this process and its children may use.

    It is the smallest of the CPU affinity, the CPU quota of the control group (as in containers),
    `SLURM_CPUS_PER_TASK` and `DEEPWEATHER_THREADS`.
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limits = [affinity, _quota(), *(_number(os.environ, name) for name in ("SLURM_CPUS_PER_TASK", THREADS_VARIABLE))]
    return min(limit for limit in limits if limit)


def processors_of_rank() -> int:
    """Number of processors for this rank: its share, if several ranks on this machine have the same processors.

    Slurm gives each task its own processors; torchrun and the launcher of the verbs do not.
    """
    own_tasks = _number(os.environ, "SLURM_STEP_NUM_TASKS") or 1
    return processors() if own_tasks > 1 else max(1, processors() // (_number(os.environ, "LOCAL_WORLD_SIZE") or 1))


def ranks_here() -> int:
    """Number of ranks of this run on this machine, which share its memory."""
    return _number(os.environ, "LOCAL_WORLD_SIZE") or _number(os.environ, "SLURM_NTASKS_PER_NODE") or 1


class ThreadBudget:
    """Lends threads, at most `total` at a time; a caller may always use its own thread, which counts once."""

    def __init__(self, total: int | None = None) -> None:
        self._total, self._lent, self._lock = total, 0, threading.Lock()
        self._thread = threading.local()

    @property
    def total(self) -> int:
        """Number of threads; by default `processors_of_rank` at the first use."""
        if self._total is None:
            self._total = processors_of_rank()
        return self._total

    @contextmanager
    def borrow(self, wanted: int) -> Iterator[int]:
        """Lend from 1 to `wanted` threads until the end of the block; yield their number."""
        own = 0 if self.counted else 1
        with self._lock:
            further = max(0, min(wanted - 1, self.total - self._lent - own))
            self._lent += own + further
        self.counted = True
        try:
            yield 1 + further
        finally:
            self.counted = not own
            with self._lock:
                self._lent -= own + further

    @property
    def counted(self) -> bool:
        """Whether a loan includes the current thread."""
        return getattr(self._thread, "counted", False)

    @counted.setter
    def counted(self, value: bool) -> None:
        self._thread.counted = value

    def limit(self, total: int) -> None:
        """Set the total, for a process that shares its processors with others."""
        self._total = total

    def restart(self) -> None:
        """Forget all loans and make a new lock: a forked process has one thread, and the old lock may be held."""
        self._lent, self._lock = 0, threading.Lock()


BUDGET = ThreadBudget()
"""The budget of this process."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=BUDGET.restart)


def in_threads(function: Callable[[_Item], _Result], items: Sequence[_Item], limit: int) -> Iterator[_Result]:
    """Yield `function(item)` for each item in order, computed by at most `limit` threads of the budget."""
    with BUDGET.borrow(min(limit, len(items))) as count:
        if count == 1:
            yield from map(function, items)
            return
        with ThreadPoolExecutor(count, initializer=_count_thread) as pool:
            yield from pool.map(function, items)


def _count_thread() -> None:
    BUDGET.counted = True


class BudgetedPool(ThreadPoolExecutor):
    """A pool whose threads count in the budget while they work; the budget does not reduce their number."""

    def submit(self, function: Callable[..., _Result], /, *args: Any, **kwargs: Any) -> Future[_Result]:
        """Run a function in a thread of the pool."""
        return super().submit(_with_budget, function, *args, **kwargs)


def _with_budget(function: Callable[..., _Result], *args: Any, **kwargs: Any) -> _Result:
    with BUDGET.borrow(1):
        return function(*args, **kwargs)


def _number(values: Mapping[str, str], name: str) -> int | None:
    value = values.get(name, "")
    return int(value) if value.isdecimal() and int(value) > 0 else None


def _quota() -> int | None:
    """Return the CPU quota of this process's control group and the groups above it, rounded up; None without a quota.

    Version 2 of control groups has `cpu.max` ("200000 100000" for two processors); version 1 has `cpu.cfs_quota_us` and
    `cpu.cfs_period_us`.
    """
    return min((math.ceil(quota) for quota in map(_quota_of, control_groups("cpu")) if quota), default=None)


def _quota_of(folder: Path) -> float | None:
    with suppress(OSError, ValueError):
        quota, period = (folder / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    with suppress(OSError, ValueError):
        amount, duration = (int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
        return None if amount < 0 else amount / duration
    return None
