"""Launch: a command that was started as one process starts the ranks of its mesh on this machine.

Each rank is a copy of the running command. Ranks meet at a store of this process, whose port the operating system
chooses, so that the port is free. Errors that several ranks print are printed once.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import IO, NoReturn

import torch.distributed as dist

from data_pipeline.common import interruption
from data_pipeline.common.progress import Progress, clearing, hide_progress
from data_pipeline.common.run_start import variables_of_ranks
from data_pipeline.common.threads import processors

GRACE = 15.0
"""Seconds that other ranks have to end by themselves after one has failed."""
PROGRESS_SHOWN = "progress"
"""Key of the launcher's store that the first rank sets when it shows the progress."""
LIFELINE = "DEEPWEATHER_LIFELINE"
"""Environment variable of launched ranks: they end when their standard input closes with their launcher."""


def launch(ranks: int) -> NoReturn:
    """Run this command as `ranks` processes and exit with their code."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    lines = ErrorLines()
    # A signal that arrives before a rank has installed its handler waits.
    with interruption.blocked():
        processes = [_start(rank, ranks, store.port) for rank in range(ranks)]
    threads = [threading.Thread(target=lines.copy, args=(process.stderr,), daemon=True) for process in processes]
    for thread in threads:
        thread.start()
    _forward_signals(processes)
    with Progress(f"starting {ranks} ranks"):
        while not store.check([PROGRESS_SHOWN]) and all(process.poll() is None for process in processes):
            time.sleep(0.05)
    hide_progress()
    codes = _wait(processes)
    for thread in threads:
        thread.join(GRACE)
    killed = [(rank, -code) for rank, code in enumerate(codes) if code < 0]
    if killed and not any(code > 0 and code != 3 for code in codes):
        rank, number = killed[0]
        advice = "if memory was short, use more ranks or smaller batches"
        if number == signal.SIGABRT:
            # Threads of NCCL end their process by SIGABRT when a message fails and no Python code waits for it.
            advice = "a library ended it, as NCCL does when another rank is lost; its own error is above"
        print(
            f"error: rank {rank} of {ranks} was killed by signal {number} ({signal.strsignal(number)}); "
            f"{advice}; run the same command again to resume",
            file=sys.stderr,
        )
    # Of several codes, the one nearest to the cause counts: 1 a bug, 2 a wrong input, 3 a run that can resume.
    code = min((code if code > 0 else 3 for code in codes if code), default=0)
    if code and interruption.requested():
        interruption.end_soon(code)
    sys.exit(code)


def watch_launcher() -> None:
    """End this rank, as Ctrl-C would, when its launcher has ended; from now on the first rank shows the progress."""
    if not os.environ.pop(LIFELINE, ""):
        return
    # The launcher has started this rank with blocked signals.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, interruption.SIGNALS)

    def watch() -> None:
        # `sys.stdin` has a lock that this thread would still hold when the interpreter ends.
        os.read(0, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()
    # This comes after the watch: PyTorch tries for five minutes to reach a launcher that has ended.
    if os.environ["RANK"] == "0":
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        dist.TCPStore(address, port, wait_for_workers=False).set(PROGRESS_SHOWN, "")


class ErrorLines:
    """Copies standard error of the ranks and prints each error line once."""

    def __init__(self) -> None:
        self._lines: set[bytes] = set()
        self._lock = threading.Lock()

    def copy(self, stream: IO[bytes]) -> None:
        """Copy a stream to standard error, without error lines that another stream had."""
        for line in stream:
            with self._lock:
                if line.startswith(b"error:") and line in self._lines:
                    continue
                self._lines.add(line)
                sys.stderr.buffer.write(clearing().encode() + line)
                sys.stderr.buffer.flush()


def _start(rank: int, ranks: int, port: int) -> subprocess.Popen[bytes]:
    spec = sys.modules["__main__"].__spec__
    script = ["-m", spec.name] if spec is not None else [sys.argv[0]]
    environment = os.environ | variables_of_ranks() | {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), LIFELINE: "1",
        # With these two PyTorch uses the store of the launcher.
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
        # Ctrl-C reaches this process only, which signals each rank once.
        start_new_session=True,
    )


def _forward_signals(processes: list[subprocess.Popen[bytes]]) -> None:
    signals = 0

    def forward(number: int) -> None:
        nonlocal signals
        signals += 1
        for process in processes:
            process.send_signal(number if signals < interruption.INSISTING else signal.SIGKILL)

    interruption.forward_to(forward)


def _wait(processes: list[subprocess.Popen[bytes]]) -> list[int]:
    """Return the exit codes; after one rank has failed, kill the others after `GRACE` seconds."""
    failed_at = None
    while any(process.poll() is None for process in processes):
        if failed_at is None and any(process.returncode for process in processes):
            failed_at = time.monotonic()
        if failed_at is not None and time.monotonic() - failed_at > GRACE:
            for process in processes:
                process.kill()
        time.sleep(0.05)
    return [process.returncode for process in processes]
