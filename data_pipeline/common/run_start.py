"""The time at which a run began: before the imports of its command, which take seconds."""

from __future__ import annotations

import os
import time

VARIABLE = "DEEPWEATHER_BEGAN"
"""Environment variable of launched ranks: the begin of the command that launched them."""
_marked: list[float] = []
_taken: list[float] = []


def mark_begin() -> None:
    """Let the run begin at this moment."""
    _marked[:] = [time.monotonic()]


def take_begin() -> float:
    """Return the begin of this run, as `time.monotonic()` counts; a second run of the same process begins now."""
    inherited = os.environ.pop(VARIABLE, None)
    marked = [*_marked, *([] if inherited is None else [float(inherited)]), time.monotonic()]
    _marked.clear()
    _taken[:] = [marked[0]]
    return marked[0]


def variables_of_ranks() -> dict[str, str]:
    """Return the environment variables by which ranks on this machine begin with this process."""
    return {VARIABLE: repr(_taken[0])} if _taken else {}
