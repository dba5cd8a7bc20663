"""Ratios of scores: skill against a reference, and the captured share of the oracle's gain."""

from __future__ import annotations

import numpy as np


def skill(score: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Return 1 - score / reference: 1 is perfect, 0 as good as the reference, negative is worse."""
    return 1 - divide(score, reference)


def captured(score: np.ndarray, raw: np.ndarray, oracle: np.ndarray) -> np.ndarray:
    """Return the captured share of the oracle's gain, (raw - score) / (raw - oracle): 0 for raw, 1 for the oracle."""
    return divide(raw - score, raw - oracle)


def divide(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Return the ratio; NaN where the denominator is 0, so that the score is undefined."""
    denominator = np.asarray(denominator, dtype=float)
    return numerator / np.where(denominator == 0, np.nan, denominator)
