"""Several ranks on one machine, for tests: `run_on_ranks(count, function, ...)` runs a function on each of them.

Ranks are forks of the server of `forks.py`, so no rank spends seconds on imports, and no rank inherits threads. They
stay alive and run one function after another; where one raises an exception, dies or hangs, new ones follow. Names that
a function sets in modules and classes of the project, or in `torch.distributed`, are set back. A function that changes
more than that, such as the handlers of signals, runs on new ranks, which end after it: `fresh=True`.
"""

import os
import pickle
import random
import socket
import sys
import tempfile
import traceback
from datetime import timedelta
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path

import numpy as np
import reach
import torch
import torch.distributed as dist
from forks import Program
from tested_device import BACKEND, TESTED, device_of

PATIENCE = 400
"""Seconds after which ranks that do not answer count as hanging."""
TIMEOUT = 180
"""Seconds after which an exchange fails."""
PROJECT = ("data_pipeline", "models", "training", "evaluation", "conf")
_idle = {}
"""Worlds that wait for a function, by their number of ranks."""


class World:
    """So many ranks of one gloo group, which stays: PyTorch keeps the names of groups in caches of its own."""

    def __init__(self, count, timeout):
        self.folder = tempfile.TemporaryDirectory()
        self.group = f"file://{self.folder.name}/meeting_point", count, timedelta(seconds=timeout)
        self.connections, self.programs = [], []
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
        for _ in range(count):
            ours, theirs = Pipe()
            self.connections.append(ours)
            self.programs.append(Program([__file__], env=environment, stdin=theirs.fileno()))
            theirs.close()

    def run(self, function, arguments):
        """Return the results of a function by rank; raise the first error."""
        for rank, connection in enumerate(self.connections):
            call = function, arguments, rank, self.group, dict(os.environ), Path.cwd()
            connection.send_bytes(pickle.dumps(call))
        results, waiting = {}, {connection: rank for rank, connection in enumerate(self.connections)}
        while waiting:
            ready = wait(list(waiting), PATIENCE)
            assert ready, f"ranks {sorted(waiting.values())} of {len(self.programs)} do not answer"
            for rank in sorted(map(waiting.pop, ready)):
                good, results[rank] = self._answer(rank)
                assert good, f"rank {rank} of {len(self.programs)}:\n{results[rank]}"
        return [results[rank] for rank in range(len(self.programs))]

    def _answer(self, rank):
        try:
            return pickle.loads(self.connections[rank].recv_bytes())
        except (EOFError, ConnectionError):
            return False, f"died with exit code {self.programs[rank].wait()}"

    def end(self):
        """End the ranks."""
        for connection, program in zip(self.connections, self.programs, strict=True):
            connection.close()
            program.kill()
            program.wait()
        self.folder.cleanup()


def run_on_ranks(count, function, *arguments, timeout=TIMEOUT, fresh=False):
    """Call `function(rank, *arguments)` on `count` ranks of one gloo group; return the results by rank."""
    fresh = fresh or timeout != TIMEOUT
    world = None if fresh else _idle.pop(count, None)
    world = world or World(count, timeout)
    try:
        found = world.run(function, arguments)
    except BaseException:
        world.end()
        raise
    if fresh:
        world.end()
    else:
        _idle[count] = world
    return found


def _serve(connection):
    while True:
        try:
            call = connection.recv_bytes()
        except EOFError:
            return
        try:
            answer = pickle.dumps((True, _run(*pickle.loads(call))))
        except BaseException:
            answer = pickle.dumps((False, traceback.format_exc()))
        connection.send_bytes(answer)


def _run(function, arguments, rank, group, environment, folder):
    """Run a function in the environment, with the random numbers and with the names of a new process."""
    os.environ.clear()
    os.environ.update(environment | {"OMP_NUM_THREADS": "1"})
    reach.adopt()
    os.environ["GLOO_SOCKET_IFNAME"] = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "")
    os.chdir(folder)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)
    meeting_point, count, timeout = group
    if (device := device_of(count, rank)).type == "cuda":
        torch.cuda.set_device(device)
    before = _names()
    if not dist.is_initialized():
        dist.init_process_group(
            BACKEND[TESTED], init_method=meeting_point, rank=rank, world_size=count, timeout=timeout
        )
    result = function(rank, *arguments)
    dist.barrier()
    for owner, names in before:
        for name, value in names.items():
            if owner.__dict__.get(name) is not value:
                setattr(owner, name, value)
    return result


def _names():
    """Return the names and values in each module and class of the project, and in `torch.distributed`."""
    modules = [module for name, module in sys.modules.items() if name.partition(".")[0] in PROJECT]
    classes = {
        value for module in modules for value in vars(module).values()
        if isinstance(value, type) and value.__module__ == module.__name__
    }  # fmt: skip
    return [
        (owner, {name: value for name, value in vars(owner).items() if not name.startswith("__")})
        for owner in (*modules, *classes, dist)
    ]


if __name__ == "__main__":
    _serve(Connection(os.dup(0)))
    os._exit(0)  # exit functions take longer than many tests
