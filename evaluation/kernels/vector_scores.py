"""Energy and variogram scores of vectors, over all pairs of members and all pairs of values.

    vector_scores(members, truth, weights)     # (4, N) of members (M, d, N), truth (d, N) and weights (d, d)

Vectors are scored in blocks that stay in the processor's second cache, where vector instructions work on one value of
all vectors of a block.
"""

from __future__ import annotations

import numpy as np

from data_pipeline.common.compiled import compiled
from data_pipeline.common.threads import BUDGET, in_threads

_BLOCK = 64
"""Vectors of a block: 200 KB for 50 members of 16 values in single precision."""


def vector_scores(members: np.ndarray, truth: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return energy score, fair energy score, variogram score and fair variogram score of N vectors, (4, N).

    With members x (M, d, N) and truth y (d, N), and Euclidean norms, the energy score is
    1/M Σ|x_m - y| - 1/(2M²) ΣΣ|x_m - x_n|; the fair one has the divisor 2M(M - 1) (Gneiting & Raftery 2007,
    doi:10.1198/016214506000001437). With v = √|x_i - x_j| for a pair of values, the variogram score of order 1/2 is the
    sum over all pairs (i, j) of weight · (v of the truth - mean of v over the members)², with symmetric `weights`
    (d, d) (Scheuerer & Hamill 2015, doi:10.1175/MWR-D-14-00269.1). Its expectation grows by the variance of that mean,
    which the fair one subtracts. Sums are in double precision; threads of the budget share the vectors.
    """
    members, truth = np.ascontiguousarray(members), np.ascontiguousarray(truth)
    N = truth.shape[1]
    numbers = np.empty((4, N))
    step = max(_BLOCK, -(-N // (4 * BUDGET.total)))

    def score(start: int) -> None:
        _score_vectors(members, truth, weights, start, min(start + step, N), numbers)

    for _ in in_threads(score, range(0, N, step), N):
        pass
    return numbers


@compiled
def _score_vectors(
    members: np.ndarray, truth: np.ndarray, weights: np.ndarray, begin: int, end: int, numbers: np.ndarray
) -> None:
    M, d = members.shape[:2]
    x, y = np.zeros((M, d, _BLOCK), members.dtype), np.zeros((d, _BLOCK), members.dtype)
    square, sums = np.zeros(_BLOCK, members.dtype), np.zeros((6, _BLOCK))
    distance, pairs, plain, fair, mean, absolute = sums[0], sums[1], sums[2], sums[3], sums[4], sums[5]
    for start in range(begin, end, _BLOCK):
        n = min(_BLOCK, end - start)
        for i in range(d):
            y[i, :n] = truth[i, start : start + n]
            for m in range(M):
                x[m, i, :n] = members[m, i, start : start + n]
        sums[:] = 0
        for m in range(M):
            _add_distances(x[m], y, square, distance)
            for other in range(m):
                _add_distances(x[m], x[other], square, pairs)
        for i in range(d):
            for j in range(i):
                mean[:] = 0
                absolute[:] = 0
                for m in range(M):
                    p, q = x[m, i], x[m, j]
                    for k in range(_BLOCK):
                        difference = abs(p[k] - q[k])
                        mean[k] += np.sqrt(difference)
                        absolute[k] += difference
                # Each pair counts twice, as (i, j) and as (j, i).
                p, q, weight = y[i], y[j], 2 * weights[i, j]
                for k in range(_BLOCK):
                    v = mean[k] / M
                    error = (np.sqrt(np.float64(abs(p[k] - q[k]))) - v) ** 2
                    plain[k] += weight * error
                    fair[k] += weight * (error - (absolute[k] / M - v * v) / np.float64(M - 1))
        for k in range(n):
            numbers[0, start + k] = distance[k] / M - pairs[k] / np.float64(M * M)
            numbers[1, start + k] = distance[k] / M - pairs[k] / np.float64(M * (M - 1))
            numbers[2, start + k] = plain[k]
            numbers[3, start + k] = fair[k]


@compiled
def _add_distances(x: np.ndarray, y: np.ndarray, square: np.ndarray, total: np.ndarray) -> None:
    """Add the norms of the vectors x - y (d, n) to `total` (n,)."""
    square[:] = 0
    for i in range(len(x)):
        p, q = x[i], y[i]
        for k in range(len(square)):
            square[k] += (p[k] - q[k]) * (p[k] - q[k])
    for k in range(len(square)):
        total[k] += np.sqrt(square[k])
