"""Keep freed memory for the next arrays, instead of giving it back to the operating system.

The C library returns a large array to the system when it is freed. The system then clears the next array of the same
size page by page, which takes longer than computing the array: half of the CPU time of a network on 361 x 720
(`benchmarks/correct.py`), 44 % of a training step of the transformer (`benchmarks/step.py`).
"""

from __future__ import annotations

import ctypes
from contextlib import suppress

MEDIUM_ARRAYS = 1 << 25
"""32 MB: a field of 361 x 720 with 33 channels. Some versions of the C library refuse a larger limit."""
KEPT_BYTES = 1 << 28
"""If there is a limit: free bytes at the end of the heap above which memory is returned to the system."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4
"""Numbers of the parameters of `mallopt` in glibc's malloc.h."""


def keep_freed_memory(largest: int | None = None) -> None:
    """Keep the memory of freed arrays of up to `largest` bytes, by default of any size; does nothing without glibc.

    Without a limit the process keeps its peak memory until its end. Call this for work that allocates the same arrays
    again and again, such as training steps.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        if largest is None:
            # A high _MMAP_THRESHOLD does not work: glibc before 2.35 refuses more than 32 MB, and then keeps nothing.
            mallopt(_MMAP_MAX, 0)
            mallopt(_TRIM_THRESHOLD, -1)
        else:
            mallopt(_MMAP_THRESHOLD, largest)
            mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
