"""Messages of a run: notes, warnings and steps of its progress, and numbers as text.

A command prints notes and warnings with `say` and `warn`; progress.py draws the steps. A function of Python that runs
the same code gets all three in their place, in a block `with subscribed(function)`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np

Level = Literal["note", "warning", "progress"]
"""`warning` is for data, models or fits that were left out or replaced. The message of `progress` is a step."""
Subscriber = Callable[[Level, Any], None]

_subscriber: ContextVar[Subscriber | None] = ContextVar("subscriber", default=None)
MAX_VALUES_SHOWN = 24
"""Longest list that is shown in full; of longer lists, only the first and last values are shown."""


def format_duration(seconds: float) -> str:
    """Return a duration as minutes:seconds, with hours if there are any.

    >>> format_duration(75), format_duration(3675)
    ('1:15', '1:01:15')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def format_size(count: float) -> str:
    """Return a number of bytes with a suitable unit.

    >>> format_size(2_880_000_000_000)
    '2.88 TB'
    """
    unit = "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if count < 1000:
            break
        count, unit = count / 1000, larger
    return f"{count:.3g} {unit}"


def format_values(values: Sequence[object] | np.ndarray) -> str:
    """Return values separated by spaces; of a long list, the first and last values.

    >>> format_values([0.0, 24.0, 48.5])
    '0 24 48.5'
    """
    texts = [f"{value:g}" if isinstance(value, Real) else str(value) for value in values]
    if len(texts) > MAX_VALUES_SHOWN:
        texts = [*texts[: MAX_VALUES_SHOWN // 2], "...", *texts[-2:], f"({len(texts)} in all)"]
    return " ".join(texts)


@contextmanager
def subscribed(function: Subscriber) -> Iterator[None]:
    """Call `function(level, message)` with each message of this thread in the block, in place of printing it."""
    before = _subscriber.set(function)
    try:
        yield
    finally:
        _subscriber.reset(before)


def publish(level: Level, message: object) -> bool:
    """Give a message to the subscriber; return whether there is one."""
    if subscriber := _subscriber.get():
        subscriber(level, message)
    return subscriber is not None


def say(text: str, level: Level = "note", stderr: bool = False) -> None:
    """Print a line at once; of several ranks, only the first prints to standard output."""
    if not publish(level, text) and (stderr or os.environ.get("RANK", "0") == "0"):
        print(text, file=sys.stderr if stderr else sys.stdout, flush=True)


def warn(text: str) -> None:
    """Print a warning; the caller writes the prefix `warning: ` where the line should have it."""
    say(text, "warning")


say_once = cache(say)
"""`say`, the first time that this process says the same."""


def warn_once(text: str) -> None:
    """Print a warning to standard error, the first time that this process says the same."""
    say_once(f"warning: {text}", "warning", stderr=True)


def joined(values: Iterable[object]) -> str:
    """Return `a, b, c`."""
    return ", ".join(map(str, values))


def listed(words: Iterable[object], word: str = "and") -> str:
    """Return `a, b and c`."""
    *texts, last = ["", *map(str, words)]
    return f"{', '.join(texts[1:])} {word} {last}" if texts[1:] else last
