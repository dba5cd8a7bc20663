"""Intervals for scores of forecasts that are correlated in time: a paired block bootstrap over starts.

Forecasts that start a few days apart are correlated, so single starts must not be resampled as if they were
independent (Künsch 1989, doi:10.1214/aos/1176347265; Wilks 1997,
doi:10.1175/1520-0442(1997)010<0065:RHTFAF>2.0.CO;2). Blocks of neighbouring starts are drawn
instead, and all models that a score compares get the same draw.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from evaluation.aggregation import WeightedMean

NEIGHBOURS = 10 * 86_400
"""Largest gap between neighbouring starts in seconds: weather is nearly uncorrelated after ten days."""
FEWEST_BLOCKS = 4
"""With fewer independent blocks there is no interval."""


@dataclass(frozen=True)
class BlockBootstrap:
    """Draws of blocks of neighbouring forecast starts.

    The starts are cut into runs with gaps of at most `NEIGHBOURS`. A block is a number of consecutive starts of one
    run. A run is closed to a ring (Politis & Romano 1992), so that every start is drawn equally often; a run shorter
    than the block length is one block. `times` are the starts in seconds, increasing.
    """

    times: np.ndarray
    seed: int = 0
    replicates: int = 2000

    def interval(self, score: Callable[..., np.ndarray], *means: WeightedMean) -> tuple[float, float] | None:
        """Return the 95 % interval of `score(value, ...)` of averages with one entry per start.

        Starts with weight 0 are left out. The block length follows from the correlation of the score's jackknife
        contributions at neighbouring starts. The percentiles are widened by Student's t relative to the normal
        distribution, with one degree of freedom less than blocks, because the bootstrap of few blocks underestimates
        the variance (Hesterberg 2015, doi:10.1080/00031305.2015.1089789). None if there are fewer than `FEWEST_BLOCKS`
        blocks or the score is undefined.
        """
        counted = np.all([mean.weight.reshape(len(mean.weight)) > 0 for mean in means], axis=0)
        times, means = self.times[counted], tuple(mean[counted] for mean in means)
        if len(times) < FEWEST_BLOCKS:
            return None
        influence = jackknife(score, *means)
        if not np.isfinite(influence).all():
            return None
        length = block_length(influence, neighbouring_runs(times))
        count, draws = draw_blocks(tuple(times.tolist()), length, self.replicates, self.seed)
        if count < FEWEST_BLOCKS:
            return None
        values = score(*(WeightedMean(draws @ mean.total, draws @ mean.weight).value for mean in means))
        tail = expanded_tail(0.025, count)
        low, high = np.quantile(values, [tail, 1 - tail])
        return (float(low), float(high)) if np.isfinite([low, high]).all() else None


@lru_cache(maxsize=4)
def draw_blocks(times: tuple[float, ...], length: int, replicates: int, seed: int) -> tuple[int, np.ndarray]:
    """Return the number of blocks in a draw, and how often each start is in each draw (replicates, n).

    The blocks of a draw hold, on average, as many starts as there are. The latest draws are cached, because many scores
    share them.
    """
    blocks, chance = ring_blocks(neighbouring_runs(np.array(times)), length)
    count = round(len(times) / (chance @ blocks.sum(1)))
    drawn = np.random.default_rng(seed).multinomial(count, chance, size=replicates)
    return count, drawn.astype(float) @ blocks


def jackknife(score: Callable[..., np.ndarray], *means: WeightedMean) -> np.ndarray:
    """Return the contribution of every start: (n - 1)(score of all - score without that start)."""
    whole = score(*(mean.sum(0).value for mean in means))
    without = [WeightedMean(mean.total.sum(0) - mean.total, mean.weight.sum(0) - mean.weight).value for mean in means]
    return (len(without[0]) - 1) * (whole - score(*without))


def neighbouring_runs(times: np.ndarray) -> np.ndarray:
    """Return the number of the run that each start belongs to: 0, 0, 1, ..."""
    return np.concatenate([[0], np.cumsum(np.diff(times) > NEIGHBOURS)])


def block_length(series: np.ndarray, runs: np.ndarray) -> int:
    """Return the l that solves l = (n - l + 1)^p with p = (2/3)(1 - n'/n) (Wilks 1997).

    n' = n (1 - r)/(1 + r) is the effective number of starts; r is the correlation of neighbours within runs,
    corrected for the bias -(1 + 4r)/n of its estimate (Kendall 1954, doi:10.1093/biomet/41.3-4.403). At
    least 2: neighbouring starts are not independent even if the estimate of r is small.
    """
    n = len(series)
    anomaly = series - series.mean()
    pairs = runs[1:] == runs[:-1]
    variance = (anomaly**2).mean()
    if not pairs.any() or variance == 0:
        return 2
    estimate = (anomaly[1:] * anomaly[:-1])[pairs].mean() / variance
    correlation = float(np.clip(estimate + (1 + 4 * estimate) / n, 0, 0.99))
    power = (2 / 3) * (1 - (1 - correlation) / (1 + correlation))
    # The right-hand side decreases with l: the solution is the last whole l that does not exceed it.
    return max(2, *(length for length in range(1, n + 1) if length <= (n - length + 1) ** power))


def ring_blocks(runs: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return all blocks as rows of zeros and ones (n, n), and probabilities that draw all starts equally often.

    Block i begins at start i. A start belongs to as many blocks as its block has members, hence the probabilities are
    proportional to one over the block size.
    """
    n = len(runs)
    blocks = np.zeros((n, n))
    for run in np.unique(runs):
        members = np.flatnonzero(runs == run)
        for offset in range(min(length, len(members))):
            blocks[members, np.roll(members, -offset)] = 1
    chance = 1 / blocks.sum(1)
    return blocks, chance / chance.sum()


def expanded_tail(tail: float, count: int) -> float:
    """Return the fraction to cut off on each side: Φ(sqrt(n/(n - 1)) t) for the t of `tail`, n = `count` blocks.

    The quantile t of Student's distribution with ν = n - 1 degrees of freedom comes from the normal quantile
    z: z + (z³ + z)/(4ν) + (5z⁵ + 16z³ + 3z)/(96ν²) + (3z⁷ + 19z⁵ + 17z³ - 15z)/(384ν³) (Abramowitz & Stegun
    26.7.5).

    >>> round(expanded_tail(0.025, 20), 4)
    0.0159
    """
    z, freedom = NormalDist().inv_cdf(tail), count - 1
    t = (
        z
        + (z**3 + z) / (4 * freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    )
    return NormalDist().cdf(math.sqrt(count / freedom) * t)
