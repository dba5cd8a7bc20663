"""Final scores from averaged cell scores: all roots and ratios are taken here.

The functions take arrays of any shape, so that bootstrap replicates use the same code as the score.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from evaluation.aggregation import WeightedMean


def scores(means: Mapping[str, WeightedMean]) -> dict[str, np.ndarray]:
    """Return the scores of one model that need no reference.

    `spread_skill` is the root of expected over actual squared error of the mean (see
    `cell_scores.expected_squared_error`): 1 when calibrated, below 1 when overconfident.
    """
    rmse, spread = np.sqrt(means["squared_error"].value), np.sqrt(means["expected_squared_error"].value)
    return {
        "crps": means["crps"].value,
        "crps_fair": means["crps_fair"].value,
        "rmse": rmse,
        "bias": means["error"].value,
        "spread": spread,
        "spread_skill": divide(spread, rmse),
    }


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
