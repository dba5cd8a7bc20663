"""Runs a function in several processes at the same time, as the ranks of a process group or independently."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

import torch
import torch.distributed as dist

_Result = TypeVar("_Result")

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_ranks(count: int, function: Callable[..., _Result], *arguments: object, group: bool = False) -> list[_Result]:
    """Call `function(rank, *arguments)` in `count` processes of one thread each, which start at the same time.

    With `group` the processes are the ranks of a gloo group.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed", "training.step.correction_module"])
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(count, mp_context=context) as processes:
        calls = [processes.submit(_run_rank, rank, count, folder, group, function, arguments) for rank in range(count)]
        return [call.result() for call in calls]


def _run_rank(
    rank: int, count: int, folder: str, group: bool, function: Callable[..., _Result], arguments: tuple[object, ...]
) -> _Result:
    torch.set_num_threads(1)
    # A simulated rank receives uninitialised memory, which may hold denormal numbers; these are slow.
    torch.set_flush_denormal(True)
    os.environ["GLOO_SOCKET_IFNAME"] = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "")
    if group:
        dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=count)
        try:
            return function(rank, *arguments)
        finally:
            dist.barrier()
            dist.destroy_process_group()
    here = dist.FileStore(f"{folder}/meet", count)
    here.add("here", 1)
    while here.add("here", 0) < count:
        time.sleep(0.005)
    return function(rank, *arguments)
