"""Number of independent cases behind an average over correlated cells, and tests of histograms with this number.

Cells of one forecast, and forecasts that start close to each other, are not independent. The variance of an average is
therefore estimated from its variation between starts, and compared with the variance that independent cases would have.
This ratio is the design effect of survey statistics.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import fdtrc, kolmogorov

_FEWEST_STARTS = 8
"""With fewer starts, a variance between starts cannot be estimated reliably."""


@dataclass(frozen=True)
class Flatness:
    """p-values of the hypothesis that a histogram is flat, and the number of independent cases that it is worth.

    `chi_square` is sensitive to all shapes, `kolmogorov` to bias and to too little or too much spread. NaN where there
    are too few starts.
    """

    chi_square: float
    kolmogorov: float
    cases: float


def flatness_of(histograms: np.ndarray) -> Flatness:
    """Test whether a histogram is flat, from the contributions of each start (starts, bins) in the order of time.

    `chi_square` is Pearson's test with the correction of Rao & Scott (1981, doi:10.2307/2287815) of second order: the
    statistic is compared with an F distribution whose degrees of freedom follow from the covariance of the bins between
    starts. `kolmogorov` tests the largest distance between the cumulative histogram and a flat one, for the number of
    independent cases that follows from its variance.
    """
    totals = histograms[histograms.sum(1) > 0]
    weights, bins = totals.sum(1, keepdims=True), totals.shape[1]
    if len(totals) < _FEWEST_STARTS or bins < 2:
        return Flatness(math.nan, math.nan, math.nan)
    whole = weights.sum()
    found, flat = totals.sum(0) / whole, 1 / bins
    residuals = (totals - weights * found) / whole
    inflation = serial_inflation(residuals)
    freedom = len(totals) / inflation - 1
    covariance = residuals.T @ residuals * inflation * len(totals) / (len(totals) - 1)
    effect = covariance / flat
    first, second = float(np.trace(effect)), float((effect**2).sum())
    if freedom < 2 or first <= 0:
        return Flatness(math.nan, math.nan, math.nan)
    # Without the part that the covariance's sampling error adds to the sum of squares, for normal residuals.
    second = freedom**2 / ((freedom - 1) * (freedom + 2)) * (second - first**2 / freedom)
    d = first**2 / min(max(second, first**2 / (bins - 1)), first**2)
    statistic = float(((found - flat) ** 2 / flat).sum()) / first
    level = np.arange(1, bins) / bins
    variance = (np.cumsum(residuals, axis=1)[:, :-1] ** 2).sum(0) * inflation * len(totals) / (len(totals) - 1)
    cases = float((level * (1 - level)).sum() / variance.sum())
    distance = float(abs(np.cumsum(found)[:-1] - level).max())
    p_chi_square = float(fdtrc(d, d * freedom, statistic))
    return Flatness(p_chi_square, kolmogorov_survival(distance, cases), (bins - 1) / first)


def serial_inflation(residuals: np.ndarray) -> float:
    """Return (1 + r)/(1 - r), the factor by which correlation between successive starts raises a variance, at least 1.

    r is the correlation of the residuals (starts, K) at neighbouring starts: tr(C₁C₀)/tr(C₀²), where C₁ and C₀ are
    their covariance matrices at the lags 1 and 0. The patterns with the largest variance, which decide about a test,
    then count most.
    Its bias of -(1 + 3r)/n (Kendall 1954, doi:10.1093/biomet/41.3-4.403) is removed, and it is at most 0.9.
    """
    covariance, lagged, n = residuals.T @ residuals, residuals[1:].T @ residuals[:-1], len(residuals)
    total = float((covariance**2).sum())
    if total == 0:
        return 1.0
    r = float((lagged * covariance).sum()) / total
    r = min(max(r + (1 + 3 * r) / n, 0.0), 0.9)
    return (1 + r) / (1 - r)


def cases_per_weight(residuals: np.ndarray, independent: np.ndarray) -> float:
    """Return the number of independent cases that a unit of weight is worth.

    `residuals` (starts, K) are sums over each start of K quantities with mean zero, `independent` (K,) the variance of
    their totals if each unit of weight were one independent case.
    """
    if len(residuals) < _FEWEST_STARTS:
        return math.nan
    variance = (residuals**2).sum() * serial_inflation(residuals) * len(residuals) / (len(residuals) - 1)
    return float(independent.sum() / variance) if variance > 0 else math.nan


def kolmogorov_survival(distance: float, cases: float) -> float:
    """Return the chance that the distribution function of `cases` draws deviates by at least `distance`.

    Kolmogorov's limit with the correction for few cases of Stephens (1970, doi:10.1111/j.2517-6161.1970.tb00821.x).
    """
    return float(kolmogorov((math.sqrt(cases) + 0.12 + 0.11 / math.sqrt(cases)) * distance))
