"""Run work in processes that end with their parent; their failures are raised in the parent."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from typing import TypeVar

from data_pipeline.common import interruption
from data_pipeline.common.errors import InputError
from data_pipeline.common.machine_memory import keep_freed_memory

Item = TypeVar("Item")


def run_in_processes(work: Callable[[Item], None], items: Sequence[Item], workers: int) -> Generator[Item, None, None]:
    """Call `work(item)` for each item in `workers` processes; yield each item when it is done.

    An error in a worker is raised here. Closing the generator ends the workers.
    """
    context = multiprocessing.get_context("spawn")
    link, end = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(workers, context, _begin, (link,))
    try:
        # Ctrl-C and Slurm send signals to all processes, so workers inherit blocked signals.
        with interruption.blocked():
            futures = {pool.submit(work, item): item for item in items}
        for future in as_completed(futures):
            future.result()
            yield futures[future]
    except BrokenProcessPool:
        raise InputError(
            "a worker process was killed, possibly because memory was full; set a smaller data.generator.workers"
        ) from None
    finally:
        # Finished items have written their files; unfinished files are useless.
        end.close()
        pool.shutdown(cancel_futures=True)


def _begin(link: Connection) -> None:
    """Prepare a worker; it ends when the other end of `link` closes, even if SIGKILL ends the parent."""
    threading.Thread(target=_end_with, args=(link,), daemon=True).start()
    keep_freed_memory()


def _end_with(link: Connection) -> None:
    link.poll(None)
    os._exit(1)
