"""Sorting networks: a fixed list of comparisons that sorts any values, if their number is given."""

from __future__ import annotations

from functools import cache

import numpy as np


@cache
def sorting_network(count: int) -> np.ndarray:
    """Return the comparators (K, 2) that sort `count` values; comparator (i, j) moves the smaller value to i < j.

    Batcher's odd-even merge sort for any count: Knuth, The Art of Computer Programming, volume 3, section 5.2.2,
    algorithm M. It has 31 comparators for 10 values and 395 for 50.

    >>> sorting_network(3).tolist()
    [[0, 2], [0, 1], [1, 2]]
    """
    pairs = []
    largest = 1 << max(0, (count - 1).bit_length() - 1)
    merged = largest
    while merged:
        stride, offset, distance = largest, 0, merged
        while True:
            pairs += [(i, i + distance) for i in range(count - distance) if i & merged == offset]
            if stride == merged:
                break
            distance, stride, offset = stride - merged, stride >> 1, merged
        merged >>= 1
    return np.array(pairs, np.int64).reshape(-1, 2)
