"""Buffers: memory of samples that are gone, for the samples that come.

Fresh memory is cleared by the system page by page, which takes about as long as reading a field into it.
"""

from __future__ import annotations

import weakref
from collections import deque

import numpy as np


class _Memory(np.ndarray):
    """Memory that is lent; its own type, because NumPy lets a view refer to the first array of the view's type."""


class Buffers:
    """Lends float32 arrays whose memory comes back when neither they nor views of them are held any more.

    No more than `idle` arrays' memory is kept for the next; safe to use from several threads.
    """

    def __init__(self, idle: int = 2) -> None:
        self._idle = idle
        self._free: deque[_Memory] = deque(maxlen=idle)

    def empty(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return an array of `shape` that holds anything."""
        size = int(np.prod(shape))
        try:
            memory = self._free.pop()
        except IndexError:
            memory = None
        if memory is None or memory.size != size:
            memory = _Memory(size, np.float32)
        # Every view of what is lent refers to this one: when it is gone, nobody sees the memory any more.
        lent = memory.view(np.ndarray)
        weakref.finalize(lent, self._free.append, memory).atexit = False
        return lent.reshape(shape)

    def __reduce__(self) -> tuple[type[Buffers], tuple[int]]:
        """Send to another process how much to keep, not what is kept."""
        return Buffers, (self._idle,)
