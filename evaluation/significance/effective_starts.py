"""The number of independent starts that correlated starts are worth, and how well it is known.

The contributions of the starts to a score are modelled as a stationary Gauss-Markov chain: the correlation of two
starts is the product of the correlations of all steps between them. A step of the usual length has the correlation r; a
step that is d times as long has |r|^d with the sign of r. Regular starts are then an AR(1) series. Gaps between runs of
starts need no special treatment, because |r|^d vanishes there.

All formulas are sums over pairs of starts. In a chain they are linear recurrences, so they cost n log n operations, and
no array has n x n elements.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import stdtrit

NEIGHBOURS = 45 * 86_400
"""Largest gap between neighbouring starts in seconds. A memory of 20 days still shows at gaps of 30 days."""
CORRELATIONS = np.tanh(np.linspace(-0.55, 2.65, 49))
"""The correlations r of neighbours, -0.50 to 0.99, for which tables are made."""
FEWEST_DEGREES = 1.0
"""Smallest number of degrees of freedom: with fewer, the t of an interval is above 12.7 and grows without limit."""
ELEMENTS = 1 << 16
"""Most elements of an array while tables are made."""


@dataclass(frozen=True)
class EffectiveStarts:
    """Tables for the starts of one comparison, by the correlation that is `observed` between neighbours.

    `weights` sum to 1. `pairs` are the weights of the pairs of consecutive starts that are neighbours, which sum to 1.
    `share` is 1/n', the variance of the weighted mean for contributions with variance 1. `freedom` are the degrees of
    freedom of the estimated variance, and `quantile` is the t of a 95 % interval with these degrees of freedom.
    """

    weights: np.ndarray
    pairs: np.ndarray
    observed: np.ndarray
    share: np.ndarray
    freedom: np.ndarray
    quantile: np.ndarray

    @classmethod
    def at(cls, times: np.ndarray, weights: np.ndarray) -> EffectiveStarts:
        """Return the tables for starts at increasing `times` in seconds; `weights` are above zero."""
        weights = weights / weights.sum()
        if np.ptp(weights) <= 1e-9 * weights.max():  # differences of rounding would fill the cache
            weights = np.full(len(weights), 1 / len(weights))
        return _tables(np.asarray(times, float).tobytes(), weights.tobytes())

    def look_up(self, deviations: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return the variance of the weighted mean, its degrees of freedom, the t of a 95 % interval, and σ².

        `deviations` (n, ...) are the contributions of the starts, less their weighted mean. With their weighted mean
        square s², the variance is s²/(n' - 1), because s² has the expectation σ²(1 - 1/n'), where σ² is the variance of
        a single start.
        """
        square = self.weights @ deviations**2
        product = self.pairs @ (deviations[1:] * deviations[:-1])
        with np.errstate(invalid="ignore", divide="ignore"):
            observed = np.where(square > 0, product / square, 0.0)
        share = np.exp(np.interp(observed, self.observed, np.log(self.share)))
        freedom, quantile = (np.interp(observed, self.observed, table) for table in (self.freedom, self.quantile))
        single = square / (1 - share)
        return single * share, freedom, quantile, single


@lru_cache(maxsize=64)
def _tables(times_bytes: bytes, weights_bytes: bytes) -> EffectiveStarts:
    times, weights = np.frombuffer(times_bytes), np.frombuffer(weights_bytes)
    gaps = np.diff(times)
    neighbours = gaps <= NEIGHBOURS
    if not neighbours.any():
        share = (weights**2).sum()
        freedom = 1 / share - 1
        one = np.ones(1)
        return EffectiveStarts(
            weights, np.zeros(len(gaps)), 0 * one, share * one, freedom * one, stdtrit(freedom * one, 0.975)
        )
    pairs = np.sqrt(weights[1:] * weights[:-1]) * neighbours
    pairs /= pairs.sum()
    steps = gaps / np.median(gaps[neighbours])
    parts = np.array_split(CORRELATIONS, -(-CORRELATIONS.size * len(times) // ELEMENTS))
    columns = [_moments(np.sign(part)[:, None] * np.abs(part)[:, None] ** steps, weights, pairs) for part in parts]
    mean, observed, share, var_square, var_product, covariance = np.concatenate(columns, axis=1)
    slope = np.gradient(np.log(share), mean)
    # Delta method for log(s²/n'), where n' depends on the ratio of product and square.
    by_square = 1 - slope * mean
    variance = slope**2 * var_product + 2 * slope * by_square * covariance + by_square**2 * var_square
    freedom = np.maximum(2 / variance, FEWEST_DEGREES)
    return EffectiveStarts(weights, pairs, np.maximum.accumulate(observed), share, freedom, stdtrit(freedom, 0.975))


def _moments(steps: np.ndarray, weights: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """Return moments of s² and p, the weighted means of squares and of products of neighbours.

    `steps` (k, n - 1) are the correlations of consecutive starts for k values of r. The rows of the result are: the
    weighted mean of the correlations of neighbours, the expectation of p/s², 1/n', the variances of s² and p, and their
    covariance. The variances hold for normal contributions with variance 1 (Bartlett 1946, doi:10.2307/2983611).
    The expectation of the ratio follows from its second-order Taylor series, for deviations from the sample mean; for
    an AR(1) series it is r - (1 + 3r)/n (Kendall 1954, doi:10.1093/biomet/41.3-4.403).
    """
    sums = _sum_correlations(steps, weights)
    covariances = sums[0] + sums[1] - weights
    share = covariances @ weights
    mean = steps @ pairs
    product = ((steps - covariances[:, 1:] - covariances[:, :-1] + share[:, None]) * pairs).sum(1)
    before, after = _sum_correlations(steps**2, weights)
    var_square = 2 * (before + after - weights) @ weights
    covariance = 2 * (pairs * steps * (before[:, :-1] + after[:, 1:])).sum(1)
    chained = _recurrence(steps**2, pairs * steps)
    var_product = (1 + steps**2) @ pairs**2 + 4 * (pairs[1:] * steps[:, 1:] * chained[:, :-1]).sum(1)
    observed = product / (1 - share) - covariance + mean * var_square
    return np.stack([mean, observed, share, var_square, var_product, covariance])


def _sum_correlations(steps: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return, for each start, weighted sums of its correlations: with itself and all earlier starts, or all later."""
    first = np.zeros((len(steps), 1))
    both = np.broadcast_to(weights, (len(steps), len(weights)))
    before = _recurrence(np.concatenate([first, steps], axis=1), both)
    after = _recurrence(np.concatenate([first, steps[:, ::-1]], axis=1), both[:, ::-1])
    return before, after[:, ::-1]


def _recurrence(factor: np.ndarray, term: np.ndarray) -> np.ndarray:
    """Return S with S[i] = factor[i] S[i - 1] + term[i] along the last axis, in log n passes (Kogge & Stone 1973)."""
    factor, total = factor.copy(), term.copy()
    factor[:, 0] = 0
    step = 1
    while step < total.shape[1]:
        total[:, step:] = total[:, step:] + factor[:, step:] * total[:, :-step]
        factor[:, step:] = factor[:, step:] * factor[:, :-step]
        step *= 2
    return total
