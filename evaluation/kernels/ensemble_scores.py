"""Scores of an ensemble in every cell: CRPS plain and fair, error, variance and rank, from one pass over the members.

    scores = ensemble_scores(members, truth)     # members (M, *S), truth (*S)
    scores.crps, scores.variance                 # (*S), float64

Cells are sorted in blocks that stay in the processor's first cache. A comparator of the sorting network works on a
whole block with vector instructions, which a sort of single cells cannot use.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from data_pipeline.common.compiled import compiled
from data_pipeline.common.threads import BUDGET, in_threads

_BLOCK_VALUES = 10240
"""Members times cells of a block: 40 KB in single precision."""
_PART = 1 << 16
"""Least number of cells per thread: with fewer, starting a thread costs more than it saves."""


Values = TypeVar("Values")


class EnsembleScores(NamedTuple, Generic[Values]):
    """Scores of every cell, (*S), as arrays or tensors.

    A cell with NaN truth or a NaN member has NaN scores and arbitrary counts.

    `crps` and `crps_fair` are defined as in `Ensemble.crps`. `error` is the mean of the members minus the truth.
    `variance` has the divisor M - 1, and is NaN for M = 1. `below` and `equal` count the members that are less than the
    truth and equal to the truth.
    """

    crps: Values
    crps_fair: Values
    error: Values
    variance: Values
    below: Values
    equal: Values


def ensemble_scores(members: np.ndarray, truth: np.ndarray) -> EnsembleScores[np.ndarray]:
    """Return the scores of `members` (M, *S) against `truth` (*S), both in single or both in double precision.

    Sums are in double precision. Threads of the budget share the cells.
    """
    if members.shape[1:] != truth.shape or not len(members):
        raise ValueError(f"members {members.shape} and truth {truth.shape} do not fit")
    if members.dtype != truth.dtype or members.dtype not in (np.float32, np.float64):
        raise ValueError(f"members are {members.dtype} and the truth is {truth.dtype}; one floating type is needed")
    # One array for all scores: getting memory from the system page by page takes as long as the scores of 10 members.
    numbers, counts = np.empty((4, *truth.shape)), np.empty((2, *truth.shape), np.int32)
    scores = EnsembleScores(*(numbers[k, ...] for k in range(4)), *(counts[k, ...] for k in range(2)))
    out = [field.reshape(-1) for field in scores]
    M, pairs = len(members), sorting_network(len(members))
    block = min(1024, max(64, _BLOCK_VALUES // M // 64 * 64))
    expected = np.ascontiguousarray(truth).reshape(-1)
    rows = list(_contiguous_rows(members))
    size = expected.size // max(1, len(rows))
    step = max(_PART, -(-expected.size // (4 * BUDGET.total)))
    parts = [(row, start, min(start + step, size)) for row in range(len(rows)) for start in range(0, size, step)]

    def score(part: tuple[int, int, int]) -> None:
        row, start, stop = part
        flat, between = rows[row]
        here = slice(row * size + start, row * size + stop)
        _score_cells(flat[start:], between, M, expected[here], pairs, block, *(field[here] for field in out))

    for _ in in_threads(score, parts, len(parts)):
        pass
    return scores


def _contiguous_rows(members: np.ndarray) -> Iterator[tuple[np.ndarray, int]]:
    """Yield the members (M, *S) in pieces, in the order of the cells.

    A piece is a flat array, in which the cells of a member follow each other, and the distance between members. Most
    arrays are not copied, although members are often a view of an array (B, M, T, H, W).
    """
    M, shape = len(members), members.shape[1:]
    inner = len(shape)
    while inner and members.size and members[(0, *[0] * (inner - 1))].flags.c_contiguous:
        inner -= 1
    # The cells of the axes from `inner` on are contiguous; each index of the earlier axes gives a piece.
    first, cells = shape[:inner], int(np.prod(shape[inner:]))
    between = members.strides[0] // members.itemsize
    if cells == 1 or between < 0:
        yield np.ascontiguousarray(members).reshape(-1), members[0].size
        return
    for index in np.ndindex(*first):
        piece = members[(0, *index)].reshape(-1)
        span = (M - 1) * between + cells
        yield np.lib.stride_tricks.as_strided(piece, (span,), (members.itemsize,), writeable=False), between


@compiled
def _score_cells(
    members: np.ndarray,
    between: int,
    M: int,
    truth: np.ndarray,
    pairs: np.ndarray,
    block: int,
    crps: np.ndarray,
    crps_fair: np.ndarray,
    error: np.ndarray,
    variance: np.ndarray,
    below: np.ndarray,
    equal: np.ndarray,
) -> None:
    # Rows are cut out of arrays before the inner loops: numba cannot use vector instructions for loops whose indices
    # are sums, because such an index could be negative. Four members at a time halve the memory traffic of the sums.
    differences = np.zeros((M, block), members.dtype)
    total, absolute, square = np.zeros(block), np.zeros(block), np.zeros(block)
    less, same = np.zeros(block, np.int32), np.zeros(block, np.int32)
    left_over = M % 4
    for start in range(0, truth.size, block):
        n = min(block, truth.size - start)
        y = truth[start : start + n]
        for m in range(M):
            x, a = members[m * between + start : m * between + start + n], differences[m]
            for k in range(n):
                a[k] = x[k] - y[k]
        total[:] = 0
        absolute[:] = 0
        for m in range(left_over):
            a = differences[m]
            for k in range(block):
                total[k] += a[k]
                absolute[k] += abs(np.float64(a[k]))
        for m in range(left_over, M, 4):
            a, b, c, d = differences[m], differences[m + 1], differences[m + 2], differences[m + 3]
            for k in range(block):
                p, q, r, s = np.float64(a[k]), np.float64(b[k]), np.float64(c[k]), np.float64(d[k])
                total[k] += (p + q) + (r + s)
                absolute[k] += (abs(p) + abs(q)) + (abs(r) + abs(s))
        for k in range(block):
            total[k] /= M
        square[:] = 0
        less[:] = 0
        same[:] = 0
        for m in range(M):
            a = differences[m]
            for k in range(block):
                less[k] += a[k] < 0
                same[k] += a[k] == 0
        for m in range(left_over):
            a = differences[m]
            for k in range(block):
                square[k] += (a[k] - total[k]) ** 2
        for m in range(left_over, M, 4):
            a, b, c, d = differences[m], differences[m + 1], differences[m + 2], differences[m + 3]
            for k in range(block):
                p, q, r, s = a[k] - total[k], b[k] - total[k], c[k] - total[k], d[k] - total[k]
                square[k] += (p * p + q * q) + (r * r + s * s)
        here = slice(start, start + n)
        error[here] = total[:n]
        variance[here] = square[:n] / np.float64(M - 1)
        below[here] = less[:n]
        equal[here] = same[:n]
        for comparator in range(len(pairs)):
            a, b = differences[pairs[comparator, 0]], differences[pairs[comparator, 1]]
            for k in range(block):
                u, v = a[k], b[k]
                a[k] = u if u < v else v
                b[k] = v if u < v else u
        # The sum over pairs |x_i - x_j|: members m and M - 1 - m of the sorted ones have the weights -w and w.
        square[:] = 0
        half = M // 2
        for m in range(half % 2):
            a, b, w = differences[m], differences[M - 1 - m], np.float64(M - 1 - 2 * m)
            for k in range(block):
                square[k] += w * (np.float64(b[k]) - np.float64(a[k]))
        for m in range(half % 2, half, 2):
            a, b, w = differences[m], differences[M - 1 - m], np.float64(M - 1 - 2 * m)
            c, d = differences[m + 1], differences[M - 2 - m]
            for k in range(block):
                p, q = np.float64(b[k]) - np.float64(a[k]), np.float64(d[k]) - np.float64(c[k])
                square[k] += w * p + (w - 2) * q
        plain, fair = crps[start : start + n], crps_fair[start : start + n]
        of_all, of_others = 1 / np.float64(M * M), 1 / np.float64(M * max(M - 1, 1))
        for k in range(n):
            plain[k] = absolute[k] / M - square[k] * of_all
        for k in range(n):
            fair[k] = absolute[k] / M - square[k] * of_others


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
