"""Several ranks on one machine, for tests: `run_on_ranks(count, function, ...)` runs a function on each of them.

Ranks are forks of a server that has only imported the modules of `PRELOAD`. So no rank spends seconds on imports, and
no rank inherits the threads of earlier tests.
"""

import multiprocessing
import os
import pickle
import socket
import tempfile
import traceback
from datetime import timedelta
from multiprocessing import forkserver
from multiprocessing.connection import wait
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist
from tested_device import BACKEND, TESTED, device_of

HERE = Path(__file__).parent
PRELOAD = [
    "torch.distributed.fsdp", "torch.utils.tensorboard", "training.train", "evaluation.evaluate", "models.correct",
    "models.networks.unet", "pytest", "hypothesis", "warm_kernels",
    "freeze",
]  # fmt: skip
"""Modules that the server imports for all ranks; `freeze` is the last one."""
PATIENCE = 400
"""Seconds after which ranks that do not answer count as hanging."""


def run_on_ranks(count, function, *arguments, timeout=180):
    """Call `function(rank, *arguments)` on `count` ranks of one gloo group; return the results by rank."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    with patch.dict(os.environ, PYTHONPATH=os.pathsep.join([str(HERE), str(HERE.parent)])):
        forkserver.ensure_running()  # the server ignores modules that are not on its path
    # The file is in a folder of its own, because the last rank to leave the group deletes the file.
    with tempfile.TemporaryDirectory() as folder:
        meeting_point = Path(folder) / "meeting_point"
        pipes, ranks = [], []
        for rank in range(count):
            mine, theirs = context.Pipe(duplex=False)
            process = context.Process(
                target=_run, args=(rank, count, meeting_point, theirs, function, arguments, timeout), daemon=True
            )
            process.start()
            theirs.close()
            pipes.append(mine)
            ranks.append(process)
        results = {}
        try:
            waiting = dict(zip(pipes, range(count), strict=True))
            while waiting:
                ready = wait(list(waiting), PATIENCE)
                assert ready, f"ranks {sorted(waiting.values())} of {count} do not answer"
                for pipe in ready:
                    rank = waiting.pop(pipe)
                    try:
                        failed, results[rank] = pickle.loads(pipe.recv_bytes())
                    except EOFError:
                        failed, results[rank] = True, f"rank {rank} died"
                    assert not failed, f"rank {rank} of {count}:\n{results[rank]}"
        finally:
            for process in ranks:
                process.kill()
                process.join()
    return [results[rank] for rank in range(count)]


def _run(rank, count, meeting_point, pipe, function, arguments, timeout):
    torch.set_num_threads(1)
    if (device := device_of(count, rank)).type == "cuda":
        torch.cuda.set_device(device)
    os.environ["GLOO_SOCKET_IFNAME"] = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "")
    try:
        dist.init_process_group(
            BACKEND[TESTED], init_method=f"file://{meeting_point}", rank=rank, world_size=count,
            timeout=timedelta(seconds=timeout),
        )  # fmt: skip
        _send(pipe, False, function(rank, *arguments))
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        _send(pipe, True, traceback.format_exc())


def _send(pipe, failed, result):
    # `pipe.send` would send a tensor as an open file of its rank, and the rank may end before the file is read.
    pipe.send_bytes(pickle.dumps((failed, result)))
