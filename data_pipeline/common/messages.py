"""Printed messages: numbers as text, and lines that are printed once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from numbers import Real
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

MAX_VALUES_SHOWN = 24
"""Of a longer list, only the first and last values are shown."""


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


@cache
def print_once(text: str) -> None:
    """Print a line the first time that this process wants to print it; of several ranks, only the first prints."""
    if os.environ.get("RANK", "0") == "0":
        print(text, flush=True)
