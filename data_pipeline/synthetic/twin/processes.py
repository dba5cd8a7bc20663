"""Run work in processes that end with their parent; their failures are raised in the parent."""

from __future__ import annotations

import contextlib
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

from data_pipeline.common import interruption
from data_pipeline.common.errors import InputError
from data_pipeline.common.machine_memory import keep_freed_memory

Item = TypeVar("Item")

CONTEXT = multiprocessing.get_context("spawn")


def run_in_processes(work: Callable[[Item], None], items: Sequence[Item], workers: int) -> Generator[Item, None, None]:
    """Call `work(item)` for each item in `workers` processes; yield each item when it is done.

    An `InputError` in a worker is raised here. Closing the generator ends the workers.
    """
    waiting = list(reversed(items))
    processes: dict[Connection, SpawnProcess] = {}
    busy: dict[Connection, Item] = {}
    try:
        for _ in range(min(workers, len(items))):
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
        # Finished items have written their files; unfinished files are useless.
        for process in processes.values():
            process.kill()
            process.join()


def _start(work: Callable[[Item], None]) -> tuple[SpawnProcess, Connection]:
    here, there = CONTEXT.Pipe()
    process = CONTEXT.Process(target=_serve, args=(work, there), daemon=True)
    # Ctrl-C and Slurm send signals to all processes, so workers inherit blocked signals. The resource tracker must
    # already run: if `start` launched it, it would unblock SIGINT.
    resource_tracker.ensure_running()
    try:
        with interruption.blocked():
            process.start()
    except BaseException:
        # If `start` is interrupted, the caller does not get the worker and cannot end it.
        if process.pid is not None:
            process.kill()
            process.join()
        raise
    there.close()
    return process, here


def _send(connection: Connection, item: object) -> None:
    # If the worker is dead, `_receive` reports it.
    with contextlib.suppress(ConnectionError):
        connection.send(item)


def _receive(connection: Connection) -> None:
    """Wait for a worker's answer, and raise its error if it has one."""
    try:
        error = connection.recv()
    except (EOFError, ConnectionError):
        raise InputError(
            "a worker process was killed, possibly because memory was full; set a smaller data.generator.workers"
        ) from None
    if error is not None:
        raise error


def _serve(work: Callable[[Item], None], connection: Connection) -> None:
    """Work on items as they arrive."""
    # `multiprocessing` ends remaining workers with SIGTERM.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    threading.Thread(target=_end_with_parent, daemon=True).start()
    keep_freed_memory()
    while True:
        try:
            item = connection.recv()
        except EOFError:
            return  # the parent has ended
        try:
            work(item)
            connection.send(None)
        except InputError as error:
            connection.send(error)
        except Exception:
            connection.send(RuntimeError(f"a worker process failed\n{traceback.format_exc()}"))


def _end_with_parent() -> None:
    """End this process when its parent ends, even by SIGKILL."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
