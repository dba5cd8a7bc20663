"""Keep freed memory for the next arrays, instead of giving it back to the operating system.

The C library gives a large array back when it is freed. The next array of the same size is then cleared page by page,
which takes longer than computing it: half of the CPU time of a network on 361 x 720 (`benchmarks/correct.py`).
"""

from __future__ import annotations

import ctypes
from contextlib import suppress

LARGEST_KEPT = 1 << 25
"""Bytes of the largest array whose memory is kept; the C library allows no more."""
KEPT_BYTES = 1 << 28
"""Free bytes at the end of the heap above which memory is given back."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Numbers of the parameters of `mallopt` in glibc's malloc.h."""


def keep_freed_memory() -> None:
    """Keep the memory of freed arrays of up to `LARGEST_KEPT` bytes; does nothing without glibc."""
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, LARGEST_KEPT)
        mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
