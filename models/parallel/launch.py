"""Launch: a verb that finds itself alone starts the ranks of its mesh, on this machine, and speaks with one voice.

Each rank is a copy of the command that is running. They meet at a store that this process keeps, so that no port is
chosen before it is free.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from types import FrameType
from typing import IO, NoReturn

import torch.distributed as dist

from data_pipeline.cluster import processors

GRACE = 15.0
"""Seconds that ranks have to say what they have to say once one of them has failed."""
LIFELINE = "DEEPWEATHER_LIFELINE"
"""Set for ranks that shall end when their standard input does: then the process that started them is gone."""


def launch(ranks: int) -> NoReturn:
    """Run this command as `ranks` processes and exit as they do."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    heard = Heard()
    processes = [_start(rank, ranks, store.port) for rank in range(ranks)]
    threads = [threading.Thread(target=heard.pass_on, args=(process.stderr,), daemon=True) for process in processes]
    for thread in threads:
        thread.start()
    _forward_signals(processes)
    codes = _wait(processes)
    for thread in threads:
        thread.join(GRACE)
    killed = [(rank, -code) for rank, code in enumerate(codes) if code < 0]
    if killed and not any(code > 0 and code != 3 for code in codes):
        rank, number = killed[0]
        print(
            f"error: rank {rank} of {ranks} was killed by signal {number} ({signal.strsignal(number)}); "
            "if memory was short take more ranks or smaller batches; run the same command again to go on",
            file=sys.stderr,
        )
    # Of several codes the one that names the cause: 1 a bug, 2 the user's to mend, 3 what can go on.
    sys.exit(min((code if code > 0 else 3 for code in codes if code), default=0))


def watch_launcher() -> None:
    """End this rank, as Ctrl-C would, when the process that launched it is gone."""
    if not os.environ.pop(LIFELINE, ""):
        return

    def watch() -> None:
        # Not `sys.stdin`, whose lock this thread would still hold when the interpreter ends.
        os.read(0, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()


class Heard:
    """Error lines that were passed on: what all ranks say is said once."""

    def __init__(self) -> None:
        self._lines: set[bytes] = set()
        self._lock = threading.Lock()

    def pass_on(self, stream: IO[bytes]) -> None:
        """Copy a stream to standard error, without repeating an error."""
        for line in stream:
            with self._lock:
                if line.startswith(b"error:") and line in self._lines:
                    continue
                self._lines.add(line)
                sys.stderr.buffer.write(line)
                sys.stderr.buffer.flush()


def _start(rank: int, ranks: int, port: int) -> subprocess.Popen[bytes]:
    spec = sys.modules["__main__"].__spec__
    script = ["-m", spec.name] if spec is not None else [sys.argv[0]]
    environment = os.environ | {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), LIFELINE: "1",
        # By these two PyTorch knows that the store is kept by the one who started the ranks.
        "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0",
    }  # fmt: skip
    environment.setdefault("OMP_NUM_THREADS", str(max(1, processors() // ranks)))
    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), None)
    if loopback is not None:
        environment.setdefault("GLOO_SOCKET_IFNAME", loopback)
    return subprocess.Popen(
        [sys.executable, *script, *sys.argv[1:]],
        env=environment,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # Ctrl-C reaches this process alone, which tells each rank once.
        start_new_session=True,
    )


def _forward_signals(processes: list[subprocess.Popen[bytes]]) -> None:
    told = 0

    def forward(number: int, frame: FrameType | None) -> None:
        nonlocal told
        told += 1
        for process in processes:
            # As SIGTERM, which is never ignored: shells start what runs in the background with SIGINT ignored. Twice is
            # for those that listen; ranks that wait for each other in a library do not.
            process.send_signal(signal.SIGTERM if told < 3 else signal.SIGKILL)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, forward)


def _wait(processes: list[subprocess.Popen[bytes]]) -> list[int]:
    """Return the exit codes; when one rank has failed the others have `GRACE` seconds left."""
    failed_at = None
    while any(process.poll() is None for process in processes):
        if failed_at is None and any(process.returncode for process in processes):
            failed_at = time.monotonic()
        if failed_at is not None and time.monotonic() - failed_at > GRACE:
            for process in processes:
                process.kill()
        time.sleep(0.05)
    return [process.returncode for process in processes]
