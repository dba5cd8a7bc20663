"""Numbers in words, for those who read what a command prints."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

SHOWN = 24
"""A longer list of values is shown by its ends."""


def duration(seconds: float) -> str:
    """Return a length of time as minutes and seconds, with hours where there are any.

    >>> duration(75), duration(3675)
    ('1:15', '1:01:15')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def size(count: float) -> str:
    """Return a number of bytes in the unit that suits it.

    >>> size(2_880_000_000_000)
    '2.88 TB'
    """
    unit = "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if count < 1000:
            break
        count, unit = count / 1000, larger
    return f"{count:.3g} {unit}"


def some(values: Sequence[object] | np.ndarray) -> str:
    """Return values side by side, of many only the first and the last.

    >>> some([0.0, 24.0, 48.5])
    '0 24 48.5'
    """
    texts = [f"{value:g}" if isinstance(value, int | float | np.number) else str(value) for value in values]
    if len(texts) > SHOWN:
        texts = [*texts[: SHOWN // 2], "...", *texts[-2:], f"({len(texts)} in all)"]
    return " ".join(texts)
