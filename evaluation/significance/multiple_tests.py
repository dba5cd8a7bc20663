"""Corrections for many tests: Holm's for comparisons of models, Benjamini and Hochberg's for the cells of a map."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

LEVEL = 0.05
"""Probability of a wrong statement that is accepted, in all tests."""


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the adjusted p-values of a family of tests.

    If all hypotheses with an adjusted p-value below 5 % are rejected, the probability of a wrong rejection among them
    is at most 5 %, however the tests depend on each other. The k-th smallest of m p-values becomes the largest
    (m - j + 1) p(j) of all j <= k (Holm 1979, Scandinavian Journal of Statistics 6, 65-70).

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values, kind="stable")
    factors = np.arange(len(p_values), 0, -1)
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.minimum(np.maximum.accumulate(factors * np.asarray(p_values, float)[order]), 1)
    return adjusted.tolist()


def discoveries(p_values: np.ndarray, rate: float = LEVEL) -> np.ndarray:
    """Return where a field of p-values is significant, with the expected share of false ones at most `rate`.

    All p-values up to the largest p(k) <= rate k/m are significant, for the k-th smallest of m (Benjamini & Hochberg
    1995, doi:10.1111/j.2517-6161.1995.tb02031.x). This also holds for cells with positive correlations, as on a
    weather map (Benjamini & Yekutieli 2001, doi:10.1214/aos/1013699998; Wilks 2016, doi:10.1175/BAMS-D-15-00267.1).
    NaN p-values are no tests.
    """
    tests = np.isfinite(p_values)
    ranked = np.sort(p_values[tests])
    passed = np.flatnonzero(ranked <= rate * np.arange(1, len(ranked) + 1) / max(len(ranked), 1))
    if len(passed) == 0:
        return np.zeros(p_values.shape, bool)
    with np.errstate(invalid="ignore"):
        significant: np.ndarray = p_values <= ranked[passed[-1]]
    return significant
