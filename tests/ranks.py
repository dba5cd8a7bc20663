"""Several ranks on one machine, for tests: `run_on_ranks(count, function, ...)` runs a function on each of them.

Ranks are forks of the server of `forks.py`. So no rank spends seconds on imports, and no rank inherits the threads of
earlier tests.
"""

import os
import pickle
import socket
import sys
import tempfile
import traceback
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path

import torch
import torch.distributed as dist
from forks import Program
from tested_device import BACKEND, TESTED, device_of

PATIENCE = 400
"""Seconds after which ranks that do not answer count as hanging."""


def run_on_ranks(count, function, *arguments, timeout=180):
    """Call `function(rank, *arguments)` on `count` ranks of one gloo group; return the results by rank."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        results = [Path(folder) / f"result{rank}" for rank in range(count)]
        (Path(folder) / "call").write_bytes(pickle.dumps((function, arguments, count, timeout)))
        ranks = [Program([__file__, folder, rank], env=environment) for rank in range(count)]
        try:
            waiting = {program.connection: rank for rank, program in enumerate(ranks)}
            while waiting:
                ready = wait(list(waiting), PATIENCE)
                assert ready, f"ranks {sorted(waiting.values())} of {count} do not answer"
                for rank in sorted(map(waiting.pop, ready)):
                    code, error = ranks[rank].wait(), results[rank].with_suffix(".error")
                    said = error.read_text() if error.exists() else f"died with exit code {code}"
                    assert code == 0, f"rank {rank} of {count}:\n{said}"
            return [pickle.loads(result.read_bytes()) for result in results]
        finally:
            for program in ranks:
                program.kill()
                program.wait()


def _run(folder, rank):
    function, arguments, count, timeout = pickle.loads((folder / "call").read_bytes())
    if (device := device_of(count, rank)).type == "cuda":
        torch.cuda.set_device(device)
    os.environ["GLOO_SOCKET_IFNAME"] = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "")
    dist.init_process_group(
        BACKEND[TESTED], init_method=f"file://{folder / 'meeting_point'}", rank=rank, world_size=count,
        timeout=timedelta(seconds=timeout),
    )  # fmt: skip
    (folder / f"result{rank}").write_bytes(pickle.dumps(function(rank, *arguments)))
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # exit functions take longer than many tests


if __name__ == "__main__":
    _folder, _rank = Path(sys.argv[1]), int(sys.argv[2])
    try:
        _run(_folder, _rank)
    except BaseException:
        (_folder / f"result{_rank}.error").write_text(traceback.format_exc())
        raise SystemExit(1) from None
