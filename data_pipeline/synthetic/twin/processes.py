"""Work in several processes: none outlives the parent, and no failure of one leaves the parent waiting."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Generator, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import TypeVar, cast

from data_pipeline.common.errors import InputError

Task = TypeVar("Task")

CONTEXT = multiprocessing.get_context("spawn")
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Options of glibc's mallopt."""


def run_in_processes(work: Callable[[Task], None], tasks: Sequence[Task], workers: int) -> Generator[Task, None, None]:
    """Call `work(task)` for every task, in `workers` processes; yield each task when it is done.

    An `InputError` in a worker is raised here. Closing the generator ends the workers.
    """
    waiting = list(reversed(tasks))
    processes: dict[Connection, SpawnProcess] = {}
    busy: dict[Connection, Task] = {}
    try:
        for _ in range(min(workers, len(tasks))):
            process, connection = _start(work)
            processes[connection] = process
            busy[connection] = waiting.pop()
            _send(connection, busy[connection])
        while busy:
            for connection in cast(list[Connection], wait(list(busy))):
                _receive(connection)
                done = busy.pop(connection)
                if waiting:
                    busy[connection] = waiting.pop()
                    _send(connection, busy[connection])
                yield done
    finally:
        # Files of finished tasks have their names; what is unfinished is of no use to anybody.
        for process in processes.values():
            process.kill()
            process.join()


def _start(work: Callable[[Task], None]) -> tuple[SpawnProcess, Connection]:
    here, there = CONTEXT.Pipe()
    process = CONTEXT.Process(target=_serve, args=(work, there), daemon=True)
    # Ctrl-C reaches every process of a terminal; what is blocked here at birth stays blocked there. The tracker goes
    # first: where it is not there yet, `start` would make it, and unblock the signal on its way.
    resource_tracker.ensure_running()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    there.close()
    return process, here


def _send(connection: Connection, task: object) -> None:
    # A worker that has died in the meantime is noticed by whoever waits for its answer.
    with contextlib.suppress(ConnectionError):
        connection.send(task)


def _receive(connection: Connection) -> None:
    """Take a worker's word that its task is done, or raise what went wrong."""
    try:
        error = connection.recv()
    except (EOFError, ConnectionError):
        raise InputError("a worker process was killed, perhaps for want of memory: use fewer workers") from None
    if error is not None:
        raise error


def _serve(work: Callable[[Task], None], connection: Connection) -> None:
    """Do tasks as they come."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _keep_freed_memory()
    while True:
        task = connection.recv()
        try:
            work(task)
            connection.send(None)
        except InputError as error:
            connection.send(error)
        except Exception:
            connection.send(RuntimeError(f"a worker process failed\n{traceback.format_exc()}"))


def _end_with_parent() -> None:
    """End this process as soon as its parent is gone, even by kill -9."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _keep_freed_memory() -> None:
    """Tell glibc, where there is one, not to hand large blocks back to the system after every operation.

    Otherwise most of the time goes into page faults.
    """
    with contextlib.suppress(OSError, AttributeError):
        allocator = ctypes.CDLL(None)
        allocator.mallopt(M_MMAP_THRESHOLD, 1 << 30)
        allocator.mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)
