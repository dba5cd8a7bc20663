"""Waiting for what other threads do."""

import threading
import time


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
