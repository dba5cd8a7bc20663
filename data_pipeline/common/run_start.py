"""The time at which a run began: before the imports of its command, which take seconds."""

from __future__ import annotations

import os
import time

VARIABLE = "DEEPWEATHER_BEGAN"
"""Environment variable of launched ranks: the time at which the command that launched them began."""
_marked: list[float] = []
_taken: list[float] = []


def mark_begin() -> None:
    """Record this moment as the beginning of the run."""
    _marked[:] = [time.monotonic()]


def take_begin() -> float:
    """Return the time at which this run began, by `time.monotonic()`; a second run of the same process begins now."""
    inherited = os.environ.pop(VARIABLE, None)
    marked = [*_marked, *([] if inherited is None else [float(inherited)]), time.monotonic()]
    _marked.clear()
    _taken[:] = [marked[0]]
    return marked[0]


def variables_of_ranks() -> dict[str, str]:
    """Return environment variables that give ranks on this machine the beginning of this process's run."""
    return {VARIABLE: repr(_taken[0])} if _taken else {}
