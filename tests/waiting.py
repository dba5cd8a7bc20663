"""Waiting for what other threads and processes do."""

import contextlib
import threading
import time
from pathlib import Path


def eventually(condition):
    """Wait until a condition holds; return whether it does."""
    for _ in range(6000):
        if condition():
            return True
        time.sleep(0.01)
    return False


def running_loaders():
    """Return the threads that read samples ahead."""
    return [thread for thread in threading.enumerate() if thread.name == "staging"]


def is_running(process):
    """Return whether a process, given by its number, has not ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
