"""Intervals and p-values for functions of averages over starts that are correlated in time.

The score's jackknife contributions of the starts are one time series (Miller 1974, doi:10.1093/biomet/61.1.1), whatever
the score and however many averages it combines. Models that a score compares are therefore compared start by start.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import fdtri, stdtr, stdtrit

from evaluation.scoring.aggregation import WeightedMean
from evaluation.significance.effective_starts import FEWEST_DEGREES, NEIGHBOURS, EffectiveStarts
from evaluation.significance.run_means import run_variances

FEWEST_STARTS = 4
"""With fewer starts there is no interval. A pair of neighbouring starts counts as one."""
ENOUGH_YEARS, CHANCE = 5, 0.9
"""From so many years on, intervals allow for years that differ more than in 90 % of samples of equal years."""


@dataclass(frozen=True)
class Estimate:
    """A score with its standard error and the degrees of freedom of this error; `quantile` is the t of 95 %.

    `single` is the variance of the contributions of single starts, and `years` is 1/Σw² for the shares w of
    their calendar years. The error is NaN if it cannot be estimated; then there is no interval and no p-value.
    """

    value: float
    error: float = math.nan
    freedom: float = math.nan
    quantile: float = math.nan
    single: float = math.nan
    years: float = math.nan

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval: the score plus and minus t standard errors."""
        if math.isnan(self.error):
            return None
        return self.value - self.quantile * self.error, self.value + self.quantile * self.error

    def p_value(self, expected: float = 0.0) -> float | None:
        """Return the two-sided p-value of the hypothesis that the true score is `expected`."""
        if math.isnan(self.error):
            return None
        distance = abs(self.value - expected)
        if self.error == 0:
            return 1.0 if distance == 0 else 0.0
        return float(2 * stdtr(self.freedom, -distance / self.error))

    def year_share(self) -> float | None:
        """Return the smallest variance between years with which the score could be 0, as a share of `single`.

        The variance ρσ² between Y years adds ρσ²/Y to the square of the error. None if the interval contains 0.
        """
        if not self.error * self.quantile < abs(self.value) or self.single == 0:
            return None
        return ((self.value / self.quantile) ** 2 - self.error**2) * self.years / self.single

    def detectable(self, power: float = 0.8) -> float | None:
        """Return the true difference that a two-sided 5 % test finds with probability `power`.

        (t(0.975) + t(power)) standard errors: the quantiles for these degrees of freedom (Cohen 1988, chapter 2).
        """
        if math.isnan(self.error):
            return None
        return self.error * (self.quantile + float(stdtrit(self.freedom, power)))


def interval(
    score: Callable[..., np.ndarray], means: Sequence[WeightedMean], times: np.ndarray
) -> tuple[float, float] | None:
    """Return the 95 % interval of a score that is one number; None if there are too few starts. See `estimates`."""
    (found,) = estimates(score, means, times)
    return found.interval


def estimates(score: Callable[..., np.ndarray], means: Sequence[WeightedMean], times: np.ndarray) -> list[Estimate]:
    """Return the estimate of each number of `score(average, ...)`.

    `means` have one entry per start along the first axis, at increasing `times` in seconds. `score` works along leading
    axes: averages (n, ...) or (n, ..., K) give (n, ...) or (n, ..., L) numbers. Starts with weight 0 are left out. With
    jackknife contributions z, whose weighted mean square is s², the standard error is s/√(n' - 1). n' is the number of
    independent starts (Wilks 1997, doi:10.1175/1520-0442(1997)010<0065:RHTFAF>2.0.CO;2), here for starts at any times
    and with any weights. n' is estimated too, so the error has fewer degrees of freedom ν than n' - 1: ν = 2/var(log
    error²) (Satterthwaite 1946, doi:10.2307/3002019), for regular starts 1/ν = 1/n + 2/n'. docs/intervals.md shows how
    often such intervals contain the truth.

    If models are averages over training runs (`RunMean`), the error holds over dates and training seeds: the variance
    over the runs is added. The variance of two crossed samples is the sum of both variances less that of the
    interaction (Cameron et al. 2011, doi:10.1198/jbes.2010.07136). The interaction is not subtracted, so the error is
    slightly too large rather than too small.

    With `ENOUGH_YEARS`, the sums of the contributions over years give a second variance of the mean, that of
    independent years, with a degree of freedom less than there are years (Cameron & Miller 2015,
    doi:10.3368/jhr.50.2.317). It takes the place of the first one if an F test finds it larger.

    An estimate has no error if its contributions are undefined or if there are fewer than `FEWEST_STARTS` starts.
    """
    counted = np.logical_and.reduce([_one_weight(mean) > 0 for mean in means])
    times = np.asarray(times)
    if not counted.all():
        times, means = times[counted], [mean[counted] for mean in means]
    values = np.ravel(score(*(mean.sum(0).value for mean in means))).tolist()
    apart, year = _calendar(times.tobytes(), times.dtype.str)
    if apart < FEWEST_STARTS:
        return [Estimate(value) for value in values]
    starts = EffectiveStarts.at(times, _shares(means))
    contributions = jackknife(score, *means).reshape(len(times), -1)
    with np.errstate(invalid="ignore", over="ignore"):
        deviations = contributions - starts.weights @ contributions
        variance, freedom, quantile, single = starts.look_up(deviations)
        tables = _with_years(variance, freedom, quantile, year, starts.weights[:, None] * deviations)
        if seeds := list(run_variances(score, means)):
            tables = _with_seeds(*tables[:2], seeds)
    years = 1 / float((np.bincount(year, starts.weights) ** 2).sum())
    return [
        Estimate(value, math.sqrt(variance), freedom, quantile, of_one, years)
        if math.isfinite(value) and math.isfinite(variance)
        else Estimate(value)
        for value, variance, freedom, quantile, of_one in zip(
            values, *(table.tolist() for table in (*tables, single)), strict=True
        )
    ]


def _with_years(
    variance: np.ndarray, freedom: np.ndarray, quantile: np.ndarray, year: np.ndarray, parts: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return variance, degrees of freedom and t of a mean, those of independent years where years differ.

    `parts` (n, ...) are the contributions of the starts to the mean, `year` (n,) are the numbers of their years.
    """
    count = int(year.max()) + 1
    if count < ENOUGH_YEARS:
        return variance, freedom, quantile
    sums = np.zeros((count, *parts.shape[1:]))
    np.add.at(sums, year, parts)
    between, free = (sums**2).sum(0) * count / (count - 1), count - 1
    differ = between > variance * fdtri(free, freedom, CHANCE)
    return (
        np.where(differ, between, variance),
        np.where(differ, free, freedom),
        np.where(differ, stdtrit(free, 0.975), quantile),
    )


def _with_seeds(
    variance: np.ndarray, freedom: np.ndarray, seeds: Sequence[tuple[np.ndarray, int]]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the sum of variances, its degrees of freedom (Satterthwaite 1946) and the t of a 95 % interval."""
    parts = [(variance, freedom), *seeds]
    total = sum((part for part, _ in parts), start=np.zeros(variance.shape))
    with np.errstate(invalid="ignore", divide="ignore"):
        combined = total**2 / sum((part**2 / degrees for part, degrees in parts), start=np.zeros(variance.shape))
    combined = np.where(total > 0, combined, freedom)
    return total, combined, stdtrit(np.maximum(combined, FEWEST_DEGREES), 0.975)


def jackknife(score: Callable[..., np.ndarray], *means: WeightedMean) -> np.ndarray:
    """Return the contribution of every start: (1/w - 1)(score of all - score without that start).

    w is the share of the start in the sum of weights. The contribution to an average is the average of this start minus
    the average of all starts.
    """
    whole = score(*(mean.sum(0).value for mean in means))
    without = [WeightedMean(mean.total.sum(0) - mean.total, mean.weight.sum(0) - mean.weight).value for mean in means]
    odds = 1 / _shares(means) - 1
    change = np.asarray(whole - score(*without))
    return odds.reshape(-1, *[1] * (change.ndim - 1)) * change


def count_apart(times: np.ndarray) -> int:
    """Return the number of starts, where each pair of neighbours counts as one.

    >>> count_apart(86_400 * np.array([0, 1, 50, 100, 101, 102]))
    4
    """
    if len(times) == 0:
        return 0
    first = np.flatnonzero(times[1:] - times[:-1] > NEIGHBOURS) + 1
    runs = np.diff([0, *first, len(times)])
    return int(((runs + 1) // 2).sum())


@lru_cache(maxsize=64)
def _calendar(times_bytes: bytes, kind: str) -> tuple[int, np.ndarray]:
    """Return the number of starts apart, and the number of the calendar year of each start: alike for all scores."""
    times = np.frombuffer(times_bytes, kind)
    years = times.astype("datetime64[s]").astype("datetime64[Y]")
    return count_apart(times), np.unique(years, return_inverse=True)[1]


def _one_weight(mean: WeightedMean) -> np.ndarray:
    """Return one weight per start: the sum over other axes."""
    return mean.weight.reshape(len(mean.weight), -1).sum(1) if mean.weight.ndim > 1 else mean.weight


def _shares(means: Sequence[WeightedMean]) -> np.ndarray:
    """Return the share of each start in the sum of weights, the mean over several averages."""
    weights = [_one_weight(mean) for mean in means]
    return sum((weight / weight.sum() for weight in weights), start=np.zeros(len(weights[0]))) / len(means)
